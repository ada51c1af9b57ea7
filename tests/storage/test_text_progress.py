"""Progress and signs of life on a terminal and elsewhere."""

import io
import itertools
import time

import pytest

from bertjax.storage import progress as module
from bertjax.storage.progress import ProgressLine, Signs


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock is two seconds later."""
    ticks = itertools.count(0, 2)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))


def test_plain_stream_gets_lines_periodically(clock):
    stream = io.StringIO()
    line = ProgressLine(stream)
    for done in range(11):
        line("preparing text", done * 100, 1000)
    assert stream.getvalue().splitlines() == [
        "preparing text:  50% of 1,000, 10 s left",
        "preparing text: 100% of 1,000, 20 s",
    ]


def test_work_of_an_earlier_run_does_not_flatter_the_estimate(clock):
    stream = Terminal()
    line = ProgressLine(stream)
    line("preparing text", 800, 1000)
    line("preparing text", 900, 1000)
    assert stream.getvalue().endswith("preparing text:  90% of 1,000, 2 s left")


def test_terminal_has_one_line_per_job(clock):
    stream = Terminal()
    line = ProgressLine(stream)
    for what, done in (("counting words", 5), ("counting words", 10), ("preparing text", 10)):
        line(what, done, 10)
    assert stream.getvalue().count("\n") == 2
    assert stream.getvalue().split("\n")[0].count("\r") == 2


class Hand:
    """A clock that is turned by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def said_during(signs, clock, seconds):
    """(second, line) of everything printed over so many quarters of a second."""
    said = []
    for _ in range(round(seconds * 4)):
        clock.now += 0.25
        if (line := signs.due()) is not None:
            said.append((clock.now - 100, line))
            signs.spoke()
    return said


def test_silence_is_at_most_four_seconds():
    clock = Hand()
    signs = Signs(clock)
    with signs.doing("compiling the step"):
        said = said_during(signs, clock, 60)
    times = [0, *(when for when, _ in said), 60]
    assert max(b - a for a, b in itertools.pairwise(times)) <= 4
    assert said[0] == (4, "compiling the step (4 s so far)")


def test_long_work_is_printed_less_often():
    clock = Hand()
    signs = Signs(clock)
    with signs.doing("compiling the step"):
        said_during(signs, clock, 60)
        assert [round(when) for when, _ in said_during(signs, clock, 120)] == [90, 120, 150, 180]
    with signs.doing("stepping", later_every=300):
        said_during(signs, clock, 60)
        assert len(said_during(signs, clock, 600)) == 2


def test_printed_line_delays_the_next_sign():
    clock = Hand()
    signs = Signs(clock)
    with signs.doing("counting"):
        assert said_during(signs, clock, 3.5) == []
        signs.spoke()
        assert said_during(signs, clock, 3.75) == []
        assert [when for when, _ in said_during(signs, clock, 0.5)] == [7.5]


def test_innermost_work_is_named():
    clock = Hand()
    signs = Signs(clock)
    assert said_during(signs, clock, 20) == []
    with signs.doing("all of it"):
        with signs.doing(lambda: "batch 3 of 9"):
            assert [line for _, line in said_during(signs, clock, 8)] == ["batch 3 of 9"] * 2
        assert said_during(signs, clock, 4)[0][1].startswith("all of it (")
    assert said_during(signs, clock, 20) == []


def test_thread_prints_while_the_work_is_silent(monkeypatch):
    monkeypatch.setattr(module, "_SIGN_EVERY", 0.05)
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    signs, outer, inner = Signs(), [], []
    with signs.speaking("starting", outer.append):
        wait_for(outer)
        # A whole run speaks inside a verb that speaks already: by the innermost way, and of the innermost work.
        with signs.speaking("working", inner.append):
            wait_for(inner)
    assert outer[0].startswith("starting (") and inner[0].startswith("working (")
    count = len(outer)
    time.sleep(0.2)
    assert len(outer) == count, "the thread has ended"


def wait_for(said, seconds=120):
    deadline = time.monotonic() + seconds
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_progress_counts_as_output():
    clock = Hand()
    signs = Signs(clock)
    before = module.SIGNS
    module.SIGNS = signs
    try:
        with signs.doing("preparing text"):
            clock.now += 3.75
            ProgressLine(io.StringIO())("preparing text", 10, 10)
            assert said_during(signs, clock, 3.75) == []
    finally:
        module.SIGNS = before
