"""Processes that talk: who is there, what becomes of one that is lost or hangs, and where a signal stops all of them.

Here threads play the processes, over real connections; `tests/run/test_hosts.py` has real ones.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import bertjax
from bertjax.runtime import agreement as rules
from bertjax.runtime import rendezvous as meetings
from bertjax.runtime.agreement import Agreement
from bertjax.runtime.clusters import ProcessInfo
from bertjax.runtime.heartbeat import FAILED, LOST, Heartbeat
from bertjax.runtime.rendezvous import Line, Meeting, StoppedElsewhere, _greeting, rendezvous


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def in_threads(tasks: list[Callable[[], object]]) -> list[object]:
    """What each returns or raises."""
    results: list[object] = [None] * len(tasks)

    def run(index: int) -> None:
        try:
            results[index] = tasks[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def join_all(address: str, count: int, numbers: list[int], seconds: float = 30) -> list[object]:
    """What the meeting call gives to each of these processes."""
    infos = [ProcessInfo("address", address, count, number) for number in numbers]
    return in_threads([lambda info=info: rendezvous(info, f"host-{info.process}", seconds) for info in infos])


class Clock:
    """A clock for processes that are threads here. It stands still until a test moves it, however slow the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    sleep = staticmethod(time.sleep)


@pytest.fixture
def clock_of_units(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which a hang is told."""
    made = Clock()
    monkeypatch.setattr(rules, "time", made)
    return made


@pytest.fixture
def process_2_has_come(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when process 0 has process 2 on its list."""
    come, hear = threading.Event(), meetings._handle

    def heard(meeting: Meeting, line: Line, info: ProcessInfo) -> bool:
        goes_on = hear(meeting, line, info)
        if 2 in meeting.lines:
            come.set()
        return goes_on

    monkeypatch.setattr(meetings, "_handle", heard)
    return come


def joining_in_background(address: str, count: int) -> tuple[threading.Thread, list[object]]:
    """Processes 0 and 2 of so many; what the meeting call gives them is in the list once the thread has ended."""
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.extend(join_all(address, count, [0, 2])))
    thread.start()
    return thread, outcomes


def test_all_come() -> None:
    meetings_of_all = join_all(free_address(), 4, [3, 1, 0, 2])
    assert all(isinstance(meeting, Meeting) for meeting in meetings_of_all), meetings_of_all
    assert {tuple(meeting.names) for meeting in meetings_of_all} == {("host-0", "host-1", "host-2", "host-3")}
    for meeting in meetings_of_all:
        for line in meeting.lines.values():
            line.close()


def test_who_never_comes_is_named_to_all_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    address, hear, clock = free_address(), meetings._handle, Clock()

    def heard(meeting: Meeting, line: Line, info: ProcessInfo) -> bool:
        goes_on = hear(meeting, line, info)
        if {1, 4} <= meeting.lines.keys():
            clock.now = 50.0
        return goes_on

    monkeypatch.setattr(meetings, "_handle", heard)
    monkeypatch.setattr(meetings, "time", clock)
    outcomes = join_all(address, 5, [0, 1, 4], seconds=40)
    for error in outcomes:
        assert isinstance(error, TimeoutError)
        assert f"of 5 processes, 2, 3 did not connect to {address} within 40 s" in str(error)
        assert "0 (host-0), 1 (host-1), 4 (host-4)" in str(error)


def test_a_coordinator_that_nobody_is_at_is_named() -> None:
    address = free_address()
    with pytest.raises(TimeoutError, match=rf"process 2 of 3: nothing answers at {address}"):
        rendezvous(ProcessInfo("address", address, 3, 2), "host", 1)


@pytest.mark.parametrize(("numbers", "words"), [([0, 1, 1], "process 1 connected twice"), ([0, 7], "process 7 of 3")])
def test_numbers_that_cannot_be(numbers: list[int], words: str) -> None:
    outcomes = join_all(free_address(), 3, numbers)
    assert any(isinstance(error, ValueError) and words in str(error) for error in outcomes), outcomes


