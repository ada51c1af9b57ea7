"""Logs of a run: always a JSONL file, TensorBoard by default, and the loggers named in the config.

Only process 0 writes. A metric's name has the form `group/name`, such as `train/mlm_loss`; its value is a float.
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

METRICS_FILE = "metrics.jsonl"  # in the run's directory
TENSORBOARD_DIRECTORY = "tensorboard"
LOGGED_AS_FILE = "logged_as.json"  # logger -> id of the run in that service

Record = dict[str, Any]  # one line of the JSONL file: "step" (int), "time" (ISO 8601, UTC), then metrics
Curves = dict[str, tuple[list[int], list[float]]]  # metric -> (ascending steps, values)


# How this process ended: after the last step, by a signal (the run may be resumed), or by an error.
Ending = Literal["finished", "stopped", "failed"]


class Writer(Protocol):
    """Records the metrics of steps."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""

    def flush(self) -> None:
        """Make everything written so far readable to others."""

    def close(self, ending: Ending) -> None:
        """Store everything written, and record how the run ended."""


OpenWriter = Callable[[Path, int], Writer]  # (folder for its files, step at which the run resumes)


class JsonlWriter:
    """Appends one line per write to a JSONL file, without buffering.

    Values that are not finite are written as null, because JSON cannot represent them.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        """Open `path`; removes lines of a killed process after `resume_step`, and an incomplete last line."""
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
        """Sync the file to disk, so that after a power loss no checkpoint is newer than the log."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self, ending: Ending = "finished") -> None:
        """Sync and close the file."""
        if not self._file.closed:
            self.flush()
            self._file.close()


class TensorBoardWriter:
    """Writes scalars for TensorBoard, which hides scalars of a killed process after `resume_step`.

    tensorboardX's `SummaryWriter` writes in a thread, which dies on a full disk; the training thread then waits for it
    forever. This class raises the error where it occurs.
    """

    def __init__(self, directory: Path, resume_step: int) -> None:
        with without("torch"):
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2
            from tensorboardX.summary import scalar
        event: Any = event_pb2  # its classes are created on import
        self._event, self._scalar, self._directory = event.Event, scalar, directory
        directory.mkdir(parents=True, exist_ok=True)
        # Event files are named by second and host; without the suffix a quick restart would write to the same file.
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
        """Flush the event file."""
        with naming(self._directory):
            self._file.flush()

    def close(self, ending: Ending = "finished") -> None:
        """Close the event file."""
        with naming(self._directory):
            self._file.close()


class Telemetry:
    """Passes metrics to several writers, and closes them as a context manager.

    With a mirror, it uploads their files in the background.
    """

    def __init__(self, writers: Sequence[Writer], mirror: Mirror | None = None) -> None:
        self._writers, self._mirror = tuple(writers), mirror
        self.ending: Ending = "finished"  # unless an error changes it

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step with every writer."""
        for writer in self._writers:
            writer.write(step, metrics)
        if self._mirror is not None and self._mirror.is_due:
            self._flush()
            self._mirror.publish_in_background()

    def publish(self) -> None:
        """Flush and upload everything written so far; called before a checkpoint is written."""
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
    """Open a writer of TensorBoard event files in a subfolder."""
    return TensorBoardWriter(folder / TENSORBOARD_DIRECTORY, resume_step)


def open_telemetry(
    run_dir: AnyPath,
    resume_step: int,
    *,
    loggers: Iterable[OpenWriter] = (open_tensorboard,),
    staging: StagingDir | None = None,
) -> Telemetry:
    """Open the writers of a run that starts (`resume_step=0`) or resumes from a checkpoint.

    If the directory is a URL, they write into the staging directory, which is uploaded. If a logger raises an error,
    the writers before it are closed.
    """
    mirror = None
    if isinstance(run_dir, Path):
        folder = run_dir
    else:
        assert staging is not None and staging.claim is not None, "writing to object storage requires staging"
        folder = staging.folder / "logs"
        folder.mkdir()
        if existing := [name for name in (METRICS_FILE, LOGGED_AS_FILE) if (run_dir / name).is_file()]:
            run_dir.download_all(folder, existing)
        mirror = Mirror(folder, run_dir, staging.claim)
    writers: list[Writer] = [JsonlWriter(folder / METRICS_FILE, resume_step)]
    try:
        writers.extend(open_writer(folder, resume_step) for open_writer in loggers)
    except BaseException:
        Telemetry(writers).close("failed")
        raise
    return Telemetry(writers, mirror)


def read_metrics(path: AnyPath) -> list[Record]:
    """Read the records of a JSONL file of metrics, ignoring an incomplete last line left by a killed process.

    Raises ValueError naming the first line that is not a record.
    """
    *lines, _torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def logged_until(directory: AnyPath, start: int) -> list[Record]:
    """Read the log records up to step `start`, where this process begins; none without a log."""
    path = directory / METRICS_FILE
    return [record for record in read_metrics(path) if record["step"] <= start] if path.exists() else []


class Past(TypedDict):
    """What the loop needs from the log so far."""

    step: int  # at which this process begins
    evaluated: bool  # whether that step was evaluated
    tokens: float  # trained on, without padding
    figures: list[float]  # the early-stopping figure at the evaluations so far
    losses: list[tuple[int, float | None]]  # the last steps with their losses


def summarize_log(logged: list[Record], start: int, figure: str, losses: int) -> Past:
    """Summarize the log up to step `start`: the values of the early-stopping `figure`, and the last `losses` losses."""
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
    """Collect every metric by step. If a step was written twice, the later value counts; null becomes NaN."""
    series: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "time"):
                series.setdefault(name, {})[record["step"]] = math.nan if value is None else float(value)
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in series.items()}


def logged_value(value: float) -> float | None:
    """Round a figure as the JSONL file does; None for NaN and infinity."""
    value = float(value)
    # Nine digits distinguish any two float32 values.
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
