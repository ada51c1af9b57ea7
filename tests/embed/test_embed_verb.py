"""`bertjax embed` with every input and output format, and bad arguments."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from exported_models import trained_model

import bertjax
from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.embed import texts as texts_module
from bertjax.embed.outputs import open_output
from bertjax.storage.utf8 import ReadCounts

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_device")]

TEXTS = ["the museum opened", "", "of drawings, naïve and 1877 " * 5, "the", "a\tb"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(trained_model(tmp_path_factory.mktemp("verb") / "run"))


@pytest.fixture(scope="module")
def vectors(run: Path) -> np.ndarray:
    return bertjax.load(run).encode(TEXTS)


def embed(run: Path | str, *arguments: object) -> int:
    return main(["embed", str(run), *map(str, arguments)])


def write_texts(tmp_path: Path, name: str) -> Path:
    """Write the texts to a file in the format of its suffix."""
    path = tmp_path / name
    if name.endswith(".parquet"):
        pa = pytest.importorskip("pyarrow")
        pa.parquet = pytest.importorskip("pyarrow.parquet")
        pa.parquet.write_table(pa.table({"abstract": TEXTS, "id": range(len(TEXTS))}), path)
        return path
    is_json = ".jsonl" in name
    lines = [json.dumps({"id": n, "abstract": text}) if is_json else text for n, text in enumerate(TEXTS)]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl.gz", "texts.parquet"])
def test_embed_reads_every_file_format_in_order(run, vectors, tmp_path, capsys, name):
    field = () if name == "texts.txt" else ("--field", "abstract")
    assert embed(run, write_texts(tmp_path, name), "--output", tmp_path / "out.npy", *field) == 0
    result = np.load(tmp_path / "out.npy")
    assert result.dtype == np.float32 and np.array_equal(result, vectors)
    output = capsys.readouterr()
    assert "5 texts with " in output.out and "32 dims, pooling mean" in output.out
    assert "1 of 5 texts have no token" in output.out and "tokens/s" in output.out


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("t.csv", 'id,text\n1,"the museum, opened"\n2,the\n', []),
        ("t.csv", 'abstract;id\n"the museum, opened";1\nthe;2\n', ["--column", "abstract"]),
        ("t.tsv", "text\tid\nthe museum, opened\t1\nthe\t2\n", []),
        ("t.csv.gz", 'text,id\n"the museum, opened",1\nthe,2\n', ["--field", "text"]),
    ],
)
def test_embed_reads_column_of_table(run, tmp_path, name, content, options):
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert embed(run, tmp_path / name, "--output", tmp_path / "out.npy", *options) == 0
    assert np.array_equal(np.load(tmp_path / "out.npy"), bertjax.load(run).encode(["the museum, opened", "the"]))


def test_embed_names_likely_column_of_table(run, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("stars,review\n1,the museum opened\n")
    assert embed(run, tmp_path / "t.csv", "--output", tmp_path / "out.npy") == 1
    assert "t.csv:1: no column 'text'; there are 'stars', 'review'; give --column review" in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


def test_embed_concatenates_files(run, vectors, tmp_path):
    first = write_texts(tmp_path, "texts.txt")
    (tmp_path / "more.txt").write_text("the museum opened")
    assert embed(run, tmp_path / "more.txt", first, "--output", tmp_path / "out.npy", "--normalize") == 0
    result = np.load(tmp_path / "out.npy")
    expected = np.concatenate([vectors[:1], vectors])
    np.testing.assert_allclose(result, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_jsonl_and_parquet_have_the_same_vectors(run, vectors, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = write_texts(tmp_path, "texts.txt")
    for name in ("out.jsonl", "out.parquet"):
        assert embed(run, texts, "--output", tmp_path / name) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert np.array_equal(np.array([line["vector"] for line in lines], np.float32), vectors)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert np.array_equal(np.array(table["vector"].to_pylist(), np.float32), vectors)


def test_embed_writes_matrices_with_tokens(run, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    model = bertjax.load(run)
    expected = model.encode(TEXTS, pooling="none", layer=1, long="split", max_length=16)
    ids = [list(part) for part in model.tokenizer.encode_sentences(TEXTS)]
    names = [
        [model.tokenizer.tokens[i] for i in (model.tokenizer.cls_id, *part, model.tokenizer.sep_id)] for part in ids
    ]
    options = ("--pooling", "none", "--layer", "1", "--long", "split", "--max-length", "16")
    texts = write_texts(tmp_path, "texts.txt")
    for suffix in ("npy", "jsonl", "parquet"):
        assert embed(run, texts, "--output", tmp_path / f"out.{suffix}", *options) == 0
        assert "1 of 5 texts were longer than 16 tokens and became " in capsys.readouterr().out
    rows, offsets = np.load(tmp_path / "out.npy"), np.load(tmp_path / "out.offsets.npy")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    for number, matrix in enumerate(expected):
        assert np.array_equal(rows[offsets[number] : offsets[number + 1]], matrix)
        for line in (lines[number], table[number]):
            assert line["tokens"] == names[number]
            assert np.array_equal(np.array(line["matrix"], np.float32), matrix)
    assert embed(run, texts, "--output", tmp_path / "out.npy", "--overwrite") == 0
    assert len(np.load(tmp_path / "out.npy")) == 5 and not (tmp_path / "out.offsets.npy").exists()


@pytest.fixture
def piped() -> Iterator[Callable[[bytes], None]]:
    """Connect a pipe to this process's standard input; returns a function that writes bytes to it."""
    before, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)

    def put(content: bytes) -> None:
        os.write(write, content)
        os.close(write)

    yield put
    os.dup2(before, 0)
    os.close(read), os.close(before)


