"""Feed mutated inputs to a reader. Each must be read or refused cleanly; anything else is a finding.

A clean refusal is a ValueError of ours whose printable message names the file, or an OSError with a file name. A reader
must not run code, start a process, open a connection, or open a file outside the input's folder; an input may take
10 s of CPU time and 1 GB.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzzing_readers import Reader

from bertjax.cli.advice import error_message

MOST_SECONDS, MOST_BYTES = 10, 1 << 30
_WARMING = 20  # warm-up inputs, which do not count
_POOL = 200  # inputs that are kept to be mutated further
_TRUSTED = (
    *map(os.path.realpath, (sys.prefix, sys.base_prefix, Path(__file__).parents[2])),
    *("/usr/", "/etc/localtime", "/dev/null", "/dev/urandom", "/proc/", "/sys/"),
)
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.kill",
)
_WRITING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree")


class Forbidden(BaseException):
    """Raised when a reader does something forbidden."""


class TooSlow(BaseException):
    """Raised when a reader takes longer than `MOST_SECONDS`."""


class _Watch:
    """An audit hook that watches one folder at a time; Python cannot remove audit hooks."""

    def __init__(self) -> None:
        self.folder = ""
        self.violation = ""  # the first forbidden action, recorded even if the reader catches the exception
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and not self._may_open(os.fsdecode(path), flags):
                self._forbid(f"opens {os.fsdecode(path)!r}")
        elif event in _FORBIDDEN:
            self._forbid(event)
        elif event in _WRITING and not self._is_inside(os.fsdecode(arguments[0])):
            self._forbid(f"{event} of {os.fsdecode(arguments[0])!r}")
        elif event == "exec" and not self._may_run(str(getattr(arguments[0], "co_filename", ""))):
            self._forbid(f"runs code of {getattr(arguments[0], 'co_filename', '?')!r}")

    def _is_inside(self, path: str) -> bool:
        return os.path.realpath(path).startswith(self.folder)

    def _may_open(self, path: str, flags: int) -> bool:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and path != os.devnull
        return self._is_inside(path) or (not writes and os.path.realpath(path).startswith(_TRUSTED))

    def _may_run(self, origin: str) -> bool:
        """Allow late imports, and the code that the standard library generates for classes."""
        caller = sys._getframe(2).f_globals.get("__name__")
        return origin.startswith((*_TRUSTED, "<frozen")) or caller in ("collections", "dataclasses", "typing", "enum")

    def _forbid(self, what: str) -> None:
        self.violation = self.violation or what
        raise Forbidden(what)


_watch: _Watch | None = None


@contextlib.contextmanager
def _watching(folder: Path) -> Iterator[_Watch]:
    global _watch
    _watch = _watch or _Watch()
    _watch.folder, _watch.violation = f"{folder.resolve()}", ""
    before = signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield _watch
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before or signal.SIG_DFL)
        _watch.folder = ""


def _ring(*_: object) -> None:
    raise TooSlow


@dataclass
class Tally:
    """The outcomes of a reader's inputs."""

    name: str
    inputs: int = 0
    refused: int = 0
    read: int = 0
    slowest: float = 0.0  # seconds of CPU time
    memory: int = 0  # peak growth of the process in bytes, beyond the 30 MB or so that its heap has free
    findings: dict[str, str] = field(default_factory=dict)  # problem and location -> file of the first input


