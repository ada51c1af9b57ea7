"""Faults, thousands of them: `python tests/chaos/check_faults.py [kills crash bitrot hangs] [--tries N] [--seed S]`.

kills    processes killed at random moments           crash    every system call of a save and the like fails once
bitrot   damaged files of every kind                  hangs    processes, networks, disks and clocks that fail

Prints a table of what was tried, what survived and what failed, for bertjax/RELIABILITY.md, and exits with 1 if
anything failed. What survives is defined there. `--tries` is the number of trials of each part that is named. After
Ctrl-C or SIGTERM the table has what was tried until then.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), *sorted(str(room) for room in TESTS.iterdir() if room.is_dir())]

from fake_devices import xla_flags  # noqa: E402 (found by the path above)
from outcomes import Table, as_markdown  # noqa: E402

INTERRUPTED = 130
PARTS = ("kills", "crash", "bitrot", "hangs")
TRIES = {"kills": 200, "crash": None, "bitrot": 10_000, "hangs": 20}  # None: every point once


def prepare_environment(folder: Path) -> None:
    """What processes of the trials, and this one, are to have in their environment, before jax is imported."""
    os.environ["XLA_FLAGS"] = xla_flags(devices=1)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"


def part_of(name: str) -> Callable[[Table, Path, int | None, int], None]:
    """The trials of a part; imports jax."""
    if name == "kills":
        from random_kills import try_kills as part
    elif name == "crash":
        from crash_points import try_crash_points as part
    elif name == "bitrot":
        from bit_rot import try_bit_rot as part
    else:
        from hangs import try_hangs as part
    return part


def main(words: Sequence[str] | None = None) -> int:
    """Run the named parts, by default all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--tries", type=int, help="200 kills, every crash point, 10,000 damages, 20 hangs")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"no part is named {', '.join(unknown)}; there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed, stopped = 0, False
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        prepare_environment(Path(name))
        for part in asked.parts or PARTS:
            folder, begun = Path(name) / part, time.monotonic()
            folder.mkdir()
            table = Table()
            try:
                part_of(part)(table, folder, asked.tries if asked.tries is not None else TRIES[part], asked.seed)
            except KeyboardInterrupt:
                stopped = True
            failed += sum(row.failed for row in table.rows)
            head = f"{part}, seed {asked.seed}, {(time.monotonic() - begun) / 60:.0f} minutes{', stopped' * stopped}"
            print(f"\n{head}\n\n{as_markdown(table.rows)}", flush=True)
            if stopped:
                return INTERRUPTED
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
