"""A command of bertjax whose batches from a step on wait for a file, so that it cannot end before that is there.

python held_up.py FILE STEP COMMAND...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def hold(kind: type, file: Path, step: int) -> None:
    """Let `kind.batch` wait for `file` from step `step` on."""
    batch = kind.batch

    def held(self: object, number: int, *given: object, **named: object) -> object:
        while number >= step and not file.exists():
            time.sleep(0.02)
        return batch(self, number, *given, **named)

    kind.batch = held


if __name__ == "__main__":
    from bertjax.__main__ import main
    from bertjax.finetune.batches import TaskBatches

    hold(TaskBatches, Path(sys.argv[1]), int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
