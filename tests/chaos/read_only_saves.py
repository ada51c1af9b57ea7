"""Save to a disk that turns read-only during each save; run by test_faults.py with failing_calls.c in LD_PRELOAD.

    python read_only_saves.py FOLDER LIBRARY HOW TRIES

Prints the error of each save. The number of calls varies with the threads: a save that ends before the chosen call is
repeated with an earlier one. Other output of Orbax goes to stderr.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import jax.numpy as jnp

from bertjax.run.checkpoint import Checkpoints


def main() -> None:
    """Count the calls of a save, then fail evenly spaced ones."""
    folder, library = Path(sys.argv[1]), ctypes.CDLL(sys.argv[2])
    failing, tries = (int(word) for word in sys.argv[3:])
    arm = library.failing_calls_arm
    arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    counted: list[int] = []
    state = {f"w{number}": jnp.full(1000, number, jnp.float32) for number in range(60)}

    def save(name: str, call: int, how: int) -> None:
        saves = Checkpoints(folder / name, keep_last=2)
        arm(str(folder / name).encode(), call, how)
        try:
            saves.save(1, state, {})
            saves.close()
        finally:
            counted.append(library.failing_calls_counted())
            arm(str(folder / name).encode(), -1, 0)

    def is_refused(name: str, call: int) -> bool:
        try:
            save(name, call, failing)
        except OSError as error:
            print(error)
            return True
        assert counted[-1] <= call, "a call failed, and the save raised nothing"
        return False

    save("whole", -1, 0)
    calls = counted[0]
    for number in range(tries):
        call, again = number * calls // tries, 0
        while not is_refused(f"{number}-{again}", call):
            call, again = counted[-1] // 2, again + 1


if __name__ == "__main__":
    main()
