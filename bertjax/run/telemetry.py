"""Logs of a run: a JSONL file always, TensorBoard by default, and the loggers that the config names.

Only the first process of a run writes. A metric's name is `group/name`, as in `train/mlm_loss`; its value is a float.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict

from bertjax.run.metrics import LOSS, TOKENS_SEEN
from bertjax.storage.files import naming, replace_text
from bertjax.storage.lean_import import without
from bertjax.storage.remote import AnyPath
from bertjax.storage.remote_run import Mirror, StagingDir

METRICS_FILE = "metrics.jsonl"  # within the run's directory
TENSORBOARD_DIRECTORY = "tensorboard"
LOGGED_AS_FILE = "logged_as.json"  # logger -> the id of the run there

Record = dict[str, Any]  # one line of the JSONL file: "step" (int), "time" (ISO 8601, UTC), then metrics
Curves = dict[str, tuple[list[int], list[float]]]  # metric -> its steps, rising, and its values


# How this process left the run: at its end, by a signal (it may be resumed), or by an error.
Ending = Literal["finished", "stopped", "failed"]


class Writer(Protocol):
    """Records the metrics of steps."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""

    def flush(self) -> None:
        """Make everything written so far readable by others."""

    def close(self, ending: Ending) -> None:
        """Store everything written, and record how the run ended."""


OpenWriter = Callable[[Path, int], Writer]  # (folder for its files, step at which the run resumes)


class JsonlWriter:
    """Appends to a JSONL file, a line per write, without buffering.

    A value that is not finite, which JSON cannot represent, is written as null.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        """Open `path`, after removing lines of a killed process beyond `resume_step`, and an incomplete last line."""
        if path.exists():
            retained_records = (record for record in read_metrics(path) if record["step"] <= resume_step)
            replace_text(path, "".join(_line(record) for record in retained_records))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._file = path, path.open("a", encoding="utf-8", newline="\n", buffering=1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = _line({"step": int(step), "time": now} | {k: logged_value(v) for k, v in metrics.items()})
        with naming(self._path):
            self._file.write(line)

    def flush(self) -> None:
        """Bring the file to disk: a checkpoint that outlives a loss of power finds the lines before it."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self, ending: Ending = "finished") -> None:
        """Bring the file to disk."""
        if not self._file.closed:
            self.flush()
            self._file.close()


class TensorBoardWriter:
    """Writes scalars for TensorBoard, which hides those that a killed process wrote after `resume_step`.

    tensorboardX's `SummaryWriter` writes in a thread, which ends on a full disk; the training thread then waits for it
    for ever. Here an error is raised where it occurs.
    """

    def __init__(self, directory: Path, resume_step: int) -> None:
        with without("torch"):
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2
            from tensorboardX.summary import scalar
        event: Any = event_pb2  # protobuf makes its classes when it is imported
        self._event, self._scalar, self._directory = event.Event, scalar, directory
        directory.mkdir(parents=True, exist_ok=True)
        # Event files are named by second and host: without the suffix a quick restart would write to the same file.
        self._file = EventsWriter(str(directory / "events"), f".{os.getpid()}")
        started = event.SessionLog(status=event.SessionLog.START)
        self._file.write_event(self._event(wall_time=time.time(), step=resume_step + 1, session_log=started))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one scalar per metric."""
        now = time.time()
        with naming(self._directory):
            for name, value in metrics.items():
                summary = self._scalar(name, float(value))
                self._file.write_event(self._event(wall_time=now, step=int(step), summary=summary))
            self._file.flush()

    def flush(self) -> None:
        """Bring the event file up to date."""
        with naming(self._directory):
            self._file.flush()

    def close(self, ending: Ending = "finished") -> None:
        """Bring the event file to disk."""
        with naming(self._directory):
            self._file.close()


class Telemetry:
    """Passes metrics to several writers; a context manager that closes them.

    With a mirror, their files are uploaded in the background.
    """

    def __init__(self, writers: Sequence[Writer], mirror: Mirror | None = None) -> None:
        self._writers, self._mirror = tuple(writers), mirror
        self.ending: Ending = "finished"  # unless an error changes it

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step everywhere."""
        for writer in self._writers:
            writer.write(step, metrics)
        if self._mirror is not None and self._mirror.is_due:
            self._flush()
            self._mirror.publish_in_background()

    def publish(self) -> None:
        """Publish everything written so far in the run's directory; a checkpoint is written only after that."""
        self._flush()
        if self._mirror is not None:
            self._mirror.publish()

    def close(self, ending: Ending | None = None) -> None:
        """Close every writer, even if one of them fails."""
        with contextlib.ExitStack() as stack:
            if self._mirror is not None:
                stack.callback(self._mirror.publish)
            for writer in self._writers:
                stack.callback(writer.close, ending or self.ending)

    def _flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.ending = "stopped" if issubclass(kind, KeyboardInterrupt) else "failed"
        self.close()


