"""Metrics in JSONL and TensorBoard survive restarts and kills without gaps or duplicates."""

import errno
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from datetime import datetime

import numpy as np
import pytest

from bertjax.run.telemetry import JsonlWriter, Telemetry, TensorBoardWriter, curves, open_telemetry, read_metrics
from bertjax.storage.files import replace_text


def write_steps(path, steps, resume_step=0):
    writer = JsonlWriter(path, resume_step)
    for step in steps:
        writer.write(step, {"train/mlm_loss": 10.0 / step})
    writer.close()


def test_jsonl_line_is_one_json_object(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    writer = JsonlWriter(path, 0)
    writer.write(np.int32(3), {"train/mlm_loss": np.float32(0.1), "train/grad_norm": float("inf")})
    (line,) = path.read_text().splitlines()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(record) == ["step", "time", "train/mlm_loss", "train/grad_norm"]
    assert record["step"] == 3
    assert np.float32(record["train/mlm_loss"]) == np.float32(0.1)
    assert record["train/grad_norm"] is None
    assert datetime.fromisoformat(record["time"]).utcoffset().total_seconds() == 0


def test_resume_drops_lines_after_its_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 9))
    write_steps(path, range(6, 11), resume_step=5)
    assert [record["step"] for record in read_metrics(path)] == list(range(1, 11))


def test_resume_keeps_the_bytes_of_earlier_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 9))
    before = path.read_bytes().splitlines(keepends=True)
    write_steps(path, [], resume_step=5)
    assert path.read_bytes() == b"".join(before[:5])
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_incomplete_last_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [1, 2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert [record["step"] for record in read_metrics(path)] == [1]
    write_steps(path, [2, 3], resume_step=1)
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]


def test_killed_process_loses_no_line(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path; from bertjax.run.telemetry import JsonlWriter\n"
        "writer = JsonlWriter(Path(sys.argv[1]), 0)\n"
        "for step in range(1, 4): writer.write(step, {'train/mlm_loss': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "metrics.jsonl"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "[1]",
        '{"train/mlm_loss": 1.0}',
        '{"step": "3"}',
        '{"step": true}',
        '{"step": 3, "x": "a"}',
        '{"step": 3, "x": [1]}',
        "[" * 100_000,
        "9" * 5000,
    ],
)
def test_read_metrics_names_an_invalid_line(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: .*remove the line"):
        read_metrics(path)


def test_curves_take_the_later_value_and_keep_gaps():
    records = [
        {"step": 2, "time": "t", "train/mlm_loss": 5.0},
        {"step": 1, "time": "t", "train/mlm_loss": 6.0, "eval/mlm_loss": 7.0},
        {"step": 2, "time": "t", "train/mlm_loss": 4.0},
        {"step": 3, "time": "t", "train/mlm_loss": None},
    ]
    series = curves(records)
    assert series["eval/mlm_loss"] == ([1], [7.0])
    steps, values = series["train/mlm_loss"]
    assert (steps, values[:2], math.isnan(values[2])) == ([1, 2, 3], [6.0, 4.0], True)


def tensorboard_scalars(directory):
    """(step, tag) -> value, purged like TensorBoard: START at step p discards earlier events with step >= p."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    files = []
    for path in directory.iterdir():
        data, at, events = path.read_bytes(), 0, []
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            events.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
        files.append(events)
    scalars = {}
    # Files may have equal times, but the events in them do not.
    for event in itertools.chain.from_iterable(sorted(files, key=lambda events: events[0].wall_time)):
        if event.session_log.status == SessionLog.START:
            scalars = {key: value for key, value in scalars.items() if key[0] < event.step}
        for value in event.summary.value:
            scalars[event.step, value.tag] = value.simple_value
    return scalars


def test_tensorboard_purges_on_resume(tmp_path, monkeypatch):
    for steps, resume_step, value in ((range(1, 9), 0, 1.0), (range(7, 8), 5, 2.0)):
        monkeypatch.setattr("os.getpid", lambda process=resume_step: process)
        writer = TensorBoardWriter(tmp_path, resume_step)
        for step in steps:
            writer.write(step, {"train/mlm_loss": value})
        writer.close()
    assert len(list(tmp_path.iterdir())) == 2
    before = {(step, "train/mlm_loss"): 1.0 for step in range(1, 6)}
    assert tensorboard_scalars(tmp_path) == before | {(7, "train/mlm_loss"): 2.0}


@pytest.mark.parametrize("kind", [TensorBoardWriter, lambda folder, step: JsonlWriter(folder / "metrics.jsonl", step)])
def test_full_disk_raises_instead_of_hanging(tmp_path, kind):
    raised = []

    def write_much():
        writer = kind(tmp_path, 0)
        try:
            for step in range(1000):
                writer.write(step, {"train/mlm_loss": 1.0})
        except OSError as error:
            raised.append(error.errno)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    thread = threading.Thread(target=write_much, daemon=True)  # in case it waits forever
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        thread.start()
        thread.join(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised == [errno.EFBIG]


def test_telemetry_writes_everywhere_and_closes_everything(tmp_path):
    class MemoryWriter:
        def __init__(self):
            self.seen, self.closed = [], False

        def write(self, step, metrics):
            self.seen.append((step, dict(metrics)))

        def close(self, ending):
            self.closed = True
            raise OSError("disk full")

    first, second = MemoryWriter(), MemoryWriter()
    with pytest.raises(OSError, match="disk full"), Telemetry([first, second]) as telemetry:
        telemetry.write(1, {"train/mlm_loss": 2.0})
    assert first.seen == second.seen == [(1, {"train/mlm_loss": 2.0})]
    assert first.closed and second.closed

    writer = MemoryWriter()
    telemetry = open_telemetry(tmp_path, 0, loggers=[lambda folder, resume_step: writer])
    telemetry.write(1, {"train/mlm_loss": 2.0})
    assert writer.seen and read_metrics(tmp_path / "metrics.jsonl")[0]["train/mlm_loss"] == 2.0


def test_failed_replacement_leaves_the_old_file(tmp_path):
    path = tmp_path / "page"
    replace_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page"]