@pytest.mark.parametrize("words", [b"", b"\x00\x00\x12\x04\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_left_of_an_earlier_job_is_not_taken_for_process_0(words: bytes) -> None:
    address = free_address()
    host, port = address.split(":")

    def remains() -> None:
        with socket.create_server((host, int(port))) as listener:
            for _ in range(2):
                with listener.accept()[0] as line:
                    line.recv(1 << 16)
                    line.sendall(words)

    def first() -> object:
        earlier.join(5)
        return rendezvous(ProcessInfo("address", address, 2, 0), "host-0", 10)

    earlier = threading.Thread(target=remains, daemon=True)
    earlier.start()
    meetings_of_all = in_threads([first, lambda: rendezvous(ProcessInfo("address", address, 2, 1), "host-1", 10)])
    assert [meeting.names for meeting in meetings_of_all] == [["host-0", "host-1"]] * 2


def test_what_never_becomes_process_0_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=f"what answers at {address} is not process 0 of this job"):
            rendezvous(ProcessInfo("address", address, 2, 1), "host", 1)


def test_another_version_is_refused(process_2_has_come: threading.Event) -> None:
    address = free_address()
    joining, outcomes = joining_in_background(address, 3)
    assert process_2_has_come.wait(60)
    line = Line(socket.create_connection(address.split(":")))
    line.send(_greeting(ProcessInfo("address", address, 3, 1), "old-host") | {"version": "0.0.7"})
    joining.join()
    line.close()
    assert len(outcomes) == 2
    for error in outcomes:
        assert isinstance(error, ValueError)
        words = f"process 1 on old-host is bertjax 0.0.7, process 0 on host-0 {bertjax.__version__}; install the same"
        assert words in str(error)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen at {address}"):
            rendezvous(ProcessInfo("address", address, 2, 0), "host", 1)


def test_a_stranger_and_one_that_died_and_came_again() -> None:
    address = free_address()
    host, port = address.split(":")

    def disturb() -> None:
        for words in (
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"is": "nonsense"}\n',
            json.dumps(_greeting(ProcessInfo("address", address, 3, 1), "early")).encode() + b"\n",
        ):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    with socket.create_connection((host, int(port))) as stranger:
                        stranger.sendall(words)
                        time.sleep(0.1)
                    break
                time.sleep(0.05)

    infos = [ProcessInfo("address", address, 3, number) for number in range(3)]
    first = threading.Thread(target=disturb)
    first.start()
    tasks = [lambda: rendezvous(infos[0], "host-0", 30)]
    tasks += [lambda info=info: (first.join(), rendezvous(info, "late", 30))[1] for info in infos[1:]]
    meetings_of_all = in_threads(tasks)
    assert [meeting.names for meeting in meetings_of_all] == [["host-0", "late", "late"]] * 3


def test_a_signal_during_the_rendezvous_reaches_all(process_2_has_come: threading.Event) -> None:
    address = free_address()
    joining, outcomes = joining_in_background(address, 4)
    assert process_2_has_come.wait(60)
    line = Line(socket.create_connection(address.split(":")))
    line.send(_greeting(ProcessInfo("address", address, 4, 1), "host-1"))
    line.send({"is": "stopped", "signal": 15})
    joining.join()
    line.close()
    assert [type(error) for error in outcomes] == [StoppedElsewhere] * 2


SILENCE = 600.0  # seconds; more than any thread here is kept waiting


class Crew:
    """The heartbeats of several processes, as threads of one, and how each ended."""

    def __init__(self, count: int) -> None:
        meetings_of_all = join_all(free_address(), count, list(range(count)))
        self.ends: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        self.agreements = [Agreement() for _ in range(count)]
        self.unwound: list[int] = []
        self.heartbeats = [
            Heartbeat(
                number,
                meeting,
                SILENCE,
                self.agreements[number],
                lambda words, code, number=number: self.ends[number].append((words, code)),
                lambda number=number: self.unwound.append(number),
            )
            for number, meeting in enumerate(meetings_of_all)
        ]
        for one in self.heartbeats:
            one.start()

    def endings(self, of: list[int], seconds: float = 60) -> list[tuple[str, int]]:
        """What these were ended with, at the latest after so long."""
        deadline = time.monotonic() + seconds
        while not all(self.ends[number] for number in of) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [self.ends[number][0] if self.ends[number] else ("", 0) for number in of]