def open_tensorboard(folder: Path, resume_step: int) -> Writer:
    """TensorBoard's event files of a run in their own folder."""
    return TensorBoardWriter(folder / TENSORBOARD_DIRECTORY, resume_step)


def open_telemetry(
    run_dir: AnyPath,
    resume_step: int,
    *,
    loggers: Iterable[OpenWriter] = (open_tensorboard,),
    staging: StagingDir | None = None,
) -> Telemetry:
    """The writers of a run that starts (`resume_step` 0) or resumes the checkpoint of `resume_step`.

    If the directory is a URL, they write into the staging directory, which is uploaded. Errors of a logger close the
    other ones.
    """
    mirror = None
    if isinstance(run_dir, Path):
        folder = run_dir
    else:
        assert staging is not None and staging.claim is not None, (
            "a run in object storage is written by way of a staging directory"
        )
        folder = staging.folder / "logs"
        folder.mkdir()
        if there := [name for name in (METRICS_FILE, LOGGED_AS_FILE) if (run_dir / name).is_file()]:
            run_dir.download_all(folder, there)
        mirror = Mirror(folder, run_dir, staging.claim)
    writers: list[Writer] = [JsonlWriter(folder / METRICS_FILE, resume_step)]
    try:
        writers.extend(open_writer(folder, resume_step) for open_writer in loggers)
    except BaseException:
        Telemetry(writers).close("failed")
        raise
    return Telemetry(writers, mirror)


def read_metrics(path: AnyPath) -> list[Record]:
    """The records of a JSONL file of metrics, without an incomplete last line of a killed process.

    Raises ValueError naming the line if any other is not a record.
    """
    *lines, _torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def logged_until(directory: AnyPath, start: int) -> list[Record]:
    """The log records of the run up to step `start`, where this process begins."""
    path = directory / METRICS_FILE
    return [record for record in read_metrics(path) if record["step"] <= start] if path.exists() else []


class Past(TypedDict):
    """The part of the log so far that the loop needs."""

    step: int  # at which this process begins
    evaluated: bool  # whether that step was evaluated
    tokens: float  # trained on, without padding
    figures: list[float]  # of early stopping, at the evaluations so far
    losses: list[tuple[int, float | None]]  # the last ones, each with its step


def summarize_log(logged: list[Record], start: int, figure: str, losses: int) -> Past:
    """Summarize the log up to step `start`: `figure` is that of early stopping, `losses` the number of losses."""
    figures = [record[figure] for record in logged if figure in record]
    names = {name for record in logged if record["step"] == start for name in record}
    return {
        "step": start,
        "evaluated": any(name.startswith("eval/") for name in names),
        "tokens": max((record.get(TOKENS_SEEN, 0.0) for record in logged), default=0.0),
        "figures": [math.nan if value is None else value for value in figures],
        "losses": [(record["step"], record[LOSS]) for record in logged if LOSS in record][-losses:] if losses else [],
    }


def curves(records: Iterable[Record]) -> Curves:
    """Every metric by step. If a step was written twice, the later value counts; null becomes NaN."""
    series: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "time"):
                series.setdefault(name, {})[record["step"]] = math.nan if value is None else float(value)
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in series.items()}


def logged_value(value: float) -> float | None:
    """Round a figure as the JSONL file does; None for NaN and infinity."""
    value = float(value)
    # Nine digits distinguish any two float32.
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _parse(line: str, location: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{location}: not JSON ({error}); remove the line, or move the file away to start over"
        ) from error
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise ValueError(f'{location}: not a record of metrics, "step" is missing; remove the line')
    for name, value in record.items():
        if type(value) not in (int, float, type(None)) and name != "time":
            raise ValueError(f"{location}: {name} is {str(value)[:40]!r}, which is not a number; remove the line")
    return record
