"""Tables of every format give equal examples; errors name file and line."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import Columns, read_table
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.load import read_dev, read_split, task_labels

PAIRS = [('A comma, a "quote" and\u2028more', "ja", "yes"), ("Zweiter", "nein", "no"), ("Third", "x", "yes")]
COLUMNS = Columns("one", "two", "gold")


def as_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "gold", "one", "two"), *((n, label, a, b) for n, (a, b, label) in enumerate(PAIRS))])


def as_tsv(path: Path) -> None:
    path.write_text("one\ttwo\tgold\n" + "".join("\t".join(pair) + "\n" for pair in PAIRS))


def as_json_lines(path: Path) -> None:
    path.write_text("\n".join(json.dumps({"one": a, "two": b, "gold": label}) for a, b, label in PAIRS) + "\n\n")


def as_json(path: Path) -> None:
    path.write_text(json.dumps([{"one": a, "two": b, "gold": label} for a, b, label in PAIRS]))


def as_keyed_json(path: Path) -> None:
    path.write_text(json.dumps({str(n): {"one": a, "two": b, "gold": label} for n, (a, b, label) in enumerate(PAIRS)}))


def as_parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = [list(column) for column in zip(*PAIRS, strict=True)]
    gold = pa.array(columns[2]).dictionary_encode()  # as pandas writes categories
    pyarrow.parquet.write_table(pa.table({"one": columns[0], "two": columns[1], "gold": gold}), path)


FORMATS = [
    ("t.csv", as_csv), ("t.tsv", as_tsv), ("t.jsonl", as_json_lines), ("t.json", as_json), ("t.json", as_keyed_json),
    ("t.parquet", as_parquet),
]  # fmt: skip


def fail_on_notice(line: str) -> None:
    pytest.fail(f"unexpected notice: {line}")


@pytest.mark.parametrize(("name", "write"), FORMATS, ids=lambda value: getattr(value, "__name__", ""))
def test_table_formats_give_equal_examples(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    examples = read_table(tmp_path / name, COLUMNS, fail_on_notice)
    assert [(*example.texts, example.label) for example in examples] == PAIRS
    assert [example.id for example in examples] == ["0", "1", "2"]
    place = {".csv": ":3", ".tsv": ":3", ".jsonl": ":2"}.get(Path(name).suffix, ": record")
    assert place in examples[1].where and examples[1].where.startswith(str(tmp_path / name))


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressed_tables_are_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    as_csv(tmp_path / "t.csv")
    (tmp_path / f"t.csv.{suffix}").write_bytes(pack((tmp_path / "t.csv").read_bytes()))
    assert len(read_table(tmp_path / f"t.csv.{suffix}", COLUMNS, fail_on_notice)) == len(PAIRS)


def table(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_example_location_is_first_line_of_row(tmp_path: Path) -> None:
    path = table(tmp_path, '\ufefftext,label\r\n"two\nlines, ""so""",a\r\n\r\nlast,b\r\n')
    examples = read_table(path, Columns(), fail_on_notice)
    assert examples == [
        TextExample(f"{path}:2", "0", ('two\nlines, "so"',), "a"),
        TextExample(f"{path}:5", "1", ("last",), "b"),
    ]


def test_json_ids_and_labels_of_other_types_are_read(tmp_path: Path) -> None:
    path = table(tmp_path, '{"text":"a","label":1,"n":7}\n{"text":"b","label":false,"n":"x"}\n', "t.jsonl")
    assert [(e.id, e.label) for e in read_table(path, Columns(id="n"), fail_on_notice)] == [("7", "1"), ("x", "false")]
    path = table(tmp_path, '{"text":"a","label":2}\n{"text":"b","label":"-0.5"}\n', "t.jsonl")
    assert [e.label for e in read_table(path, Columns(), fail_on_notice, regression=True)] == [2.0, -0.5]


def test_choices_are_read_from_columns_or_list(tmp_path: Path) -> None:
    path = table(tmp_path, "start,a,b,right\nHe,runs,sings,1\n")
    expected = ("He", "runs", "sings")
    assert read_table(path, Columns("start", label="right", ends=("a", "b")), fail_on_notice)[0].texts == expected
    path = table(tmp_path, '[{"start": "He", "ends": ["runs", "sings"], "right": 1}]', "t.json")
    listed = Columns("start", label="right", ends=("ends",))
    assert [(e.texts, e.label) for e in read_table(path, listed, fail_on_notice)] == [(expected, "1")]
    task = KINDS["choice"].table_task(listed)
    (tmp_path / "train.json").write_text(path.read_text())
    train = read_split(task, tmp_path, "train")
    assert task_labels(task, train) == ("0", "1")


def test_test_set_may_be_unlabelled_or_missing(tmp_path: Path) -> None:
    task = KINDS["sequence"].table_task(Columns())
    table(tmp_path, "text,label\na,x\nb,y\n", "train.csv")
    table(tmp_path, "text\tlabel\nc\ty\n", "validation.tsv")
    assert read_split(task, tmp_path, "test") is None
    table(tmp_path, "text\nd\n", "test.csv")
    assert [e.label for e in read_split(task, tmp_path, "test")] == [None]
    table(tmp_path, "text,label\nd,\ne,x\n", "test.csv")
    assert [e.label for e in read_split(task, tmp_path, "test")] == [None, "x"]
    assert list(read_dev(task, tmp_path)) == ["dev"]
    assert task_labels(task, read_split(task, tmp_path, "train")) == ("x", "y")


