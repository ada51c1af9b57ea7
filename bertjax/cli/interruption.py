"""Handle Ctrl-C from the first import on: one line and exit code 130."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit code of a shell for a command that SIGINT ended
_IMPORTS = "<frozen importlib"


@contextmanager
def interruptible(importers: tuple[str, ...], message: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, but end the process at once while a verb imports its modules.

    During an import, Python or the library may print or swallow the exception; and no work is lost yet. `importers`
    are the files or folders that import a verb's modules.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # another handler was set on purpose
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if _imported_by(frame).startswith(importers):
            # Cleanup would wait for threads of half-imported libraries.
            sys.stdout.flush()
            os.write(sys.stderr.fileno(), f"{message()}\n".encode())
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _imported_by(frame: FrameType | None) -> str:
    """Return the file that started the outermost import in progress; empty if there is none."""
    importer = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_IMPORTS) or name == importlib.__file__:
            importer = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        frame = frame.f_back
    return importer
