"""Heartbeat: the processes of a run detect lost and hanging processes, and agree on where to stop.

Process 0 is connected to every other process and relays messages. JAX's own service is not used for this: it detects a
dead process only after its heartbeat interval and a hanging process never, and its error does not name the process.

A signal to any process stops all processes at the same unit of work. Collective work is a sequence of units (a training
step, a batch of an evaluation), the same in every process, and no process can finish a unit that another has not begun.
A process calls `begin_unit` before every unit. After a signal, each process reports how many units it has begun, and
waits before beginning another. The largest of these numbers becomes the last unit of all processes. So no process waits
for a device, and none has to abort a unit that it has begun.
"""

from __future__ import annotations

import contextlib
import faulthandler
import selectors
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bertjax.runtime.connections import (
    EXIT_CODES,
    STOPPED_EARLY,
    Contribution,
    Decision,
    Failed,
    Gathered,
    Goodbye,
    Hold,
    Lost,
    Meeting,
    Message,
    Progress,
    Signalled,
)

LOST = 75  # exit code if another process died or hangs; running the same command everywhere resumes the run
FAILED = 1

LONGEST_UNIT = 60.0  # seconds; shorter units never count as a hang
# Seconds for activities without a usual duration: the first units of a stage and a batch of an evaluation, which may
# have to be compiled, and the next batch, for which a new epoch may have to be planned.
LONGEST_OTHER = 1800.0
_HANG_FACTOR = 20  # a unit counts as a hang after this multiple of the usual duration
_REMEMBERED_UNITS = 99  # whose median is the usual duration

_BEAT_SECONDS = 1.0  # between two heartbeats
_UNWIND_SECONDS = 5.0  # for the main thread to exit by itself, before the process is ended
_FAREWELL_SECONDS = 2.0  # for the last message to arrive
PATIENCE_AT_REST = 3  # factor on `patience` at rest, since preparation and compilation can delay heartbeats

Clock = Callable[[], float]


