"""Kill `bertjax prepare` at random moments, run it again, and compare every byte with an undisturbed run's.

    python tests/chaos/check_prepare.py --kills 20 -- configs/bert_mini.py --data.sources 'text:books/*.txt'

What stands behind -- is given to `bertjax prepare`, with a root of its own each time. The moments are uniform over the
time that an undisturbed run takes, so that the vocabulary's training and every phase of the store are hit. A run is
killed again when it goes on, with a chance of one half, until it ends. Exits with 1 if a byte differs.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEPT = ("store-*", "vocab-*")  # whole folders; what else lies in a root is no result


def prepared(root: Path, arguments: list[str], kill_after: float | None = None) -> bool:
    """Run `bertjax prepare`; whether it came to its end before it was killed."""
    command = [sys.executable, "-m", "bertjax", "prepare", *arguments, "--data.root", str(root)]
    with open(root.with_suffix(".log"), "ab") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            code = running.wait(kill_after)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
            return False
    if code:
        raise SystemExit(f"{' '.join(command)} failed: {root.with_suffix('.log').read_text()[-2000:]}")
    return True


def contents(root: Path) -> dict[str, str]:
    """SHA-256 of every file that is a result, and nothing half-made among them."""
    folders = [folder for pattern in KEPT for folder in sorted(root.glob(pattern))]
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="at least so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("arguments", nargs="+", help="for bertjax prepare, behind --")
    arguments = parser.parse_args()
    draw, kills, runs, different = random.Random(arguments.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        prepared(Path(folder) / "whole", arguments.arguments)
        seconds = time.monotonic() - start
        expected = contents(Path(folder) / "whole")
        print(f"undisturbed: {seconds:.1f} s, {len(expected)} files")
        while kills < arguments.kills:
            root, moments = Path(folder) / f"killed{runs}", []
            ended, runs = False, runs + 1
            while not ended:
                moment = draw.uniform(0, seconds) if not moments or draw.random() < 0.5 else None
                ended = prepared(root, arguments.arguments, moment)
                moments += [] if ended else [f"{moment:.2f} s"]
            kills += len(moments)
            equal = contents(root) == expected
            different += not equal
            print(
                f"killed after {', '.join(moments) or 'nothing'}: {'the same' if equal else 'OTHER'} bytes", flush=True
            )
    print(f"{kills} kills in {runs} runs, {different} with other bytes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
