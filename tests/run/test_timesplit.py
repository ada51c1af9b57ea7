"""The split of wall time, with a fake clock."""

import pytest

from bertjax.run.metrics import TimeSplit


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def spend(split, clock, part, seconds):
    with split.measure(part):
        clock.now += seconds


def test_time_split_reports_shares_and_totals():
    clock = Clock()
    split = TimeSplit(clock)
    spend(split, clock, "input_wait", 1.0)
    spend(split, clock, "step", 6.0)
    clock.now += 1.0
    spend(split, clock, "checkpoint", 2.0)
    expected = {"step": 0.6, "input_wait": 0.1, "eval": 0.0, "checkpoint": 0.2, "other": 0.1}
    assert split.window() == pytest.approx({f"time/{part}": share for part, share in expected.items()})

    spend(split, clock, "step", 10.0)
    assert split.window()["time/step"] == 1.0
    assert split.total() == pytest.approx(
        {"step": 16.0, "input_wait": 1.0, "eval": 0.0, "checkpoint": 2.0, "other": 1.0, "wall": 20.0}
    )
    assert split.goodput() == {"goodput/step": 0.8}


def test_time_split_counts_a_part_that_raises():
    clock = Clock()
    split = TimeSplit(clock)
    with pytest.raises(RuntimeError), split.measure("eval"):
        clock.now += 3.0
        raise RuntimeError
    assert split.total()["eval"] == 3.0
