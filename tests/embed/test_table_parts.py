"""Tables annotated with a model's columns have every row once, despite killed hosts."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model
from tiny_runs import start

from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.loaded import LoadedModel, open_model
from bertjax.pipeline import table_parts
from bertjax.pipeline.predicting import predict_tables
from bertjax.pipeline.table_parts import RowError, annotate_tables

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("one_device")

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
    """A Parquet file with nine row groups, and a JSON Lines file."""
    parquet.write_table(pa.Table.from_pylist(ROWS[:45]), tmp_path / "a.parquet", row_group_size=5)
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[45:]))
    return [str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl")]


def rows_in(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


@pytest.mark.run
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_killed_hosts_write_every_row_once(tables: list[str], tmp_path: Path, kills: int) -> None:
    folder, log, draw = tmp_path / "out", tmp_path / "log", random.Random(0)
    (tmp_path / "host.py").write_text(HOST)
    command = [sys.executable, str(tmp_path / "host.py"), str(folder), *tables]
    parts_written = 0
    for _ in range(kills):
        hosts = [start(command, log) for _ in range(2)]
        deadline, least = time.monotonic() + 60, parts_written + (4 if kills == 1 else 1)
        while len(list(folder.glob("*.parquet"))) < least and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(draw.random() / 20)
        for host in hosts:
            host.kill()
            host.wait()
        parts_written = len(list(folder.glob("*.parquet")))
    for host in [start(command, log) for _ in range(2)]:
        assert host.wait() == 0, log.read_text()
    rows = rows_in(folder)
    assert 4 <= parts_written < len(list(folder.glob("*.parquet"))) and len(rows_in(folder)) == 90
    assert rows == [{**row, "size": len(row["text"])} for row in ROWS]


def test_annotate_tables_rejects_other_jobs_and_tables(tables: list[str], tmp_path: Path) -> None:
    def run(files: list[str] = tables, columns: tuple[str, ...] = ("text",), name: str = "out", **job: object) -> None:
        annotate_tables(files, columns, tmp_path / name, job, lambda rows: {"id": [0] * len(rows)}, "test")

    with pytest.raises(ValueError, match=r"a\.parquet: it has a column 'id' already"):
        run()
    with pytest.raises(ValueError, match=r"out: its parts were made with another step;"):
        run(step=2)
    with pytest.raises(ValueError, match=r"no column 'body'; it has id, text; name one with --column"):
        run(columns=("body",), name="other")
    with pytest.raises(ValueError, match=r"has 0, not a string"):
        run(columns=("id",), name="numbers")
    (tmp_path / "c.txt").write_text("text")
    with pytest.raises(ValueError, match=r"c\.txt: only files of parquet, jsonl, csv have rows"):
        run([str(tmp_path / "c.txt")])
    with pytest.raises(ValueError, match=r"it has other files \(.*a\.parquet"):
        run(name=".")


def test_parts_share_the_columns_of_all_rows(tmp_path: Path, monkeypatch) -> None:
    """Parts differ: fields are missing at first, null, empty, integers or floats, or differ in type."""
    rows = [
        {"id": 1, "note": None, "tags": [], "more": {"a": 1}, "mixed": 7},
        {"text": "one", "id": 2.5, "note": "n", "tags": ["x"], "more": {"a": 2, "b": "c"}, "mixed": "x"},
        {"text": "two", "late": True, "mixed": [1]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def sizes(texts: object) -> dict[str, list]:
        return {"size": [len(text) or None for (text,) in texts]}

    expected = [
        {"text": None, "id": 1.0, "note": None, "tags": [], "more": {"a": 1, "b": None}, "mixed": "7", "late": None},
        {**rows[1], "late": None},
        {"text": "two", "id": None, "note": None, "tags": None, "more": None, "mixed": "[1]", "late": True},
    ]
    expected = [{**row, "size": size} for row, size in zip(expected, (None, 3, 3), strict=True)]
    annotate_tables([str(path)], ["text"], tmp_path / "whole", {}, sizes, "test")
    assert parquet.read_table(tmp_path / "whole").to_pylist() == expected

    parts = [[rows[0], rows[1]], [rows[2]], [{"text": "a", "note": None}]]
    names = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for name, part in zip(names, parts, strict=True):
        name.write_text("".join(f"{json.dumps(row)}\n" for row in part))
    for _ in range(2):
        annotate_tables([*map(str, names)], ["text"], tmp_path / "parts", {}, sizes, "test")
        table = parquet.read_table(tmp_path / "parts")
        assert table.to_pylist()[:3] == expected and len(list((tmp_path / "parts").glob("*.parquet"))) == 3
    types = [
        {field.name: field.type for field in table.schema} for table in (table, parquet.read_table(tmp_path / "whole"))
    ]
    assert types[0] == types[1]


def test_csv_and_tsv_files_keep_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;text\n1;"two\nlines"\n2;\n')
    (tmp_path / "b.tsv").write_text('text\tid\n"quoted"\t3\n')
    names = [str(tmp_path / "a.csv"), str(tmp_path / "b.tsv")]

    def sizes(rows: Sequence[tuple[str, ...]]) -> dict[str, list[int]]:
        return {"size": [len(text) for (text,) in rows]}

    annotate_tables(names, ["text"], tmp_path / "out", {}, sizes, "test")
    assert rows_in(tmp_path / "out") == [
        {"id": "1", "text": "two\nlines", "size": 9},
        {"id": "2", "text": "", "size": 0},
        {"id": "3", "text": '"quoted"', "size": 8},
    ]
    for name, content, message in (
        ("c.csv", "text,id\na,1\nb\n", r"c\.csv, line 3: 1 fields, but the header has 2"),
        ("d.csv", "text,id,id\na,1,2\n", r"d\.csv: 2 columns 'id'; rename all but one"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            annotate_tables([str(tmp_path / name)], ["text"], tmp_path / f"{name}-out", {}, sizes, "test")


def test_bad_row_is_named_with_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')

    def annotate(texts: object) -> dict[str, list]:
        raise RowError(1, "too bad")

    with pytest.raises(ValueError, match=r"rows\.jsonl: row 2: too bad"):
        annotate_tables([str(path)], ["text"], tmp_path / "out", {}, annotate, "test")
    path.write_text('{"text": "one"}\n{"text": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: field 'text' is 3, not a string"):
        annotate_tables([str(path)], ["text"], tmp_path / "other", {}, annotate, "test")


@pytest.mark.run
def test_row_that_task_rejects_is_named(tmp_path: Path) -> None:
    """Errors name the right row, although rows are predicted in the order of their lengths."""
    path = tmp_path / "rows.jsonl"

    def predict(kind: str, rows: list[dict[str, str | None]]) -> list[int]:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = tmp_path / kind
        if not run.exists():
            write_run(fine_tuned_model(run, kind, ("O", "B-PER")))
        out = tmp_path / f"{kind}-{len(rows)}"
        predict_tables(str(run), [str(path)], [*rows[0]], out, None)
        (column,) = rows_in(out)[0].keys() - rows[0].keys()
        return [len(row[column]) for row in rows_in(out)]

    with pytest.raises(ValueError, match=r"rows\.jsonl: row 2: a text has a NUL character"):
        predict("span", [{"q": "what?", "text": "the museum opened"}, {"q": "what?", "text": "a\0"}])
    with pytest.raises(ValueError, match=r"rows\.jsonl: row 2: 2 texts: this task takes one text"):
        predict("tokens", [{"a": "the", "b": "museum"}, {"a": "the museum", "b": "opened"}])
    for kind in ("tokens", "token_regression"):
        assert predict(kind, [{"text": "the museum"}, {"text": None}, {"text": ""}]) == [2, 0, 0]


@pytest.mark.run
def test_tables_get_columns_of_predictions_and_vectors(tables, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(table_parts, "_SMALLEST", 2000)
    labels = ("bad", "fair", "good")
    tuned = write_run(fine_tuned_model(tmp_path / "tuned", "sequence", labels))
    assert main(["predict", str(tuned), "--files", *tables, "--output", str(tmp_path / "labels")]) == 0
    texts = [row["text"] for row in ROWS]
    expected = open_model(str(tuned)).predict(texts)
    rows = rows_in(tmp_path / "labels")
    assert [row["id"] for row in rows] == list(range(90))
    assert [row["predicted_label"] for row in rows] == [one.label for one in expected]
    np.testing.assert_allclose(
        [row["predicted_probability"] for row in rows], [one.probability for one in expected], atol=1e-6
    )
    assert set(rows[0]["predicted_probabilities"]) == set(labels)
    capsys.readouterr()
    run = write_run(trained_model(tmp_path / "run"))
    assert main(["embed", str(run), *tables, "--output", f"{tmp_path}/vectors/"]) == 0
    vectors = [row["vector"] for row in rows_in(tmp_path / "vectors")]
    np.testing.assert_allclose(vectors, LoadedModel(trained_model(tmp_path / "again")).encode(texts), atol=1e-5)
    assert main(["embed", str(run), *tables, "--output", f"{tmp_path}/vectors/"]) == 0
    assert "of them by other processes or earlier runs)" in capsys.readouterr().out