@contextlib.contextmanager
def crew(count: int) -> Iterator[Crew]:
    made = Crew(count)
    try:
        yield made
    finally:
        for one in reversed(made.heartbeats):
            one.close()


def test_gather_gives_all_what_each_says() -> None:
    with crew(3) as three:
        for turn in "abc":
            said = in_threads([partial(one.gather, "x", f"{turn}{one.number}") for one in three.heartbeats])
            assert said == [[f"{turn}0", f"{turn}1", f"{turn}2"]] * 3


def test_a_long_message_arrives_and_one_that_is_too_long_is_named() -> None:
    here, there = map(Line, socket.socketpair())
    message = {"is": "gathered", "what": "the log", "value": "x" * (5 << 20)}
    sending = threading.Thread(target=here.send, args=(message,), daemon=True)
    sending.start()
    heard: list[object] = []
    while not heard:
        messages = there.receive()
        assert messages is not None, "taken for a closed connection"
        heard += messages
    assert heard == [message]
    with pytest.raises(ValueError, match=r"a message to another process \(the log\) has 67,1\d\d,\d\d\d bytes"):
        here.send(message | {"value": "x" * (64 << 20)})
    here.close(), there.close()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_closed_connection_is_a_lost_process(victim: int) -> None:
    with crew(3) as three:
        three.heartbeats[victim]._send = lambda *_, **__: None  # the dead say nothing
        for line in three.heartbeats[victim]._lines.values():  # what the system does for a killed process
            line.socket.shutdown(socket.SHUT_RDWR)
        others = [number for number in range(3) if number != victim]
        for words, code in three.endings(others):
            assert f"lost process {victim} (host-{victim})" in words and code == LOST


def test_one_that_says_goodbye_is_not_lost() -> None:
    with crew(3) as three:
        three.heartbeats[2].close()
        time.sleep(1.5)
        assert three.ends == [[], [], []]


def test_a_silent_process_is_lost() -> None:
    with crew(3) as three:
        three.heartbeats[1]._send = lambda *_, **__: None
        heard_by_0 = three.heartbeats[0]._lines[1]
        while not three.ends[0]:  # a message that was under way may come once more
            heard_by_0.heard = time.monotonic() - 3 * SILENCE - 1  # at rest it is three times as patient
            time.sleep(0.02)
        for words, code in three.endings([0, 2]):
            assert "lost process 1 (host-1): it sent nothing for" in words and code == LOST


@pytest.mark.parametrize("code", [FAILED, 2])
def test_an_error_of_one_ends_all(code: int) -> None:
    with crew(3) as three:
        three.heartbeats[1].fail("the disk is full", code)
        for words, ended in three.endings([0, 2]):
            assert "process 1 (host-1) ended with an error: the disk is full" in words and ended == code


def test_who_will_not_wait_for_the_save_ends_all() -> None:
    with crew(3) as three:
        for agreement in three.agreements:
            agreement.go_on()
        three.heartbeats[1].wake.send(bytes([signal.SIGINT, signal.SIGINT]))
        for words, code in three.endings([0, 1, 2]):
            assert "interrupted twice" in words and code == 130


def test_a_process_that_cannot_listen_any_more_ends_all() -> None:
    with crew(3) as three:
        three.heartbeats[2]._lines[0].send({"is": "nothing known"})
        own, *others = three.endings([0, 1, 2])
        assert "the thread that listens to the other processes failed: AttributeError" in own[0] and own[1] == FAILED
        for words, code in others:
            assert "process 0 (host-0) ended with an error: the thread that listens" in words and code == FAILED


