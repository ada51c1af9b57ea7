"""A run that sends itself SIGTERM, and prints a line for each program that its main thread compiles after that.

python compiled_late.py RECIPE KEYS STEP

KEYS is a JSON object of dotted keys of the config; the signal is sent after step STEP. A program that is found in the
compilation cache is one too, so that the lines do not depend on what the cache holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import jax

import bertjax

COMPILED = "/jax/core/compile/backend_compile_duration"
LATE = "compiled after the signal"


class Stopper(bertjax.Callback):
    """Sends the signal after a step."""

    sent = False

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, step: int) -> None:
        if step == self._step:
            Stopper.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


def note(event: str, seconds: float, **about: Any) -> None:
    """Print a line for a program that is compiled late."""
    if event == COMPILED and Stopper.sent and threading.current_thread() is threading.main_thread():
        print(f"{LATE}: {about} ({seconds:.2f} s)", flush=True)


if __name__ == "__main__":
    recipe, keys, step = sys.argv[1:]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(keys).items()}
    jax.monitoring.register_event_duration_secs_listener(note)
    bertjax.pretrain(bertjax.recipe(recipe, values), callbacks=[Stopper(int(step))])
