"""The heartbeat: the processes of a run report to each other that they are alive, their progress, and where to stop.

Process 0 has a connection to each of the others and relays messages. JAX's own service is not used for this: it notices
a dead process only after its heartbeat interval and a hanging one never, and its error does not name the lost process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

from bertjax.runtime.agreement import Agreement, Status
from bertjax.runtime.rendezvous import Meeting, Message

# 75 is EX_TEMPFAIL of sysexits.h: run the same command again. 130 is what a shell reports for Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
LOST = 75  # another process ended or hangs; the same command, started again everywhere, resumes the run
FAILED = 1

_BEAT = 1.0  # seconds between two heartbeats
_UNWIND_SECONDS = 5.0  # for the main thread to end by itself, before the process is ended
_FAREWELL_SECONDS = 2.0  # for the last message to arrive
_PATIENCE_AT_REST = 3  # times the heartbeat: preparation and compilation can keep a thread from sending


class Heartbeat:
    """The listening thread of a process, and its interface to the working thread.

    The listening thread calls `end(message, exit code)` to end the process. If the working thread may end by itself, it
    calls `unwind` before that.
    """

    def __init__(
        self,
        number: int,
        meeting: Meeting,
        heartbeat: float,
        agreement: Agreement,
        end: Callable[[str, int], None],
        unwind: Callable[[], None],
    ) -> None:
        self.number, self.names, self.count = number, meeting.names, len(meeting.names)
        self.agreement, self._lines, self._heartbeat = agreement, meeting.lines, heartbeat
        self._end, self._unwind = end, unwind
        self.stop_signal: signal.Signals | None = None  # the signal that a process received
        self.at_rest = "stopped by a signal before the first step; nothing is lost"
        self._changed = threading.Condition()
        self._gathering: dict[int, dict[int, tuple[str, str]]] = {}
        self._gathered: dict[int, list[str]] = {}
        self._round = 0
        self._statuses: dict[int, Status] = {}
        self._gone: set[int] = set()  # processes that announced their end
        self._hung_up: set[int] = set()  # processes whose connection is closed
        self._ending = self._closing = False
        self._interrupts = 0
        self._timers: list[threading.Timer] = []
        self._answers: dict[int, Status] = {}
        self.unwinding = False  # the main thread is to raise Stopped when it sees a signal
        self._decided = False
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._listen_on, name="heartbeat", daemon=True)

    @property
    def wake(self) -> socket.socket:
        """A byte that is written here is the number of a signal that this process received."""
        return self._wake

    def start(self) -> None:
        """Start the listening thread."""
        now = time.monotonic()
        for line in self._lines.values():
            line.heard = now
        self._thread.start()

    def gather(self, what: str, value: str) -> list[str]:
        """The values of all processes, by number; waits for all, without a limit, unless one is lost.

        All processes must gather the same things in the same order.
        """
        if self.count == 1:
            return [value]
        with self._changed:
            turn, self._round = self._round, self._round + 1
        message = {"is": "gather", "turn": turn, "what": what, "value": value}
        if self.number == 0:
            self._collect(0, message)
        else:
            self._lines[0].send(message)
        with self._changed:
            self._changed.wait_for(lambda: turn in self._gathered)
            return self._gathered.pop(turn)

    def fail(self, why: str, code: int = FAILED) -> None:
        """Report to the others that this process ends with an error; they end too, with the same exit code."""
        self._ending = True
        self._send({"is": "failed", "process": self.number, "why": why, "code": code})
        self._stay(_FAREWELL_SECONDS * 2)

    def say_goodbye(self) -> None:
        """Report to the others that this process ends without an error."""
        self._ending = True
        self._send({"is": "goodbye"})
        self._stay(_UNWIND_SECONDS + _FAREWELL_SECONDS)

    def close(self) -> None:
        """Announce the end and stop listening."""
        self._ending = True
        self._send({"is": "goodbye"})
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join(_FAREWELL_SECONDS)
        for line in self._lines.values():
            line.close()
        self._wake.close()
        self._woken.close()

    def _stay(self, seconds: float) -> None:
        """Process 0 ends last: when its connections close, the others must have read why."""
        deadline = time.monotonic() + seconds
        while not self.number and len(self._hung_up) < len(self._lines) and time.monotonic() < deadline:
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

    # Everything below runs in the listening thread, except `_collect` and `_send`.

    def _listen_on(self) -> None:
        """Listen until `close`; a process that cannot communicate must not continue."""
        try:
            self._listen()
        except Exception as error:
            if self._closing:
                return
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exception(error)
            why = f"the thread that listens to the other processes failed: {type(error).__name__}: {error}"
            try:
                self.fail(why)
            finally:
                self._end(why, FAILED)

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for number, line in self._lines.items():
                selector.register(line.socket, selectors.EVENT_READ, number)
            beat = 0.0
            while not self._closing:
                for key, _ in selector.select(_BEAT / 2):
                    if key.data is None:
                        self._take_signals()
                    elif not self._receive_from(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now - beat > _BEAT:
                    beat = now
                    self._report_progress()
                    self._look_for_silence(now)
                    self._look_for_hang()

    def _take_signals(self) -> None:
        try:
            numbers = self._woken.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:  # the user does not want to wait for the save
                words, code = "interrupted twice: ended without saving", EXIT_CODES[signal.SIGINT]
                self.fail(words, code)
                self._end(words, code)
            if number in (signal.SIGTERM, signal.SIGINT) and self.stop_signal is None:
                self._request(signal.Signals(number))

    def _request(self, number: signal.Signals) -> None:
        """This process received a signal: request the progress of all processes."""
        if self.number == 0:
            self._request_all(number)
        else:
            self.stop_signal = number
            self._lines[0].send({"is": "request", "signal": int(number)})

    def _receive_from(self, number: int) -> bool:
        messages = self._lines[number].receive()
        if messages is None:
            self._hung_up.add(number)
            if number not in self._gone and not self._ending:
                self._lose(number, "its connection closed: it was killed, or its machine failed")
            return False
        for message in messages:
            handle = getattr(self, f"_handle_{message['is']}")
            handle(number, message)
        return True

    def _handle_alive(self, number: int, message: Message) -> None:
        self._statuses[number] = Status(**message["status"])

    def _handle_gather(self, number: int, message: Message) -> None:
        self._collect(number, message)

    def _handle_gathered(self, number: int, message: Message) -> None:
        self._deliver(message)

    def _handle_goodbye(self, number: int, message: Message) -> None:
        self._gone.add(number)
        if self.number == 0 and self.stop_signal is not None:
            self._decide()

    def _handle_request(self, number: int, message: Message) -> None:
        if self.stop_signal is None:
            self._request_all(signal.Signals(message["signal"]))

    def _handle_stopped(self, number: int, message: Message) -> None:
        """The process received a signal during the rendezvous, before it knew that all had connected."""
        self._gone.add(number)
        self._handle_request(number, message)

    def _handle_ask(self, number: int, message: Message) -> None:
        self.stop_signal = self.stop_signal or signal.Signals(message["signal"])
        status = self.agreement.request_stop()
        self._lines[0].send({"is": "answer", "status": dataclasses.asdict(status)})

    def _handle_answer(self, number: int, message: Message) -> None:
        self._answers[number] = Status(**message["status"])
        self._decide()

    def _handle_settle(self, number: int, message: Message) -> None:
        self._stop(message["last"], message["at_once"])

    def _handle_failed(self, number: int, message: Message) -> None:
        who = message["process"]
        if self.number == 0:
            self._gone.add(who)
            self._send(message, but=who)
        # The delay lets this process report the same error itself, if it occurs here too.
        self._end_in(_FAREWELL_SECONDS, f"{self._called(who)} ended with an error: {message['why']}", message["code"])

    def _handle_lost(self, number: int, message: Message) -> None:
        self._be_lost(message["process"], message["why"])

    def _request_all(self, number: signal.Signals) -> None:
        """Process 0: request the progress of all processes."""
        self.stop_signal = number
        self._answers = {0: self.agreement.request_stop()}
        self._send({"is": "ask", "signal": int(number)})
        self._decide()

    def _decide(self) -> None:
        """Process 0: decide the last unit once all remaining processes have reported their progress."""
        if self._decided or not set(range(self.count)) - self._gone <= self._answers.keys():
            return
        self._decided = True
        last = max(status.units for status in self._answers.values())
        at_once = all(status.resting for status in self._answers.values())
        self._send({"is": "settle", "last": last, "at_once": at_once})
        self._stop(last, at_once)

    def _stop(self, last: int, at_once: bool) -> None:
        self.agreement.settle(last)
        if at_once:
            # The main thread may be in a compiler, which no signal interrupts.
            self._end_in(_UNWIND_SECONDS, self.at_rest, self.exit_code)
            self.unwinding = True
            self._unwind()

    @property
    def exit_code(self) -> int:
        """The exit code of a process that received a request to stop; 0 before that."""
        return EXIT_CODES[self.stop_signal] if self.stop_signal is not None else 0

    def _report_progress(self) -> None:
        status = self.agreement.status()
        self._statuses[self.number] = status
        self._send({"is": "alive", "status": dataclasses.asdict(status)})

    def _look_for_silence(self, now: float) -> None:
        for number, line in self._lines.items():
            working = number in self._statuses and self._statuses[number].doing
            patience = self._heartbeat * (1 if working else _PATIENCE_AT_REST)
            if number not in self._gone and not self._ending and now - line.heard > patience:
                self._lose(number, f"it sent nothing for {now - line.heard:.0f} s")

    def _look_for_hang(self) -> None:
        """Process 0: detect that no process makes progress within its limit, and name the slowest."""
        here = [status for number, status in self._statuses.items() if number not in self._gone]
        if self.number or self.count == 1 or len(here) + len(self._gone) < self.count or self.stop_signal is not None:
            return
        if all(status.doing and status.idle > status.limit for status in here):
            least = min(status.units for status in here)
            behind = [number for number, status in self._statuses.items() if status.units == least]
            idle = min(status.idle for status in here)
            why = f"it hangs: no process made progress for {idle:.0f} s, and it is behind the others, in unit {least}"
            if len(behind) == len(here):
                why = f"all hang in the same step: no process made progress for {idle:.0f} s"
            self._lose(behind[0], why)

    def _lose(self, number: int, why: str) -> None:
        if self.number == 0:
            self._send({"is": "lost", "process": number, "why": why})
        self._be_lost(number, why)

    def _be_lost(self, number: int, why: str) -> None:
        self._ending = True
        if number == self.number:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._hung_up.add(number)  # `_stay` does not wait for it
        whom = "this process" if number == self.number else self._called(number)
        self._stay(_UNWIND_SECONDS)
        self._end(
            f"lost {whom}: {why}. Every process ends with exit code {LOST}; "
            "start all of them again, and the run resumes from its newest checkpoint",
            LOST,
        )

    def _called(self, number: int) -> str:
        return f"process {number} ({self.names[number]})"

    def _end_in(self, seconds: float, words: str, code: int) -> None:
        if self.number == 0:
            seconds += _FAREWELL_SECONDS / 2
        timer = threading.Timer(seconds, self._end, (words, code))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _send(self, message: Message, but: int = -1) -> None:
        for number, line in self._lines.items():
            if number != but and number not in self._gone:
                line.send(message)

    def _collect(self, number: int, message: Message) -> None:
        """Process 0: add the value of one process to a gathering."""
        turn = message["turn"]
        with self._changed:
            said = self._gathering.setdefault(turn, {})
            said[number] = (message["what"], message["value"])
            if len(said) < self.count:
                return
            del self._gathering[turn]
        whats = {what for what, _ in said.values()}
        assert len(whats) == 1, f"processes gather different things: {whats}"
        gathered = {"is": "gathered", "turn": turn, "values": [said[number][1] for number in range(self.count)]}
        self._send(gathered)
        self._deliver(gathered)

    def _deliver(self, message: Message) -> None:
        with self._changed:
            self._gathered[message["turn"]] = message["values"]
            self._changed.notify_all()