def work(
    agreement: Agreement,
    number: int,
    begun: list[int],
    rng: random.Random,
    stuck_at: int = -1,
    over: threading.Event | None = None,
) -> int:
    """Units that end only when all have begun them, run ahead by two; how many were done.

    One that is stuck stays so until the test is `over`, and so do those that wait for it.
    """
    units, over = 0, over or threading.Event()
    while units < 10_000 and agreement.go_on(first=units == 0):
        begun[number] = units = units + 1
        agreement.begun()
        if units == stuck_at:
            over.wait()
            return units
        time.sleep(rng.choice([0, 0, 0.001, 0.004]))
        while min(begun) < units - 2:  # the devices of the others
            if over.wait(0.0005):
                return -1
    return units


@pytest.mark.parametrize("seed", range(6))
def test_a_signal_to_any_stops_all_at_the_same_unit(seed: int) -> None:
    rng = random.Random(seed)
    begun = [0, 0, 0]
    with crew(3) as three:

        def strike() -> None:
            unit = rng.randrange(1, 150)
            while min(begun) < unit:
                time.sleep(0.0005)
            for _ in range(rng.choice([1, 3])):
                three.heartbeats[rng.randrange(3)].wake.send(bytes([signal.SIGTERM]))

        workers = [
            lambda number=number: work(three.agreements[number], number, begun, random.Random(seed * 3 + number))
            for number in range(3)
        ]
        done = in_threads([*workers, strike])[:3]
        assert len(set(done)) == 1 and 0 < done[0] < 10_000, done
        assert {one.exit_code for one in three.heartbeats} == {75}
        assert three.unwound == [] and three.ends == [[], [], []]


def test_a_signal_when_nothing_was_begun_ends_all_at_once() -> None:
    with crew(3) as three:
        three.agreements[0].go_on(first=True)  # compiling
        three.heartbeats[1].wake.send(bytes([signal.SIGINT]))
        deadline = time.monotonic() + 60
        while len(three.unwound) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(three.unwound) == [0, 1, 2]
        assert {one.exit_code for one in three.heartbeats} == {130}


def test_a_hang_names_who_is_behind(clock_of_units: Clock) -> None:
    begun, over = [0, 0, 0], threading.Event()
    with crew(3) as three:
        workers = [
            lambda number=number: work(
                three.agreements[number], number, begun, random.Random(number), 40 if number == 1 else -1, over
            )
            for number in range(3)
        ]
        threads = [threading.Thread(target=worker, daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        while begun != [43, 40, 43]:
            time.sleep(0.01)
        clock_of_units.now += rules.LONGEST_UNIT + 1
        for words, code in three.endings([0, 2]):
            assert "lost process 1 (host-1): it hangs" in words and code == LOST
        over.set()
        for thread in threads:
            thread.join()


def test_a_unit_is_measured_by_those_like_it() -> None:
    """The first of a stage, and what an evaluation does, have none to be measured by."""
    agreement = Agreement()
    for _ in range(2):  # stages
        for unit in range(5):
            agreement.go_on(first=unit == 0)
            agreement.begun()
            assert agreement.status().limit == (rules.LONGEST_UNIT if unit else rules.LONGEST_OTHER)
    agreement.go_on(doing="evaluation")
    assert agreement.status().limit == rules.LONGEST_OTHER
    usual = list(agreement._usual)
    agreement.go_on()
    assert list(agreement._usual) == usual and agreement.status().limit == rules.LONGEST_UNIT


def test_what_takes_long_by_its_nature_does_not_hang(clock_of_units: Clock) -> None:
    with crew(2) as two:
        for agreement in two.agreements:
            agreement.go_on(first=True)
        clock_of_units.now += 10 * rules.LONGEST_OTHER
        time.sleep(1.5)  # compiling, while they look at each other
        for agreement in two.agreements:
            agreement.begun()
        with two.agreements[0].taking_time(), two.agreements[1].taking_time("input"):
            clock_of_units.now += rules.LONGEST_OTHER - 1
            time.sleep(1.5)
        assert two.ends == [[], []]