class Agreement:
    """Counts the units of one process; `hold`, `settle` and `progress` are for the listening thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._units = 0
        self._holding = False
        self._last: int | None = None
        self._resting = True
        self._compiling = False
        self._activity, self._since = "", clock()
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_UNITS)
        self.stopped = False  # whether `begin_unit` has returned False

    def mark_resting(self) -> None:
        """Record that no unsaved work is in progress."""
        with self._changed:
            self._resting = True
            self._start("")

    def begin_unit(self, *, first: bool = False, doing: str = "unit") -> bool:
        """Return whether to begin the next unit of collective work: a step, or a batch of an evaluation (`doing`).

        Set `first` if the unit must be compiled and all work before it is saved. Waits while the processes agree on the
        last unit; after it, returns False in all processes. Only activities named "unit" count for the usual duration.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._holding or self._last is not None)
            if self._last is not None and self._units >= self._last:
                self._start("")
                self.stopped = True
                return False
            if first:
                self._durations.clear()  # the units that follow run another program
            elif self._activity == "unit":
                self._durations.append(self._clock() - self._since)
            self._units += 1
            self._resting = self._compiling = first
            self._start("" if first else doing)
            return True

    def mark_dispatched(self) -> None:
        """Record that the current unit has been dispatched to the devices."""
        with self._changed:
            if self._compiling:
                self._resting = self._compiling = False
                self._start("unit")

    @contextmanager
    def taking_time(self, doing: str = "") -> Iterator[None]:
        """Do not count slow work inside as a hang. `doing="input"` is limited to half an hour, other work unlimited."""
        with self._changed:
            before = self._activity
            self._start(doing if before else "")
        yield
        with self._changed:
            self._start(before)

    def hold(self) -> Progress:
        """Begin no further unit until `settle`; returns the progress of this process."""
        with self._changed:
            self._holding = True
        return self.progress()

    def settle(self, last: int) -> None:
        """Set the last unit for all processes."""
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def progress(self) -> Progress:
        """Return the progress of this process."""
        with self._changed:
            limit = LONGEST_OTHER
            if self._activity == "unit" and self._durations:
                limit = max(LONGEST_UNIT, _HANG_FACTOR * statistics.median(self._durations))
            # A unit that is being compiled has not been dispatched, so it can still be dropped.
            units, idle = self._units - self._compiling, self._clock() - self._since
            return Progress(units, self._resting, self._activity, idle, limit, self._holding)

    def _start(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()


class Heartbeat:
    """The listening thread of a process, and its interface for the main thread.

    The listening thread calls `end(message, exit code)` to end the process. If the main thread may exit by itself, it
    calls `unwind` first.
    """

    def __init__(
        self,
        number: int,
        meeting: Meeting,
        patience: float,
        agreement: Agreement,
        end: Callable[[str, int], None],
        unwind: Callable[[], None],
        *,
        clock: Clock = time.monotonic,
        beat: float = _BEAT_SECONDS,
    ) -> None:
        """A process is lost after `patience` seconds of silence; `beat` is the number of seconds between heartbeats."""
        self.number, self.hosts, self.count = number, meeting.hosts, len(meeting.hosts)
        self.agreement, self._lines, self._patience = agreement, meeting.lines, patience
        self._end, self._unwind = end, unwind
        self._clock, self._beat = clock, beat
        self.stop_signal: signal.Signals | None = None  # received by any process
        self.at_rest = STOPPED_EARLY  # the message if a signal stops the run while no work would be lost
        self.unwinding = False  # whether the main thread should raise Stopped at the next signal
        self._changed = threading.Condition()
        self._gathering: dict[int, dict[int, Contribution]] = {}
        self._gathered: dict[int, list[str]] = {}
        self._turn = 0
        self._progress: dict[int, Progress] = {}
        self._heard: dict[int, float] = {}
        self._gone: set[int] = set()  # processes that announced their exit
        self._hung_up: set[int] = set()  # processes whose connection is closed
        self._ending = self._closing = self._decided = False
        self._end_at: tuple[float, str, int] | None = None  # (time, message, exit code)
        self._interrupts = 0
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._listen_or_fail, name="heartbeat", daemon=True)

    @property
    def wake(self) -> socket.socket:
        """Write the numbers of received signals here, one byte each (`signal.set_wakeup_fd`)."""
        return self._wake

    def start(self) -> None:
        """Start the listening thread."""
        self._heard = dict.fromkeys(self._lines, self._clock())
        self._thread.start()

    def gather(self, what: str, value: str) -> list[str]:
        """Gather the values of all processes, ordered by number; waits for all of them without a limit.

        All processes must make the same calls in the same order; `what` names the value.
        """
        if self.count == 1:
            return [value]
        with self._changed:
            turn, self._turn = self._turn, self._turn + 1
        contribution = Contribution(turn, what, value)
        if self.number == 0:
            self._collect(0, contribution)
        else:
            self._lines[0].send(contribution)
        with self._changed:
            self._changed.wait_for(lambda: turn in self._gathered)
            return self._gathered.pop(turn)

    def fail(self, reason: str, code: int = FAILED) -> None:
        """Report to the others that this process exits with an error; they exit with the same code."""
        self._ending = True
        self._send(Failed(self.number, reason, code))
        self._stay(_FAREWELL_SECONDS * 2)

    def say_goodbye(self) -> None:
        """Report to the others that this process exits without an error."""
        self._ending = True
        self._send(Goodbye())
        self._stay(_UNWIND_SECONDS + _FAREWELL_SECONDS)

    def close(self) -> None:
        """Announce the exit and stop listening."""
        self._ending = True
        self._send(Goodbye())
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join(_FAREWELL_SECONDS)
        for line in self._lines.values():
            line.close()
        self._wake.close()
        self._woken.close()

    def describe(self, number: int) -> str:
        """Describe a process by its number and host, for messages."""
        return f"process {number} ({self.hosts[number]})"

    @property
    def exit_code(self) -> int:
        """Exit code after a stop signal; 0 without one."""
        return EXIT_CODES[self.stop_signal] if self.stop_signal is not None else 0

    def _stay(self, seconds: float) -> None:
        """In process 0, wait for the others to exit, because they must read its last message before it exits."""
        deadline = self._clock() + seconds
        while not self.number and len(self._hung_up) < len(self._lines) and self._clock() < deadline:
            if threading.current_thread() is self._thread:
                self._receive_hang_ups()
            time.sleep(0.02)

    def _receive_hang_ups(self) -> None:
        with selectors.DefaultSelector() as selector:
            for number, line in self._lines.items():
                if number not in self._hung_up:
                    selector.register(line.socket, selectors.EVENT_READ, number)
            ready = [key.data for key, _ in selector.select(0)]
        self._hung_up |= {number for number in ready if self._lines[number].receive() is None}

    # Everything below runs in the listening thread, except `_collect`, `_deliver` and `_send`.

    def _listen_or_fail(self) -> None:
        """Listen until `close`. End the process if this fails, because it must not continue unobserved."""
        try:
            self._listen()
        except Exception as error:
            if self._closing:
                return
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exception(error)
            reason = f"the thread that listens to the other processes failed: {type(error).__name__}: {error}"
            try:
                self.fail(reason)
            finally:
                self._end(reason, FAILED)

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for number, line in self._lines.items():
                selector.register(line.socket, selectors.EVENT_READ, number)
            last_beat = 0.0
            while not self._closing:
                for key, _ in selector.select(self._beat / 2):
                    if key.data is None:
                        self._take_signals()
                    elif not self._receive_from(key.data):
                        selector.unregister(key.fileobj)
                if self._end_at is not None and self._clock() >= self._end_at[0]:
                    _, message, code = self._end_at
                    self._end_at = None
                    self._end(message, code)
                if time.monotonic() - last_beat > self._beat:
                    last_beat = time.monotonic()
                    self._progress[self.number] = self.agreement.progress()
                    self._send(self._progress[self.number])
                    self._look_for_silence()
                    self._look_for_hang()

    def _take_signals(self) -> None:
        try:
            numbers = self._woken.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:  # the user does not want to wait for the save
                message, code = "interrupted twice: exited without saving", EXIT_CODES[signal.SIGINT]
                self.fail(message, code)
                self._end(message, code)
            if number in (signal.SIGTERM, signal.SIGINT) and self.stop_signal is None:
                if self.number == 0:
                    self._hold_all(number)
                else:
                    self.stop_signal = signal.Signals(number)
                    self._lines[0].send(Signalled(number))

    def _receive_from(self, number: int) -> bool:
        messages = self._lines[number].receive()
        if messages is None:
            self._hung_up.add(number)
            if number not in self._gone and not self._ending:
                self._lose(number, "its connection closed; it was killed, or its machine failed")
            return False
        self._heard[number] = self._clock()
        for message in messages:
            self._handle(number, message)
        return True

    def _handle(self, number: int, message: Message) -> None:
        match message:
            case Progress():
                self._progress[number] = message
                if self.number == 0 and message.holding:
                    self._decide()
            case Contribution():
                self._collect(number, message)
            case Gathered(turn):
                self._deliver(turn, message.unpack())
            case Goodbye():
                self._gone.add(number)
                if self.number == 0 and self.stop_signal is not None:
                    self._decide()
            case Signalled(received, leaving):
                if leaving:  # it received the signal during the rendezvous, before Complete arrived
                    self._gone.add(number)
                if self.stop_signal is None:
                    self._hold_all(received)
            case Hold(received):
                self.stop_signal = self.stop_signal or signal.Signals(received)
                self._lines[0].send(self.agreement.hold())
            case Decision(last, at_once):
                self._stop(last, at_once)
            case Failed(process, reason, code):
                if self.number == 0:
                    self._gone.add(process)
                    self._send(message, but=process)
                # The delay lets this process report the error itself if it occurs here too.
                self._end_in(_FAREWELL_SECONDS, f"{self.describe(process)} ended with an error: {reason}", code)
            case Lost(process, reason):
                self._end_lost(process, reason)
            case _:
                raise TypeError(f"unexpected message from process {number}: {message}")

    def _hold_all(self, number: int) -> None:
        """Process 0: make all processes wait, and request their progress."""
        self.stop_signal = signal.Signals(number)
        self._progress[0] = self.agreement.hold()
        self._send(Hold(number))
        self._decide()

    def _decide(self) -> None:
        """Process 0: decide on the last unit once all remaining processes wait."""
        waiting = {number: progress for number, progress in self._progress.items() if progress.holding}
        if self._decided or not set(range(self.count)) - self._gone <= waiting.keys():
            return
        self._decided = True
        last = max(progress.units for progress in waiting.values())
        at_once = all(progress.resting for progress in waiting.values())
        self._send(Decision(last, at_once))
        self._stop(last, at_once)

    def _stop(self, last: int, at_once: bool) -> None:
        self.agreement.settle(last)
        if at_once:
            # The main thread may be in a compiler, which signals do not interrupt.
            self._end_in(_UNWIND_SECONDS, self.at_rest, self.exit_code)
            self.unwinding = True
            self._unwind()

    def _look_for_silence(self) -> None:
        now = self._clock()
        for number, heard in self._heard.items():
            is_working = number in self._progress and self._progress[number].activity
            patience = self._patience * (1 if is_working else PATIENCE_AT_REST)
            if number not in self._gone and not self._ending and now - heard > patience:
                self._lose(number, f"it sent nothing for {now - heard:.0f} s")

    def _look_for_hang(self) -> None:
        """Process 0: detect that all processes exceed their limits, and name the slowest."""
        present = {number: progress for number, progress in self._progress.items() if number not in self._gone}
        if self.number or self.count == 1 or self.stop_signal is not None:
            return
        if len(present) + len(self._gone) < self.count:
            return
        if all(progress.activity and progress.idle > progress.limit for progress in present.values()):
            least = min(progress.units for progress in present.values())
            behind = [number for number, progress in present.items() if progress.units == least]
            idle = min(progress.idle for progress in present.values())
            reason = (
                f"it hangs: no process made progress for {idle:.0f} s, and it is behind the others, at unit {least}"
            )
            if len(behind) == len(present):
                reason = f"all hang in the same step: no process made progress for {idle:.0f} s"
            self._lose(behind[0], reason)

    def _lose(self, number: int, reason: str) -> None:
        if self.number == 0:
            self._send(Lost(number, reason))
        self._end_lost(number, reason)

    def _end_lost(self, number: int, reason: str) -> None:
        self._ending = True
        if number == self.number:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._hung_up.add(number)  # `_stay` does not wait for it
        whom = "this process" if number == self.number else self.describe(number)
        self._stay(_UNWIND_SECONDS)
        self._end(
            f"lost {whom}: {reason}. Every process exits with code {LOST}; "
            "start all of them again to resume the run from its newest checkpoint",
            LOST,
        )

    def _end_in(self, seconds: float, message: str, code: int) -> None:
        """End the process after some seconds, unless it exits before. The earliest of several calls counts."""
        end_at = self._clock() + seconds + (_FAREWELL_SECONDS / 2 if self.number == 0 else 0)
        if self._end_at is None or end_at < self._end_at[0]:
            self._end_at = end_at, message, code

    def _send(self, message: Message, but: int = -1) -> None:
        for number, line in self._lines.items():
            if number != but and number not in self._gone:
                line.send(message)

    def _collect(self, number: int, contribution: Contribution) -> None:
        """Process 0: add the value of one process to a gather, and send the result once it is complete."""
        turn = contribution.turn
        with self._changed:
            contributions = self._gathering.setdefault(turn, {})
            contributions[number] = contribution
            if len(contributions) < self.count:
                return
            del self._gathering[turn]
        kinds = {entry.what for entry in contributions.values()}
        assert len(kinds) == 1, f"processes gather different things: {kinds}"
        values = [contributions[number].value for number in range(self.count)]
        self._send(Gathered.pack(turn, values))
        self._deliver(turn, values)

    def _deliver(self, turn: int, values: list[str]) -> None:
        with self._changed:
            self._gathered[turn] = values
            self._changed.notify_all()
