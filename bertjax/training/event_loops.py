"""Event loops that wait for their tasks before they close."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loops_that_wait() -> Iterator[None]:
    """While entered, a new event loop waits for all of its tasks before it closes.

    Orbax reads all arrays of a checkpoint concurrently and closes the loop at the first error. The other reads continue
    in tensorstore's threads, and each prints a traceback ("Event loop is closed") when it finds the loop closed.
    """
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


class _Loop(asyncio.SelectorEventLoop):
    def close(self) -> None:
        while not self.is_closed() and (left := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        super().close()


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()
