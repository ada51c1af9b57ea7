"""The heartbeat: lost, hanging and failing processes, and the unit at which a signal stops all.

With threads as processes and real connections; `tests/run/test_hosts.py` has real processes.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from threads import Clock, run_in_threads

from bertjax.runtime.connections import Line, Meeting, Progress, Welcome
from bertjax.runtime.heartbeat import FAILED, LONGEST_OTHER, LONGEST_UNIT, LOST, Agreement, Heartbeat

BEAT = 0.05
PATIENCE = 600.0


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Crew:
    """The heartbeats of several processes with one clock; `ends` has the messages and exit codes of each."""

    def __init__(self, count: int, patience: float) -> None:
        self.clock = Clock()
        hosts = [f"host-{number}" for number in range(count)]
        meetings = [Meeting(hosts) for _ in range(count)]
        for number in range(1, count):
            meetings[0].lines[number], meetings[number].lines[0] = map(Line, socket.socketpair())
        self.ends: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        self.unwound: list[int] = []
        self.agreements = [Agreement(self.clock) for _ in range(count)]
        self.heartbeats = [
            Heartbeat(
                number,
                meeting,
                patience,
                self.agreements[number],
                partial(self._end, number),
                partial(self.unwound.append, number),
                clock=self.clock,
                beat=BEAT,
            )
            for number, meeting in enumerate(meetings)
        ]
        for heartbeat in self.heartbeats:
            heartbeat.start()

    def _end(self, number: int, message: str, code: int) -> None:
        self.ends[number].append((message, code))
        self.heartbeats[number].say_goodbye()
        self.hang_up(number)

    def hang_up(self, number: int) -> None:
        """Close the connections of a process, like the system when it exits."""
        for line in self.heartbeats[number]._lines.values():
            with contextlib.suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)

    def wait_for_ends(self, numbers: list[int]) -> list[tuple[str, int]]:
        """Advance the clock until these processes have exited; returns their messages and exit codes."""
        for _ in range(3000):
            if all(self.ends[number] for number in numbers):
                break
            time.sleep(0.02)
            self.clock.now += 0.5
        return [self.ends[number][0] if self.ends[number] else ("", 0) for number in numbers]

    def wait_for_beats(self, count: int = 3) -> None:
        """Wait until every process has sent `count` more heartbeats."""
        for _ in range(count):
            before = [heartbeat._progress.get(number) for number, heartbeat in enumerate(self.heartbeats)]
            for number, heartbeat in enumerate(self.heartbeats):
                wait_until(partial(self._has_beaten, heartbeat, number, before[number]))

    @staticmethod
    def _has_beaten(heartbeat: Heartbeat, number: int, before: Progress | None) -> bool:
        return heartbeat._progress.get(number) is not before


@contextlib.contextmanager
def make_crew(count: int, patience: float = 1e9) -> Iterator[Crew]:
    crew = Crew(count, patience)
    try:
        yield crew
    finally:
        for heartbeat in reversed(crew.heartbeats):
            heartbeat.close()


def test_gather_returns_the_values_of_all() -> None:
    with make_crew(3) as crew:
        for turn in "abc":
            values = run_in_threads([partial(one.gather, "x", f"{turn}{one.number}") for one in crew.heartbeats])
            assert values == [[f"{turn}0", f"{turn}1", f"{turn}2"]] * 3


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_closed_connection_is_a_lost_process(victim: int) -> None:
    with make_crew(3) as crew:
        crew.heartbeats[victim]._send = lambda *_, **__: None  # a dead process sends nothing
        crew.hang_up(victim)
        for message, code in crew.wait_for_ends([number for number in range(3) if number != victim]):
            assert f"lost process {victim} (host-{victim})" in message and code == LOST


def test_process_that_says_goodbye_is_not_lost() -> None:
    with make_crew(3) as crew:
        crew.heartbeats[2].close()
        wait_until(lambda: 2 in crew.heartbeats[0]._hung_up)
        assert crew.ends == [[], [], []]


def test_silent_process_is_lost() -> None:
    with make_crew(3, PATIENCE) as crew:
        crew.heartbeats[1]._send = lambda *_, **__: None
        while not crew.ends[0]:
            crew.clock.now += PATIENCE / 2  # too little for the others to count as silent
            wait_until(
                lambda: (
                    crew.ends[0]
                    or all(crew.heartbeats[here]._heard[there] == crew.clock.now for here, there in ((0, 2), (2, 0)))
                )
            )
        for message, code in crew.wait_for_ends([0, 2]):
            assert "lost process 1 (host-1): it sent nothing for" in message and code == LOST
        assert crew.clock.now > 3 * PATIENCE  # the patience at rest is three times as long


@pytest.mark.parametrize("code", [FAILED, 2])
def test_error_in_one_process_ends_all(code: int) -> None:
    with make_crew(3) as crew:
        crew.heartbeats[1].fail("the disk is full", code)
        for message, ended in crew.wait_for_ends([0, 2]):
            assert "process 1 (host-1) ended with an error: the disk is full" in message and ended == code


def test_second_interrupt_ends_all() -> None:
    with make_crew(3) as crew:
        for agreement in crew.agreements:
            agreement.begin_unit()
        crew.heartbeats[1].wake.send(bytes([signal.SIGINT, signal.SIGINT]))
        for message, code in crew.wait_for_ends([0, 1, 2]):
            assert "interrupted twice" in message and code == 130


def test_failing_listener_ends_all() -> None:
    with make_crew(3) as crew:
        crew.heartbeats[2]._lines[0].send(Welcome())
        (message, code), *others = crew.wait_for_ends([0, 1, 2])
        assert "the thread that listens to the other processes failed: TypeError" in message and code == FAILED
        for message, code in others:
            assert "process 0 (host-0) ended with an error: the thread that listens" in message and code == FAILED


def work(
    agreement: Agreement,
    number: int,
    unit_counts: list[int],
    rng: random.Random,
    stuck_at: int = -1,
    over: threading.Event | None = None,
) -> int:
    """Begin units, at most two ahead of the slowest process; returns their number.

    A worker that is stuck, and those that wait for it, stay so until the test is `over`.
    """
    units, over = 0, over or threading.Event()
    while units < 10_000 and agreement.begin_unit(first=units == 0):
        unit_counts[number] = units = units + 1
        agreement.mark_dispatched()
        if units == stuck_at:
            over.wait()
            return units
        time.sleep(rng.choice([0, 0, 0.001, 0.004]))
        while min(unit_counts) < units - 2:  # like devices that wait for the others
            if over.wait(0.0005):
                return -1
    return units


@pytest.mark.parametrize("seed", range(3))
def test_signal_stops_all_at_the_same_unit(seed: int) -> None:
    rng = random.Random(seed)
    unit_counts = [0, 0, 0]
    with make_crew(3) as crew:

        def strike() -> None:
            unit = rng.randrange(1, 150)
            while min(unit_counts) < unit:
                time.sleep(0.0005)
            for _ in range(rng.choice([1, 3])):
                crew.heartbeats[rng.randrange(3)].wake.send(bytes([signal.SIGTERM]))

        workers = [
            partial(work, crew.agreements[number], number, unit_counts, random.Random(seed * 3 + number))
            for number in range(3)
        ]
        units = run_in_threads([*workers, strike])[:3]
        assert len(set(units)) == 1 and units[0] in range(1, 10_000), units
        assert {heartbeat.exit_code for heartbeat in crew.heartbeats} == {75}
        assert crew.unwound == [] and crew.ends == [[], [], []]


def test_signal_before_the_first_unit_ends_all_at_once() -> None:
    with make_crew(3) as crew:
        crew.agreements[0].begin_unit(first=True)  # compiling
        crew.heartbeats[1].wake.send(bytes([signal.SIGINT]))
        wait_until(lambda: len(crew.unwound) == 3)
        assert sorted(crew.unwound) == [0, 1, 2]
        assert {heartbeat.exit_code for heartbeat in crew.heartbeats} == {130}
        for message, code in crew.wait_for_ends([0, 1, 2]):  # because the main thread has not exited
            assert "prepared text is kept" in message and code == 130


def test_hang_names_the_process_that_is_behind() -> None:
    unit_counts, over = [0, 0, 0], threading.Event()
    with make_crew(3) as crew:
        threads = [
            threading.Thread(
                target=work,
                args=(crew.agreements[n], n, unit_counts, random.Random(n), 40 if n == 1 else -1, over),
                daemon=True,
            )
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: unit_counts == [43, 40, 43])
        crew.clock.now += LONGEST_UNIT + 1
        for message, code in crew.wait_for_ends([0, 2]):
            assert "lost process 1 (host-1): it hangs" in message and code == LOST
        over.set()
        for thread in threads:
            thread.join()


def test_hang_limit_follows_the_duration_of_units() -> None:
    """The first unit of a stage and an evaluation have no usual duration."""
    clock = Clock()
    agreement = Agreement(clock)
    for _ in range(2):  # stages
        for unit in range(5):
            agreement.begin_unit(first=unit == 0)
            agreement.mark_dispatched()
            assert agreement.progress().limit == (LONGEST_UNIT if unit else LONGEST_OTHER)
    agreement.begin_unit(doing="evaluation")
    assert agreement.progress().limit == LONGEST_OTHER
    clock.now += 1000  # does not count for units
    agreement.begin_unit()
    assert agreement.progress().limit == LONGEST_UNIT
    for _ in range(9):
        clock.now += 30
        agreement.begin_unit()
    assert agreement.progress().limit == 20 * 30


def test_work_without_a_limit_does_not_hang() -> None:
    with make_crew(2) as crew:
        for agreement in crew.agreements:
            agreement.begin_unit(first=True)
        crew.clock.now += 10 * LONGEST_OTHER
        crew.wait_for_beats()  # while compiling
        for agreement in crew.agreements:
            agreement.mark_dispatched()
        with crew.agreements[0].taking_time(), crew.agreements[1].taking_time("input"):
            crew.clock.now += LONGEST_OTHER - 1
            crew.wait_for_beats()
        assert crew.ends == [[], []]
