"""Kill two hosts of `bertjax predict` again and again, and compare every row with an undisturbed run's.

    python tests/chaos/check_predict.py DATA --megabytes 1000 --kills 5

DATA has the folders `books_en` and `vocab` of the real data. Paragraphs of its books are written repeatedly to a
Parquet file of that size, each prefixed with its row number, so that all rows differ. A tiny classifier with random
weights predicts from their first 64 tokens: once in one process, and once in two processes that share a folder. One or
both of the two are killed (SIGKILL) at random moments, spread over the job, and started again. Exits with 1 if a row is
missing, occurs twice, or differs in any bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import lzma
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "convert"))

from exported_models import fine_tuned_model

from bertjax.convert.sources import write_run
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization.tokenizer import TextRules

GROUP = 4_000  # rows
HOSTS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000, help="size of the Parquet file (default: %(default)g)")
    parser.add_argument("--kills", type=int, default=5, help="number of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bertjax-predict-") as name:
        folder = Path(name)
        rows = write_table(options.data / "books_en", folder / "rows.parquet", round(options.megabytes * 1e6))
        size = (folder / "rows.parquet").stat().st_size
        print(f"{rows:,} rows, {size / 1e6:,.0f} MB of Parquet", flush=True)
        write_model(options.data / "vocab" / "bert-base-uncased" / "vocab.txt", folder / "model")
        report("undisturbed", rows, lambda: finish(start(folder, "whole")))
        expected = digests(folder / "whole")
        report("killed", rows, lambda: predict_with_kills(folder, options.kills, random.Random(options.seed)))
        actual = digests(folder / "killed")
    numbers = [number for number, _ in actual]
    twice, missing = len(numbers) - len(set(numbers)), len(set(range(rows)) - set(numbers))
    different = len(set(expected) ^ set(actual))
    print(f"{options.kills} kills: {missing} rows missing, {twice} twice, {different} with other values")
    return int(bool(twice or missing or different))


def write_table(books: Path, path: Path, size: int) -> int:
    """Write uncompressed rows (number, text) until the file has that size; returns the number of rows."""
    schema = pa.schema({"number": pa.int64(), "text": pa.string()})
    rows = ({"number": number, "text": f"{number}: {text}"} for number, text in enumerate(paragraphs(books)))
    count = 0
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        while path.stat().st_size < size:
            writer.write_table(pa.Table.from_pylist(list(itertools.islice(rows, GROUP)), schema))
            count += GROUP
    return count


def paragraphs(books: Path) -> Iterator[str]:
    """Cut the text of all books, endlessly repeated, into pieces of 1,500 characters."""
    while True:
        for book in sorted(books.glob("*.xz")):
            text = " ".join(lzma.decompress(book.read_bytes()).decode(errors="replace").split())
            yield from (text[start : start + 1_500] for start in range(0, len(text), 1_500))


def write_model(vocab: Path, folder: Path) -> None:
    """Write a two-layer classifier with random weights."""
    tokenizer = load_vocabulary(vocab, TextRules(True, True))
    write_run(fine_tuned_model(folder, "sequence", ("bad", "fair", "good"), tokenizer=tokenizer))


def predict_with_kills(folder: Path, kills: int, draw: random.Random) -> None:
    """Predict on several hosts; kill and restart one or both of them at moments spread over the job."""
    out, hosts = folder / "killed", [start(folder, "killed") for _ in range(HOSTS)]
    for kill in range(kills):
        moment = (kill + draw.random()) / (kills + 1)
        while not (total := count_units(out)) or count_parts(out) < moment * total:
            if all(host.poll() is not None for host in hosts):
                raise SystemExit("the hosts ended before they were killed; raise --megabytes")
            time.sleep(0.05)
        chosen = draw.choice([[0], [1], [0, 1]])
        for number in chosen:
            hosts[number].kill()
            hosts[number].wait()
        names = " and ".join(str(number) for number in chosen)
        print(f"  kill {kill + 1}: of host {names}, after {count_parts(out)} of {total} parts", flush=True)
        for number in chosen:
            hosts[number] = start(folder, "killed")
    for host in hosts:
        finish(host)


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a host of `bertjax predict` that writes to `folder / name`."""
    words = ["predict", str(folder / "model"), "--files", str(folder / "rows.parquet"), "--output", str(folder / name)]
    with open(folder / f"{name}.log", "ab") as log:
        return subprocess.Popen([sys.executable, "-m", "bertjax", *words], stdout=log, stderr=log)


def finish(host: subprocess.Popen[bytes]) -> None:
    """Wait for a host; raise SystemExit if it failed."""
    if code := host.wait():
        log = Path(f"{host.args[-1]}.log")  # type: ignore[index]
        raise SystemExit(f"a host failed with exit code {code}: {log.read_text()[-2000:]}")


def count_parts(out: Path) -> int:
    """The number of finished parts."""
    return len(list(out.glob("part-*.parquet")))


def count_units(out: Path) -> int:
    """The number of parts when the job is finished; 0 if it is not known yet."""
    try:
        return len(json.loads((out / "_job.json").read_text())["units"])
    except FileNotFoundError:
        return 0


def report(name: str, rows: int, work: Callable[[], None]) -> None:
    """Run `work` and print its wall time and CPU time."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {seconds:.0f} s, {rows / seconds:,.0f} rows/s, {used:.0f} s of CPU time", flush=True)


def digests(folder: Path) -> list[tuple[int, str]]:
    """(number, SHA-256 of all its columns) of every row in the parts of a folder."""
    return [
        (row["number"], hashlib.sha256(repr(row).encode()).hexdigest())
        for path in sorted(folder.glob("*.parquet"))
        for batch in parquet.ParquetFile(path).iter_batches(GROUP)
        for row in batch.to_pylist()
    ]


if __name__ == "__main__":
    sys.exit(main())
