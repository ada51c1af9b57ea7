"""What someone who waits gets to read."""

import io
import itertools

import pytest

from bertjax.storage import progress as module
from bertjax.storage.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock is two seconds later."""
    ticks = itertools.count(0, 2)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))


def test_plain_lines_now_and_then(clock):
    stream = io.StringIO()
    line = ProgressLine(stream)
    for done in range(0, 11):
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


def test_a_terminal_has_one_line_for_each_job(clock):
    stream = Terminal()
    line = ProgressLine(stream)
    for what, done in (("counting words", 5), ("counting words", 10), ("preparing text", 10)):
        line(what, done, 10)
    assert stream.getvalue().count("\n") == 2
    assert stream.getvalue().split("\n")[0].count("\r") == 2