@pytest.mark.parametrize("field", [None, "abstract"])
def test_embed_reads_standard_input(run, vectors, tmp_path, capsys, piped, field):
    piped(write_texts(tmp_path, "texts.jsonl" if field else "texts.txt").read_bytes())
    assert embed(run, "--output", tmp_path / "out.npy", *(["--field", field] if field else [])) == 0
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors)
    assert "5 texts with " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        (
            "texts.txt",
            ["--output", "out.csv"],
            "--output out.csv: unsupported format '.csv'; use .npy, .jsonl, .parquet",
        ),
        ("texts.txt", ["--output", "nowhere/out.npy"], "there is no directory nowhere"),
        ("texts.txt", ["--output", "s3://bucket/out.npy"], "are written to a local file"),
        (
            "texts.txt",
            ["--output", "out.npy", "--field", "abstract"],
            "--field abstract is for .jsonl, .ndjson",
        ),
        ("texts.jsonl", ["--output", "out.npy"], "texts.jsonl, line 1: no field `text`; it has abstract, id"),
        ("other.txt", ["--output", "out.npy"], "other.txt: no such file"),
        ("texts.txt", ["--output", "out.npy", "--layer", "3"], "layer=3: the model has layers 1 to 2"),
        ("texts.txt", ["--output", "out.npy", "--layer", "-4"], "layer=-4"),
        (
            "texts.txt",
            ["--output", "out.npy", "--max-length", "100"],
            "max_length=100: the model was trained on rows",
        ),
    ],
)
def test_bad_arguments_are_rejected_before_writing(run, tmp_path, capsys, monkeypatch, texts, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path, "texts.txt"), write_texts(tmp_path, "texts.jsonl")
    (tmp_path / "out.npy").write_bytes(b"from before")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert embed(run, texts, *arguments, "--overwrite") == 1
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "out.npy").read_bytes() == b"from before"


def test_embed_rejects_bad_lines_before_encoding(run, tmp_path, capsys):
    path = write_texts(tmp_path, "texts.jsonl")
    path.write_text(path.read_text() + '{"abstract": 7}\n')
    assert embed(run, path, "--output", tmp_path / "out.npy", "--field", "abstract") == 1
    output = capsys.readouterr()
    assert "texts.jsonl, line 6: field `abstract` is int, not a string" in output.err and not output.out
    assert not (tmp_path / "out.npy").exists()


def test_interruption_leaves_no_output(run, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        yield "the museum"
        raise KeyboardInterrupt

    monkeypatch.setattr(texts_module, "read_texts", interrupted)
    assert embed(run, write_texts(tmp_path, "texts.txt"), "--output", tmp_path / "out.npy") == 130
    assert "interrupted; nothing was written; run the same command again to start over" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
@pytest.mark.parametrize("matrices", [False, True])
def test_embed_writes_empty_file_for_no_text(tmp_path, suffix, matrices):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"out{suffix}"
    with pytest.raises(KeyboardInterrupt), open_output(path, 4, matrices, []):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with open_output(path, 4, matrices, []):
        pass
    assert path.is_file()
    if suffix == ".npy":
        assert np.load(path).shape == (0, 4)


def test_records_of_a_fasta_file_are_texts(tmp_path):
    path = tmp_path / "proteins.faa"
    path.write_text(">one of them\nMKT\nAYI\n>empty\n>two\nGLV*\n")
    assert [*texts_module.read_texts([str(path)], None, ReadCounts())] == ["MKTAYI", "", "GLV"]
    with pytest.raises(ValueError, match="--field text is for"):
        [*texts_module.read_texts([str(path)], "text", ReadCounts())]
