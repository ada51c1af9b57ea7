"""One mutated input after another through a reader, each read or refused cleanly; whatever else happens is a finding.

A clean refusal is a ValueError of ours, or an OSError with a file's name, in printable text that names the file.
Nothing may run code, start a process, open a connection, or open a file outside of the input's folder; an input may
take 10 s of CPU time and 1 GB.
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
_WARMING = 20  # inputs that are not counted
_POOL = 200  # inputs that were read, kept to be mutated further
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
    """A reader did what no reader of a file may do."""


class TooSlow(BaseException):
    """A reader took longer than `MOST_SECONDS`."""


class _Watch:
    """An audit hook, which Python never removes again, on duty for one folder at a time."""

    def __init__(self) -> None:
        self.folder = ""
        self.seen = ""  # the first thing that was forbidden, also where its exception was caught
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
        """Modules that are imported late, and what the standard library makes classes by."""
        caller = sys._getframe(2).f_globals.get("__name__")
        return origin.startswith((*_TRUSTED, "<frozen")) or caller in ("collections", "dataclasses", "typing", "enum")

    def _forbid(self, what: str) -> None:
        self.seen = self.seen or what
        raise Forbidden(what)


_watch: _Watch | None = None


@contextlib.contextmanager
def _on_duty(folder: Path) -> Iterator[_Watch]:
    global _watch
    _watch = _watch or _Watch()
    _watch.folder, _watch.seen = f"{folder.resolve()}", ""
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
    """What came of the inputs of a reader."""

    name: str
    inputs: int = 0
    refused: int = 0
    read: int = 0
    slowest: float = 0.0  # seconds of CPU time
    memory: int = 0  # bytes that the process has grown by, at most; what its heap had free, some 30 MB, is used first
    findings: dict[str, str] = field(default_factory=dict)  # what and where -> the file of the first input


class Trial:
    """A reader in a folder of its own."""

    def __init__(self, reader: Reader, folder: Path, findings: Path) -> None:
        """Read the seeds, which the reader must accept; what goes wrong later is kept in `findings`."""
        gc.collect()  # what others left would be collected, and complained of, in a reader's time
        gc.freeze()  # and is not looked through again
        self.reader, self.folder, self.findings = reader, folder, findings
        self.tally = Tally(reader.name)
        self.seeds = reader.seeds()
        self._pool = list(self.seeds)
        self._messages: set[str] = set()
        self._renew()
        changed = (reader.mutation(self.seeds[n % len(self.seeds)], Random(n), self.seeds) for n in range(_WARMING))
        for content in (*self.seeds, *changed):
            with_error = self._warm_up(content)  # late imports are done before the watch is on duty
            assert with_error is None or content not in self.seeds, (reader.name, with_error)

    def _warm_up(self, content: bytes) -> Exception | None:
        self._path.write_bytes(content)
        try:
            self.reader.read(self._path)
        except Exception as error:  # any, which the inputs that are counted will show again
            return error
        finally:
            self._renew()
        return None

    @property
    def _path(self) -> Path:
        return self.folder / self.reader.file

    def _renew(self) -> None:
        """The folder with the files beside the input, and no others."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.reader.beside(self.folder)

    def run(self, numbers: Iterable[int], seed: int) -> Tally:
        """The inputs of these numbers, input n a function of reader, seed and n and of those that were read before."""
        for number in numbers:
            draw = Random(f"{self.reader.name} {seed} {number}")
            self.one(self.mutated(draw.choice(self._pool), draw))
        return self.tally

    def mutated(self, content: bytes, draw: Random) -> bytes:
        """A changed content."""
        return self.reader.mutation(content, draw, self._pool)

    def one(self, content: bytes) -> None:
        """Count what comes of one input."""
        self._path.write_bytes(content)
        _forget_peak()
        base, begun = _peak(), time.process_time()
        tally, error = self.tally, None
        try:
            with _on_duty(self.folder) as watch:
                self.reader.read(self._path)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a panic of a library in Rust is no Exception
            error = raised
        seconds, grown = time.process_time() - begun, _peak() - base
        tally.inputs += 1
        tally.slowest, tally.memory = max(tally.slowest, seconds), max(tally.memory, grown)
        if watch.seen:
            self._found(content, f"forbidden: {watch.seen}", error)
        elif seconds > MOST_SECONDS:
            self._found(content, "too slow", error)
        elif grown > MOST_BYTES:
            self._found(content, "too much memory", error)
        elif error is None:
            tally.read += 1
            self._keep(content, "read", draw_from=tally.read)
        elif what := unclean(error, self.folder):
            self._found(content, what, error)
        else:
            tally.refused += 1
            self._keep(content, _place_of(error), draw_from=tally.inputs)
        if tally.inputs % 1000 == 0:
            self._renew()

    def _keep(self, content: bytes, place: str, draw_from: int) -> None:
        """Mutate an input further if it was refused at a place that is new, or now and then if it was read."""
        is_new = place not in self._messages
        self._messages.add(place)
        if len(content) < 1 << 16 and (is_new or (place == "read" and draw_from % 20 == 0)):
            self._pool.append(content)
            if len(self._pool) > _POOL:
                del self._pool[len(self.seeds) + draw_from % (_POOL - len(self.seeds))]

    def _found(self, content: bytes, what: str, error: BaseException | None) -> None:
        what = f"{what} at {_place_of(error)}" if error is not None else what
        if what not in self.tally.findings:
            self.findings.mkdir(parents=True, exist_ok=True)
            name = f"{self.reader.name.replace(' ', '_')}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"
            (self.findings / name).write_bytes(content)
            shown = "".join(traceback.format_exception(error)) if error is not None else what
            (self.findings / f"{name}.txt").write_text(f"{what}\n{shown}", errors="backslashreplace")
            self.tally.findings[what] = str(self.findings / name)


def unclean(error: BaseException, folder: Path) -> str:
    """What is wrong with an exception as a refusal; "" for a clean one."""
    kind, message = type(error), error_message(error)
    named = f"{kind.__name__}: {message[:200]!r}"
    if isinstance(error, OSError):
        return "" if error.filename else f"an OSError without a file, {named}"
    if not isinstance(error, ValueError) or not (kind is ValueError or kind.__module__.startswith("bertjax.")):
        return named
    if str(folder) not in message:
        return f"it does not name the file, {named}"
    if not all(character.isprintable() or character == "\n" for character in message):
        return f"not printable, {named}"
    return ""


def _place_of(error: BaseException) -> str:
    """The innermost line of ours in a traceback, and the kind of the exception."""
    ours = [
        (path.rpartition("/bertjax/")[2], line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "/bertjax/" in (path := frame.f_code.co_filename) and "/tests/" not in path
    ]
    where = "{}:{}".format(*ours[-1]) if ours else "?"
    return f"{where} {type(error).__name__}"


def _forget_peak() -> None:
    """Let the peak begin anew, where the kernel can (proc_pid_clear_refs, 5)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")


def _peak() -> int:
    """The most bytes that the process has held; what its parent held, which getrusage knows too, does not count."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
