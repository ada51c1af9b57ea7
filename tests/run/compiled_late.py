"""Run that sends itself SIGTERM and prints a line for each program that its main thread compiles afterwards.

python compiled_late.py RECIPE KEYS STEP

KEYS is a JSON object of dotted config keys; the signal is sent after step STEP. Programs that are read from the
compilation cache count too, so that the output does not depend on the cache.
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
    """Sends SIGTERM after a step."""

    sent = False

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, step: int) -> None:
        if step == self._step:
            Stopper.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


def report(event: str, seconds: float, **details: Any) -> None:
    """Print a line for a program that is compiled after the signal."""
    if event == COMPILED and Stopper.sent and threading.current_thread() is threading.main_thread():
        print(f"{LATE}: {details} ({seconds:.2f} s)", flush=True)


if __name__ == "__main__":
    recipe, keys, step = sys.argv[1:]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(keys).items()}
    jax.monitoring.register_event_duration_secs_listener(report)
    bertjax.pretrain(bertjax.recipe(recipe, values), callbacks=[Stopper(int(step))])
