"""Profiles: parsing the range of steps, tracing exactly these, and not waiting at other steps."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from bertjax.run.hooks.profile import Profile, steps_to_profile


def test_steps_to_profile_excludes_the_last_step() -> None:
    assert list(steps_to_profile("10:13", 100)) == [10, 11, 12]
    assert list(steps_to_profile("0:1", 1)) == [0]
    assert not steps_to_profile("", 100)


@pytest.mark.parametrize("text", ["10", "10-13", "13:10", "10:10", "-1:3", "10:", "a:b", "10:101", "1:2:3", " 1:2"])
def test_invalid_profile_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"profile=.*FIRST:LAST.*--profile 10:13.*<= 100 \(training.steps\)"):
        steps_to_profile(text, 100)


class Stepping:
    """A loop of small steps with a `Profile`, whose run it is; `waits` has the steps at which it had to wait."""

    def __init__(self, folder: Path, steps: range, start: int = 0) -> None:
        self.folder, self.notes, self.waits, self.step = folder, [], [], start
        self.product = jax.jit(lambda x: x @ x / 8)
        self.profile = Profile(steps, folder)
        self.profile.run = self
        self.progress = SimpleNamespace(note=self.notes.append)
        self.processes = SimpleNamespace(taking_time=contextlib.nullcontext)

    def settle(self) -> None:
        self.waits.append(self.step)

    def run(self, stop: int, fail_at: int = -1) -> None:
        x = jnp.ones((8, 8))
        with self.profile:
            self.profile.on_start()
            while self.step < stop:
                self.profile.before_step(self.step)
                if self.step == fail_at:
                    raise RuntimeError("stopped")
                x = self.product(x)
                self.step += 1
                self.profile.after_step(self.step)

    def traced(self) -> list[str]:
        """The numbers of the steps in the trace."""
        (file,) = self.folder.glob("plugins/profile/*/*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        return [event["args"]["step_num"] for event in events if event.get("name") == "train"]


def test_profile_traces_and_waits_only_at_chosen_steps(tmp_path: Path) -> None:
    loop = Stepping(tmp_path, range(3, 6))
    loop.run(9)
    assert loop.traced() == ["3", "4", "5"]
    assert loop.waits == [3, 6]
    assert "steps 3 to 5" in loop.notes[0] and str(tmp_path) in loop.notes[0]
    assert sorted(file.name.split(".", 2)[2] for file in tmp_path.rglob("process_0.*")) == [
        "trace.json.gz",
        "xplane.pb",
    ]


def test_resumed_run_traces_the_remaining_steps(tmp_path: Path) -> None:
    loop = Stepping(tmp_path, range(3, 6), start=5)
    loop.run(9)
    assert loop.traced() == ["5"]


def test_run_resumed_after_the_steps_traces_nothing(tmp_path: Path) -> None:
    loop = Stepping(tmp_path, range(3, 6), start=6)
    loop.run(9)
    assert not list(tmp_path.iterdir())
    assert loop.waits == []
    assert loop.notes == ["profile: the run resumes at step 6, after the steps to trace; nothing is traced"]


def test_aborted_loop_writes_its_trace(tmp_path: Path) -> None:
    loop = Stepping(tmp_path, range(3, 6))
    with pytest.raises(RuntimeError, match="stopped"):
        loop.run(9, fail_at=4)
    assert loop.traced()[0] == "3"
    # Another trace can begin.
    again = Stepping(tmp_path / "again", range(1, 2))
    again.run(3)
    assert again.traced() == ["1"]


def test_tracing_does_not_count_as_a_hang(tmp_path: Path) -> None:
    loop, events = Stepping(tmp_path, range(1)), []
    loop.settle = lambda: events.append("settled")
    loop.processes.taking_time = lambda: contextlib.nullcontext(events.append("time"))
    loop.product = lambda x: events.append("step")
    loop.run(1)
    assert events == ["settled", "time", "step", "settled", "time"]


def test_trace_that_failed_to_start_is_not_stopped(tmp_path: Path) -> None:
    jax.profiler.start_trace(str(tmp_path / "other"))  # JAX supports one trace at a time
    try:
        with pytest.raises(RuntimeError, match=r"[Oo]ne profile|[Pp]rofile has already"):
            Stepping(tmp_path, range(1)).run(2)
    finally:
        jax.profiler.stop_trace()
