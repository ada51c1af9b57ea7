"""Tables with the columns of a model: every row once, whatever is killed, on any number of hosts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model

from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.loaded import LoadedModel, open_model
from bertjax.pipeline import table_parts
from bertjax.pipeline.table_parts import annotate_tables

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [{"id": number, "text": f"The museum {'of drawings ' * (number % 7)}opened {number}."} for number in range(90)]

HOST = """
import sys, time
from bertjax.pipeline import table_parts
table_parts._SMALLEST, table_parts._WAIT_SECONDS = 200, 0.02
def annotate(rows):
    time.sleep(0.02)
    return {"size": [len(text) for (text,) in rows]}
table_parts.annotate_tables(sys.argv[2:], ["text"], __import__("pathlib").Path(sys.argv[1]), {}, annotate, "test")
"""


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    """A Parquet file of nine row groups, and a file of JSON lines."""
    parquet.write_table(pa.Table.from_pylist(ROWS[:45]), tmp_path / "a.parquet", row_group_size=5)
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[45:]))
    return [str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl")]


def rows_in(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_every_row_is_once_in_the_parts_of_killed_hosts(tables: list[str], tmp_path: Path, kills: int) -> None:
    folder, draw = tmp_path / "out", random.Random(0)
    (tmp_path / "host.py").write_text(HOST)
    command = [sys.executable, str(tmp_path / "host.py"), str(folder), *tables]
    made = 0
    for _ in range(kills):
        hosts = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        deadline, least = time.monotonic() + 60, made + (4 if kills == 1 else 1)
        while len(list(folder.glob("*.parquet"))) < least and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(draw.random() / 20)
        for host in hosts:
            host.kill()
            host.wait()
        made = len(list(folder.glob("*.parquet")))
    hosts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for host in hosts:
        host.communicate()
        assert host.returncode == 0
    found = rows_in(folder)
    assert 4 <= made < len(list(folder.glob("*.parquet"))) and len(rows_in(folder)) == 90
    assert found == [{**row, "size": len(row["text"])} for row in ROWS]


def test_other_jobs_and_tables_are_refused(tables: list[str], tmp_path: Path) -> None:
    def run(files: list[str] = tables, columns: tuple[str, ...] = ("text",), name: str = "out", **job: object) -> None:
        annotate_tables(files, columns, tmp_path / name, job, lambda rows: {"id": [0] * len(rows)}, "test")

    with pytest.raises(ValueError, match=r"a\.parquet: it has a column 'id' already"):
        run()
    with pytest.raises(ValueError, match=r"out: its parts were made with another step;"):
        run(step=2)
    with pytest.raises(ValueError, match=r"no column 'body'; it has id, text; name one with --column"):
        run(columns=("body",), name="other")
    with pytest.raises(ValueError, match=r"has 0, which is not a text"):
        run(columns=("id",), name="numbers")
    (tmp_path / "c.txt").write_text("text")
    with pytest.raises(ValueError, match=r"c\.txt: only files of parquet and jsonl have rows"):
        run([str(tmp_path / "c.txt")])
    with pytest.raises(ValueError, match=r"it has other files \(.*a\.parquet"):
        run(name=".")


@pytest.mark.run
def test_predictions_and_vectors_stand_beside_the_rows(tables, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(table_parts, "_SMALLEST", 2000)
    labels = ("bad", "fair", "good")
    tuned = write_run(fine_tuned_model(tmp_path / "tuned", "sequence", labels))
    assert main(["predict", str(tuned), "--files", *tables, "--output", str(tmp_path / "labels")]) == 0
    texts = [row["text"] for row in ROWS]
    wanted = open_model(str(tuned)).predict(texts)
    found = rows_in(tmp_path / "labels")
    assert [row["id"] for row in found] == list(range(90))
    assert [row["predicted_label"] for row in found] == [one.label for one in wanted]
    np.testing.assert_allclose(
        [row["predicted_probability"] for row in found], [one.probability for one in wanted], atol=1e-6
    )
    assert set(found[0]["predicted_probabilities"]) == set(labels)
    capsys.readouterr()
    run = write_run(trained_model(tmp_path / "run"))
    assert main(["embed", str(run), *tables, "--output", f"{tmp_path}/vectors/"]) == 0
    vectors = [row["vector"] for row in rows_in(tmp_path / "vectors")]
    np.testing.assert_allclose(vectors, LoadedModel(trained_model(tmp_path / "again")).encode(texts), atol=1e-5)
    assert main(["embed", str(run), *tables, "--output", f"{tmp_path}/vectors/"]) == 0
    assert "of them by other processes or earlier runs)" in capsys.readouterr().out