def test_file_of_another_name_is_read_by_path(tmp_path: Path) -> None:
    task = KINDS["sequence"].table_task(Columns())
    file = table(tmp_path, "text,label\na,x\nb,y\n", "big.csv")
    assert len(read_split(task, file, "train")) == 2
    with pytest.raises(ValueError, match="no dev set: none of dev"):
        read_dev(task, tmp_path)


def test_table_without_label_column_has_no_labels(tmp_path: Path) -> None:
    path = table(tmp_path, "text,other\na,b\n")
    assert read_table(path, Columns(text_b="other", label=""), fail_on_notice)[0] == TextExample(
        f"{path}:2", "0", ("a", "b"), None
    )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_read_table_detects_delimiter_of_csv(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(
            [("text", "label"), (f'a, "quoted"{delimiter}one\nof two lines', "x"), ("b", "y")]
        )
    examples = read_table(path, Columns(), print)
    assert [one.texts[0] for one in examples] == [f'a, "quoted"{delimiter}one\nof two lines', "b"]


def test_read_table_keeps_semicolons_in_csv_with_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label;x\na;b;c,1\nd;e;f,2\n")
    examples = read_table(tmp_path / "a.csv", Columns(label="label;x"), print)
    assert [one.texts for one in examples] == [("a;b;c",), ("d;e;f",)]


def test_long_fields_are_read_whole(tmp_path: Path) -> None:
    path = table(tmp_path, f'text,label\n"{"long, " * 100_000}",a\n')
    assert len(read_table(path, Columns(), fail_on_notice)[0].texts[0]) == 600_000


def test_invalid_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes(b"text\tlabel\ncaf\xe9" + b"." * 500 + b"\ta\n")
    notices: list[str] = []
    read_table(tmp_path / "t.tsv", Columns(), notices.append)
    assert notices == [f"{tmp_path}/t.tsv: 1 characters are not UTF-8; each is read as U+FFFD"]


CHOICES = Columns("text", ends=("a", "b"))
REFUSED = [
    ("t.csv", "", Columns(), "t.csv: the file is empty"),
    ("t.csv", "text,label\n", Columns(), "t.csv: the file is empty"),
    ("t.json", "[]", Columns(), "t.json: the file is empty"),
    ("t.jsonl", "\n", Columns(), "t.jsonl: the file is empty"),
    ("t.csv", "text,other\na,b\n", Columns(), "t.csv:1: no column 'label'; there are 'text', 'other'; give --label o"),
    (
        "t.csv",
        "stars,review\n1,Never again\n5,Very good\n",
        Columns(),
        "t.csv:1: no column 'text'; there are 'stars', 'review'; give --text review --label stars",
    ),
    (
        "t.csv",
        "id;Der Text;Die Note\n1;sehr gut;1\n2;nicht gut;5\n3;sehr schlecht;5\n",
        Columns(),
        "t.csv:1: no column 'text'; there are 'id', 'Der Text', 'Die Note'; give --text 'Der Text' --label 'Die Note'",
    ),
    (
        "t.jsonl",
        '{"q": "who was it", "a": "it was I, of course", "gold": 1}',
        Columns("text", "text_b"),
        "t.jsonl:1: no column 'text'; there are 'q', 'a', 'gold'; give --text q a --label gold",
    ),
    ("t.tsv", "x\nlonely\n", Columns(), "t.tsv:1: no column 'text'; there are 'x'; give --text x"),
    ("t.tsv", "text\tlabel\na\tb\n", Columns(text_b="c"), "t.tsv:1: no column 'c'; there are 'text', 'label'"),
    ("t.jsonl", '{"text":"a","label":"b"}\n{"text":"a"}', Columns(), "t.jsonl:2: the row has no 'label', unlike"),
    ("t.json", '{"k": {"text":"a"}}', Columns(), "t.json: record 'k': no column 'label'; there are 'text';"),
    ("t.csv", "text,text,label\na,b,c\n", Columns(), "t.csv: 2 columns are named 'text'"),
    ("t.csv", "text,label\na,b\nc\n", Columns(), "t.csv:3: 1 fields for 2 columns ('text', 'label')"),
    ("t.tsv", 'text\tlabel\n"a\tb"\tc\n', Columns(), "t.tsv:2: 3 fields for 2 columns"),
    ("t.csv", 'text,label\n"c,d\ne,f\n', Columns(), "t.csv:3: bad CSV (unexpected end of data) in the row of line 2"),
    ("t.csv", "text,label\na,b\nc,\n", Columns(), "t.csv:3: no label in column 'label'"),
    ("t.jsonl", '{"text":"a","label":null}', Columns(), "t.jsonl:1: no label in column 'label'"),
    ("t.jsonl", '{"text":3,"label":"a"}', Columns(), "t.jsonl:1: column 'text' is a int, not a text"),
    ("t.jsonl", '{"text":null,"label":"a"}', Columns(), "t.jsonl:1: the row has no text in column 'text'; w"),
    ("t.jsonl", '{"text":"a","label":["a"]}', Columns(), "t.jsonl:1: column 'label' is a list, not a text or number"),
    ("t.jsonl", '{"text":"a","label":"b"}\n{"text":"th\\ud800e","label":"b"}', Columns(),
     "t.jsonl:2: a string has a lone surrogate"),
    ("t.json", '{"\\ud800": {"text":"a","label":"b"}}', Columns(), "t.json: a string has a lone surrogate"),
    ("t.jsonl", '{"text":"a"', Columns(), "t.jsonl:1: not JSON"),
    ("t.jsonl", '["a"]', Columns(), "t.jsonl:1: it holds a list of 1, not a mapping; every line must be"),
    ("t.json", '[{"text":\n"a",]', Columns(), "t.json: not JSON (Expecting"),
    ("t.json", '["text"]', Columns(), 't.json: record 1: it holds "text", not a mapping'),
    ("t.json", '"text"', Columns(), 't.json: it holds "text", not a list or a mapping'),
    ("t.parquet", "no", Columns(), "t.parquet: neither Parquet nor Arrow"),
    ("t.doc", "no", Columns(), "t.doc: unsupported table format; give a file ending in .csv, .tsv"),
    ("t.csv", "text,a,b,label\nx,y,,0\n", CHOICES, "t.csv:2: 1 choices, but every example must have 2"),
    (
        "t.jsonl", '{"text":"x","a":"y","b":null,"label":0}', CHOICES,
        "t.jsonl:1: 1 choices, but every example must have 2",
    ),
    (
        "t.jsonl", '{"text":"x","e":["a","b","c"],"label":0}\n{"text":"x","e":["a","b"],"label":0}',
        Columns("text", ends=("e",)), "t.jsonl:2: 2 choices, but every example must have 3",
    ),
    ("t.jsonl", '{"text":"x","e":null,"label":0}', Columns("text", ends=("e",)), "t.jsonl:1: 0 choices"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "columns", "message"), REFUSED)
def test_bad_tables_are_rejected_with_file_and_line(
    tmp_path: Path, name: str, text: str, columns: Columns, message: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = table(tmp_path, text, name)
    with pytest.raises(ValueError) as refusal:
        read_table(path, columns, fail_on_notice)
    assert str(refusal.value).startswith(f"{tmp_path}/{message}"), refusal.value
    assert ";" in str(refusal.value), "the message advises what to do"


@pytest.mark.parametrize("label", ["much", "nan", "inf", "1,5"])
def test_regression_labels_must_be_numbers(tmp_path: Path, label: str) -> None:
    path = table(tmp_path, f"text\tlabel\na\t1\nb\t{label}\n", "t.tsv")
    with pytest.raises(ValueError, match=rf"t.tsv:3: label '{label}' is not a finite number"):
        read_table(path, Columns(), fail_on_notice, regression=True)


def test_relevance_labels_must_be_0_or_1(tmp_path: Path) -> None:
    task = KINDS["relevance"].table_task(Columns(text_b="passage"))
    table(tmp_path, "text,passage,label\na,b,1\na,c,0.0\n", "train.csv")
    assert [example.label for example in read_split(task, tmp_path, "train")] == [1, 0]
    table(tmp_path, "text,passage,label\na,b,1\na,c,2\n", "train.csv")
    with pytest.raises(ValueError, match=r"train\.csv:3: label 2\.0 is neither 0 \(not relevant\) nor 1"):
        read_split(task, tmp_path, "train")


def test_unknown_labels_are_rejected(tmp_path: Path) -> None:
    table(tmp_path, "text,label\na,x\nb,z\n", "train.csv")
    with pytest.raises(ValueError, match=r"train.csv:3: label 'z' is not one of x, y"):
        read_split(KINDS["sequence"].table_task(Columns(), ("x", "y")), tmp_path, "train")
    table(tmp_path, "text,label\na,x\nb,x\n", "train.csv")
    task = KINDS["sequence"].table_task(Columns())
    with pytest.raises(ValueError, match=r"train.csv:2: all labels from here on are 'x', but a task needs two or more"):
        task_labels(task, read_split(task, tmp_path, "train"))


def test_missing_and_ambiguous_files_are_rejected(tmp_path: Path) -> None:
    task = KINDS["sequence"].table_task(Columns())
    for read in (lambda: read_split(task, tmp_path, "train"), lambda: read_dev(task, tmp_path)):
        with pytest.raises(ValueError, match=rf"{tmp_path}: no (train|dev) set: none of (train|dev).csv, .* is there"):
            read()
    with pytest.raises(ValueError, match="nowhere: no train set: no such file or folder; correct the path"):
        read_split(task, tmp_path / "nowhere", "train")
    for name in ("train.csv", "train.tsv"):
        table(tmp_path, "text,label\na,x\n", name)
    with pytest.raises(ValueError, match=r"train.csv and train.tsv both match"):
        read_split(task, tmp_path, "train")
