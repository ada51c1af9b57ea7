"""`bench_gpu.py`: the compared rows, and a rehearsal on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench_gpu import PREDICTIONS, parse, rows
from fake_devices import xla_flags

PROGRAM = Path(__file__).parent / "benchmarks" / "bench_gpu.py"


def test_rows_match_their_names() -> None:
    comparisons = [*rows(parse(["--sizes", "tiny", "--tokens", "1024"]))]
    assert len(comparisons) == 7  # three for each length, and packed rows
    for row in comparisons:
        for _, work in row.sides.values():
            length = int(row.name.split(",")[0].split()[1])
            batch = work.batch()
            assert batch["input_ids"].shape == (1024 // length, length)
            assert batch["mlm_positions"].shape == (1024 // length, PREDICTIONS[length])
            assert work.objectives == ("mlm", "nsp")
            assert bool((batch["sequence_ids"] == 0).any()) == (work.filled < 1)


@pytest.mark.long
def test_rehearsal_on_cpu_measures_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    small = ["--sizes", "tiny", "--lengths", "128", "--tokens", "512", "--device", "cpu", "--steps", "2"]
    output = tmp_path / "figures.json"
    words = [*small, "--only", "no attention", "--no-compile", "--output", str(output)]
    # Without the fake devices of the other tests.
    environment = {**os.environ, "XLA_FLAGS": xla_flags(devices=1, quick=False)}
    subprocess.run([sys.executable, str(PROGRAM), *words], check=True, timeout=600, env=environment)
    figures = json.loads(output.read_text())["figures"]
    assert [one["side"] for one in figures] == ["bertjax", "transformers"]
    assert all(one["tokens_per_second"] > 0 and one["batch"] == "4 x 128" for one in figures)
