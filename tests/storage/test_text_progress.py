"""Progress and signs of life on a terminal and elsewhere."""

import io
import time

import pytest

from bertjax.storage import progress as module
from bertjax.storage.progress import ProgressLine, Signs
from bertjax.storage.terminal import three_digits


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (3.0, "3"), (98.76, "98.8"), (999.7, "1,000"), (2254, "2,250")]
)
def test_numbers_have_three_digits_and_no_power_of_ten(value, text):
    assert three_digits(value) == text


@pytest.fixture
def clock(monkeypatch):
    """Advance the clock by `step` seconds at every call."""
    ticks = ManualClock()

    def tick():
        ticks.now += ticks.step
        return ticks.now

    monkeypatch.setattr(module.time, "monotonic", tick)
    return ticks


def test_log_gets_a_line_after_10_s_then_each_minute(clock):
    stream = io.StringIO()
    line = ProgressLine(stream)
    clock.step = 10.0
    for done in range(15):
        line("preparing text, bytes", done * 1_000_000, 14_000_000)
    assert stream.getvalue().splitlines() == [
        "Preparing text: 7% of 14 MB, 2 min 10 s left",
        "Preparing text: 50% of 14 MB, 1 min 10 s left",
        "Preparing text: 93% of 14 MB, 10 s left",
        "Preparing text: 100% of 14 MB, 2 min 20 s",
    ]


def test_work_under_ten_seconds_is_not_printed(clock):
    stream, terminal = io.StringIO(), Terminal()
    clock.step = 3.0
    for line in (ProgressLine(stream), ProgressLine(terminal)):
        for done in (1, 2, 3):
            line("training the vocabulary, entries", done, 3)
    assert stream.getvalue() == ""
    shown = terminal.getvalue()
    assert "Training the vocabulary: 2 of 3 entries, 3 s left" in shown and shown.endswith("\r\033[K")
    assert "\n" not in shown


def test_work_of_an_earlier_run_does_not_bias_the_eta(clock):
    stream = Terminal()
    line = ProgressLine(stream)
    line("preparing text", 800, 1000)
    line("preparing text", 900, 1000)
    assert stream.getvalue().endswith("Preparing text: 900 of 1,000, 2 s left")


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self):
        self.now, self.step = 100.0, 2.0

    def __call__(self):
        return self.now


def lines_during(signs, clock, seconds):
    """Advance the clock by `seconds`; returns (second, line) of everything that is printed."""
    lines = []
    for _ in range(round(seconds * 4)):
        clock.now += 0.25
        if (line := signs.due()) is not None:
            lines.append((clock.now - 100, line))
            signs.spoke()
    return lines


def test_silent_work_is_printed_after_10_s_then_each_minute():
    clock = ManualClock()
    signs = Signs(clock)
    with signs.doing("compiling"):
        assert lines_during(signs, clock, 131) == [
            (10, "Compiling… (10 s)"),
            (70, "Compiling… (1 min 10 s)"),
            (130, "Compiling… (2 min 10 s)"),
        ]
    with signs.doing("stepping", first_after=60, later_every=300):
        assert [round(when) - 131 for when, _ in lines_during(signs, clock, 600)] == [60, 360]


def test_printed_line_delays_the_next_sign():
    clock = ManualClock()
    signs = Signs(clock)
    with signs.doing("counting"):
        assert lines_during(signs, clock, 9.5) == []
        signs.spoke()
        assert lines_during(signs, clock, 9.75) == []
        assert [when for when, _ in lines_during(signs, clock, 0.5)] == [19.5]


def test_terminal_shows_the_work_in_a_line_that_output_erases(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(module.sys, "stdout", terminal)
    monkeypatch.setattr(module, "_SILENT", 0.0)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.005)
    with Signs().speaking("starting"):
        wait_for_text(terminal, "Starting… (0 s)")
        print("ready")
        wait_for_text(terminal, "ready")
    assert module.sys.stdout is terminal
    shown = terminal.getvalue()
    assert "\r\033[Kready\n" in shown and shown.count("\n") == 1
    assert shown.rpartition("\n")[2] == "" or shown.endswith("\r\033[K")


def wait_for_text(stream, text):
    deadline = time.monotonic() + 60
    while text not in stream.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_innermost_work_is_named():
    clock = ManualClock()
    signs = Signs(clock)
    assert lines_during(signs, clock, 20) == []
    with signs.doing("all of it"):
        with signs.doing(lambda: "batch 3 of 9"):
            assert [line for _, line in lines_during(signs, clock, 80)] == ["batch 3 of 9"] * 2
        assert lines_during(signs, clock, 61)[0][1].startswith("All of it… (")
    assert lines_during(signs, clock, 20) == []


def test_thread_prints_while_the_work_is_silent(monkeypatch):
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "NOTICEABLE", 0.05)
    signs, outer, inner = Signs(), [], []
    with signs.speaking("starting", outer.append):
        wait_for(outer)
        # A run inside a command that already prints: the innermost function prints the innermost work.
        with signs.speaking("working", inner.append):
            wait_for(inner)
    assert outer[0].startswith("Starting… (") and inner[0].startswith("Working… (")
    count = len(outer)
    time.sleep(0.2)
    assert len(outer) == count, "the thread has ended"


def wait_for(lines, seconds=120):
    deadline = time.monotonic() + seconds
    while not lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_progress_counts_as_output():
    clock = ManualClock()
    signs = Signs(clock)
    before = module.SIGNS
    module.SIGNS = signs
    try:
        with signs.doing("preparing text"):
            clock.now += 9.75
            ProgressLine(Terminal())("preparing text", 5, 10)
            assert lines_during(signs, clock, 9.75) == []
    finally:
        module.SIGNS = before
