"""Run that kills itself with SIGKILL at a chosen point of its loop.

python killed_run.py RECIPE KEYS EVENT STEP

KEYS is a JSON object of dotted config keys. EVENT is the name of a method of `bertjax.Callback`, or `never`: the
process dies inside the first call of this method at step STEP or later.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import bertjax


class Killer(bertjax.Callback):
    """Kills this process without running handlers or flushing buffers."""

    def __init__(self, event: str, step: int) -> None:
        self._at = step
        setattr(self, event, self._die)

    def _die(self, moment: Any, *_: Any) -> None:
        if (moment if isinstance(moment, int) else moment.step) >= self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    recipe, keys, event, step = sys.argv[1:]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(keys).items()}
    bertjax.pretrain(bertjax.recipe(recipe, values), callbacks=[Killer(event, int(step))])


if __name__ == "__main__":
    main()
