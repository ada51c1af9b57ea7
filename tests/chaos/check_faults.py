"""Inject thousands of faults, and print a table of the trials, survivals and failures.

    python tests/chaos/check_faults.py [PART ...] [--part I/N] [--tries N] [--minutes M] [--seed S]
    python tests/chaos/check_faults.py --page [RESULTS ...]

kills     processes killed at random moments        crash      each system call of a save, export etc. fails once
bitrot    damaged files of every kind               hangs      processes, networks, disks and clocks that fail
fuzzing   mutated files for every reader            sabotages  defects planted in the code, which tests must find

A long campaign consists of many runs. Each run adds to the results file (--results), also after Ctrl-C, SIGTERM or
--minutes, and the same command continues where the last one stopped. `--part 2/5` runs the second of five slices, so
that several machines can share a campaign; another --seed adds other kills, flips, hangs and inputs. Results count for
one commit of the code. `--only NAME ...` tries only the named faults and keeps no results.

`--page` adds results files to tests/chaos/campaign.json, where no slice counts twice, and writes the tables of
bertjax/RELIABILITY.md from it, which defines survival. Exit codes: 1 if a trial failed, 130 after an interruption.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS), *sorted(str(room) for room in TESTS.iterdir() if room.is_dir())]

from campaign import Record, Results, as_page, code_version, write_page  # noqa: E402 (found by the path above)
from fake_devices import xla_flags  # noqa: E402
from outcomes import Share, Table, as_markdown  # noqa: E402

INTERRUPTED = 130
# Trials over all slices; None: each fault once, independent of the seed.
TRIES = {"kills": 1000, "crash": None, "bitrot": 12_500, "hangs": 45, "fuzzing": 10_000_000, "sabotages": None}
RESULTS = TESTS.parent / "build" / "faults.json"
CAMPAIGN, PAGE = TESTS / "chaos" / "campaign.json", TESTS.parent / "bertjax" / "RELIABILITY.md"


def prepare_environment(folder: Path) -> None:
    """Set the environment of this process and the trials; must run before jax is imported."""
    os.environ["XLA_FLAGS"] = xla_flags(devices=1)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"


def import_trials(part: str) -> Callable[[Table, Path, int | None, Share, Sequence[str]], None]:
    """The function that makes the trials of a part; imports jax."""
    if part == "kills":
        from random_kills import try_kills as trials
    elif part == "crash":
        from crash_points import try_crash_points as trials
    elif part == "bitrot":
        from bit_rot import try_bit_rot as trials
    elif part == "hangs":
        from hangs import try_hangs as trials
    elif part == "fuzzing":
        from fuzzing_processes import try_fuzzing as trials
    else:
        from sabotage_trials import try_sabotages as trials
    return trials


def run_part(record: Record, folder: Path, arguments: argparse.Namespace, keep: Callable[[], None]) -> bool:
    """Run the missing trials of a record, print its table, and save it. Returns whether it was interrupted.

    An exception counts as a failed trial.
    """
    begun, before = time.monotonic(), record.minutes
    until = begun + 60 * arguments.minutes if arguments.minutes is not None else float("inf")
    share = Share(record.number, record.of, record.seed, record.done, until)
    tries = arguments.tries if arguments.tries is not None else TRIES[record.part]

    def update() -> None:
        record.update(table.rows, share.done, before + (time.monotonic() - begun) / 60)

    table = Table(record.rows, lambda: (update(), keep()))
    try:
        with table.failing(f"{record.part}: the campaign", "it ended early"):
            import_trials(record.part)(table, folder, tries, share, arguments.only)
    except KeyboardInterrupt:
        return True
    finally:
        update()
        print(f"\n{record.title}\n\n{as_markdown(table.rows)}", flush=True)
        keep()
    return False


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = parse(words)
    if arguments.page is not None:
        write_page(PAGE, CAMPAIGN, arguments.page)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results, version = Results(arguments.results), code_version()
    records, stopped = [], False
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        prepare_environment(Path(name))
        for part in arguments.parts:
            seed = arguments.seed if TRIES[part] is not None else 0
            new = Record(part, version, seed, *arguments.part)
            record = new if arguments.only else results.resume(new)
            (folder := Path(name) / part).mkdir()
            records.append(record)
            stopped = run_part(record, folder, arguments, (lambda: None) if arguments.only else results.write)
            if stopped:
                break
    print(f"\n{as_page(records, details=False)}", flush=True)
    return INTERRUPTED if stopped else int(any(row.failed for record in records for row in record.rows))


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(TRIES)}; default: all")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="run the I-th of N slices")
    tries = ", ".join(f"{number or 'every'} {part}" for part, number in TRIES.items())
    parser.add_argument("--tries", type=int, help=f"trials over all slices; default: {tries}")
    parser.add_argument("--minutes", type=float, help="limit for each part; default: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="scenarios, kinds, readers or files")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--page", nargs="*", type=Path, metavar="RESULTS", help="write the tables of RELIABILITY.md")
    arguments = parser.parse_args(words)
    arguments.parts = list(TRIES) if arguments.parts in ([], ["all"]) else arguments.parts
    if unknown := [part for part in arguments.parts if part not in TRIES]:
        parser.error(f"unknown part {', '.join(unknown)}; choose from {', '.join(TRIES)}")
    cut = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", arguments.part)
    if not cut or int(cut[1]) > int(cut[2]):
        parser.error(f"--part {arguments.part}: write slice/slices, such as 2/5")
    arguments.part = int(cut[1]), int(cut[2])
    return arguments


if __name__ == "__main__":
    sys.exit(main())
