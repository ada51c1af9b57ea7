"""Embed few and then ten times as many texts, each in a separate process, and compare their peak memory.

python tests/embed/check_memory.py          # some minutes; exit code 1 if memory grew with the number of texts
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "convert"))

FEW, TIMES, LIMIT = 20_000, 10, 1.25


def embed(count: int) -> None:
    """Embed `count` lines with a tiny model, and print the peak memory in MiB."""
    from exported_models import trained_model

    from bertjax.__main__ import main
    from bertjax.convert.sources import write_run

    with tempfile.TemporaryDirectory() as folder:
        run = write_run(trained_model(Path(folder) / "run"))
        texts = Path(folder) / "texts.txt"
        with texts.open("w") as file:
            file.writelines(f"the museum opened {number}\n" for number in range(count))
        assert main(["embed", str(run), str(texts), "--output", str(Path(folder) / "out.npy")]) == 0
        assert (Path(folder) / "out.npy").stat().st_size == 128 + count * 32 * 4
    print("MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def compare() -> int:
    """Run both sizes; returns 1 if the larger takes more than `LIMIT` times as much memory."""
    peaks = []
    for count in (FEW, FEW * TIMES):
        ended = subprocess.run([sys.executable, __file__, str(count)], capture_output=True, text=True, check=True)
        peaks.append(int(ended.stdout.split()[-1]))
        print(f"{count:,} texts: {peaks[-1]:,} MiB at most;", ended.stdout.splitlines()[1])
    return int(peaks[1] > LIMIT * peaks[0])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        embed(int(sys.argv[1]))
    else:
        sys.exit(compare())