class Trial:
    """Runs a reader on mutated inputs in a folder of its own."""

    def __init__(self, reader: Reader, folder: Path, findings: Path) -> None:
        """Read the seeds, which the reader must accept. Later findings are written to the folder `findings`."""
        # Collect earlier garbage now: its warnings and its time must not count for a reader.
        gc.collect()
        gc.freeze()
        self.reader, self.folder, self.findings = reader, folder, findings
        self.tally = Tally(reader.name)
        self.seeds = reader.seeds()
        self._pool = list(self.seeds)
        self._messages: set[str] = set()
        self._renew()
        changed = (reader.mutation(self.seeds[n % len(self.seeds)], Random(n), self.seeds) for n in range(_WARMING))
        for content in (*self.seeds, *changed):
            error = self._warm_up(content)  # completes late imports before the watch begins
            assert error is None or content not in self.seeds, (reader.name, error)

    def _warm_up(self, content: bytes) -> Exception | None:
        self._path.write_bytes(content)
        try:
            self.reader.read(self._path)
        except Exception as error:  # counted inputs will raise it again
            return error
        finally:
            self._renew()
        return None

    @property
    def _path(self) -> Path:
        return self.folder / self.reader.file

    def _renew(self) -> None:
        """Recreate the folder with only the files that accompany the input."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.reader.beside(self.folder)

    def run(self, numbers: Iterable[int], seed: int) -> Tally:
        """Try numbered inputs; input n depends on reader, seed and n, and on the inputs read before."""
        for number in numbers:
            draw = Random(f"{self.reader.name} {seed} {number}")
            self.try_input(self.mutate(draw.choice(self._pool), draw))
        return self.tally

    def mutate(self, content: bytes, draw: Random) -> bytes:
        """Mutate an input with the reader's own mutation."""
        return self.reader.mutation(content, draw, self._pool)

    def try_input(self, content: bytes) -> None:
        """Read one input and count the outcome."""
        self._path.write_bytes(content)
        _forget_peak()
        base, begun = _peak(), time.process_time()
        tally, error = self.tally, None
        try:
            with _watching(self.folder) as watch:
                self.reader.read(self._path)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a Rust panic is not an Exception
            error = raised
        seconds, grown = time.process_time() - begun, _peak() - base
        tally.inputs += 1
        tally.slowest, tally.memory = max(tally.slowest, seconds), max(tally.memory, grown)
        if watch.violation:
            self._report(content, f"forbidden: {watch.violation}", error)
        elif seconds > MOST_SECONDS:
            self._report(content, "too slow", error)
        elif grown > MOST_BYTES:
            self._report(content, "too much memory", error)
        elif error is None:
            tally.read += 1
            self._keep(content, "read", draw_from=tally.read)
        elif what := unclean(error, self.folder):
            self._report(content, what, error)
        else:
            tally.refused += 1
            self._keep(content, _error_location(error), draw_from=tally.inputs)
        if tally.inputs % 1000 == 0:
            self._renew()

    def _keep(self, content: bytes, place: str, draw_from: int) -> None:
        """Add an input to the pool if it was refused at a new location, or occasionally if it was read."""
        is_new = place not in self._messages
        self._messages.add(place)
        if len(content) < 1 << 16 and (is_new or (place == "read" and draw_from % 20 == 0)):
            self._pool.append(content)
            if len(self._pool) > _POOL:
                del self._pool[len(self.seeds) + draw_from % (_POOL - len(self.seeds))]

    def _report(self, content: bytes, what: str, error: BaseException | None) -> None:
        what = f"{what} at {_error_location(error)}" if error is not None else what
        if what not in self.tally.findings:
            self.findings.mkdir(parents=True, exist_ok=True)
            name = f"{self.reader.name.replace(' ', '_')}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"
            (self.findings / name).write_bytes(content)
            details = "".join(traceback.format_exception(error)) if error is not None else what
            (self.findings / f"{name}.txt").write_text(f"{what}\n{details}", errors="backslashreplace")
            self.tally.findings[what] = str(self.findings / name)


def unclean(error: BaseException, folder: Path) -> str:
    """Why an exception is not a clean refusal; "" if it is one."""
    kind, message = type(error), error_message(error)
    named = f"{kind.__name__}: {message[:200]!r}"
    if isinstance(error, OSError):
        return "" if error.filename else f"an OSError without a file, {named}"
    if not isinstance(error, ValueError) or not (kind is ValueError or kind.__module__.startswith("bertjax.")):
        return named
    if str(folder) not in message:
        return f"does not name the file, {named}"
    if not all(character.isprintable() or character == "\n" for character in message):
        return f"not printable, {named}"
    return ""


def _error_location(error: BaseException) -> str:
    """The innermost line of our code in a traceback, and the exception's type."""
    lines = [
        (path.rpartition("/bertjax/")[2], line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "/bertjax/" in (path := frame.f_code.co_filename) and "/tests/" not in path
    ]
    where = "{}:{}".format(*lines[-1]) if lines else "?"
    return f"{where} {type(error).__name__}"


def _forget_peak() -> None:
    """Reset the peak memory, if the kernel supports it (proc_pid_clear_refs, 5)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")


def _peak() -> int:
    """Peak memory of the process in bytes; unlike getrusage, without its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
