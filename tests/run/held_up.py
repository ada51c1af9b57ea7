"""Run a bertjax command whose batches wait for a file from a step on, so that it cannot finish before.

python held_up.py FILE STEP COMMAND...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def hold(kind: type, file: Path, step: int) -> None:
    """Make `kind.batch` wait for `file` from step `step` on."""
    batch = kind.batch

    def held_batch(self: object, number: int, *args: object, **kwargs: object) -> object:
        while number >= step and not file.exists():
            time.sleep(0.02)
        return batch(self, number, *args, **kwargs)

    kind.batch = held_batch


if __name__ == "__main__":
    from bertjax.__main__ import main
    from bertjax.finetune.batches import TaskBatches

    hold(TaskBatches, Path(sys.argv[1]), int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
