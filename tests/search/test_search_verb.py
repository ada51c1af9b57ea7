"""`bertjax search`: build, reopen and check an index; rank, evaluate and write results."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cranfield import write_beir
from exported_models import trained_model

import bertjax
from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.pipeline import searching
from bertjax.search import index as index_module
from bertjax.search.index import open_index
from bertjax.search.records import Record
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_device")]

DOCUMENTS = [
    {"_id": "opening", "title": "The museum", "text": "the museum opened in 1877"},
    {"_id": "paper", "title": "", "text": "drawings of a naive museum"},
    {"_id": "empty", "title": "", "text": ""},
    {"_id": "twice", "title": "The museum", "text": "the museum opened in 1877"},
    {"_id": "letters", "title": "", "text": "a b c d e f g h of the i j k l"},
]
QUERIES = {"q1": "museum opened", "q2": "drawings"}
JUDGED = "query-id\tcorpus-id\tscore\nq1\topening\t2\nq1\tpaper\t1\nq2\tpaper\t1\nq3\tpaper\t1\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(trained_model(tmp_path_factory.mktemp("search") / "run"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beir")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS))
    rows = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels.tsv").write_text(JUDGED)
    return folder


@pytest.fixture(scope="module")
def index(run: Path, data: Path) -> Path:
    """The index of the documents."""
    assert search(run, "--index", data / "index", "--documents", data / "corpus.jsonl") == 0
    return data / "index"


def search(run: Path | str, *arguments: object) -> int:
    return main(["search", str(run), *map(str, arguments)])


def result_ids(path: Path) -> list[list[str]]:
    """List the ids of a file of results by query."""
    return [[row["id"] for row in json.loads(line)["results"]] for line in path.read_text().splitlines()]


def test_title_is_shown_once_in_lines_and_page(run, index, tmp_path, capsys):
    page = tmp_path / "results.html"
    assert search(run, "museum <b>", "--index", index, "--by", "bm25", "--html", page) == 0
    assert capsys.readouterr().out.count("The museum opened in 1877") == 2, "both documents, each with one title"
    content = page.read_text(encoding="utf-8")
    assert content.count('class="hit-card card"') == 4 and content.count("<p>opened in 1877</p>") == 2
    assert content.count("<b>The <mark>museum</mark></b>") == 2 and "<h1>museum &lt;b&gt;</h1>" in content
    assert Record("1", "Article 5", "Art").lines() == ("Art", "Article 5")


def test_search_builds_then_opens_an_index(run, data, tmp_path, capsys):
    arguments = (run, "museum opened", "--index", tmp_path / "index", "--documents", data / "corpus.jsonl")
    assert search(*arguments) == 0
    first = capsys.readouterr()
    assert re.search(r"index \S+: 5 documents with \d+ tokens, 32 numbers for each", first.out)
    assert "1 of 5 texts have no token" in first.out
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    assert search(*arguments) == 0
    again = capsys.readouterr()
    assert "index  5" not in again.err and again.out == first.out[first.out.index("museum opened\n") :]
    assert search(*arguments[:-2]) == 0
    assert capsys.readouterr().out == again.out
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_vectors_and_order_match_encode(run, data, index, tmp_path):
    texts = [f"{row['title']} {row['text']}".strip() for row in DOCUMENTS]
    model = bertjax.load(run)
    vectors = model.encode(texts, normalize=True)
    assert np.array_equal(open_index(index).vectors, vectors)
    assert [record.whole for record in map(open_index(index).documents.__getitem__, range(5))] == texts
    assert search(run, *QUERIES.values(), "--index", index, "--output", tmp_path / "out.jsonl", "--top", "9") == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    cosines = model.encode(list(QUERIES.values()), normalize=True) @ vectors.T
    for number, (row, scores) in enumerate(zip(rows, cosines, strict=True)):
        order = np.lexsort((np.arange(5), -scores))
        assert (row["query"], row["text"]) == (str(number + 1), list(QUERIES.values())[number])
        assert [result["id"] for result in row["results"]] == [DOCUMENTS[i]["_id"] for i in order]
        assert [result["score"] for result in row["results"]] == pytest.approx(scores[order], abs=1e-6)
        assert row["results"][0]["text"] == DOCUMENTS[order[0]]["text"]


def test_replaced_characters_are_counted(run, index, tmp_path, capsys):
    queries = tmp_path / "queries.txt"
    queries.write_bytes(b"museum \xff\n" + b"the museum opened in 1877\n" * 6)
    assert search(run, "--index", index, "--queries", queries, "--output", tmp_path / "found.jsonl") == 0
    assert "queries: 1 characters were not UTF-8 and became U+FFFD\n" in capsys.readouterr().out


def test_output_is_kept_without_overwrite(run, index, tmp_path, capsys):
    output = tmp_path / "found.jsonl"
    fixed = (run, "museum", "--index", index, "--output", output)
    assert search(*fixed) == 0
    first = output.read_bytes()
    assert search(*fixed, "--top", "1") == 1 and output.read_bytes() == first
    assert f"{output} exists; add --overwrite to replace it" in capsys.readouterr().err
    assert search(*fixed, "--overwrite", "--batch-size", "1", "--batch-tokens", "64") == 0
    assert output.read_bytes() == first


def test_search_ranks_by_words_and_by_both(run, data, index, tmp_path, capsys):
    fixed = (run, "--index", index, "--queries", data / "queries.jsonl")
    for by in ("vectors", "bm25", "both"):
        assert search(*fixed, "--by", by, "--output", tmp_path / f"{by}.jsonl") == 0
    by_words, by_vectors, by_both = (result_ids(tmp_path / f"{by}.jsonl") for by in ("bm25", "vectors", "both"))
    assert by_words == [["opening", "twice", "paper"], ["paper"]]
    assert [len(ids) for ids in by_vectors] == [5, 5]
    shares = [
        {name: sum(1 / (61 + ids.index(name)) for ids in both if name in ids) for name in both[1]}
        for both in zip(by_words, by_vectors, strict=True)
    ]
    assert [[share[name] for name in ids] for share, ids in zip(shares, by_both, strict=True)] == [
        sorted(share.values(), reverse=True) for share in shares
    ]
    assert (
        capsys.readouterr().out.splitlines()[-1] == f"2 queries to {tmp_path}/both.jsonl: the best 10 documents "
        "for each, by both"
    )
    assert search(run, "¤", "--index", index, "--by", "bm25") == 0
    assert "no document shares a word with the query" in capsys.readouterr().out


def test_fusion_in_python_matches_verb(run, tmp_path):
    """The best document of the fusion may not be the best of either ranking."""
    words = ["museum", "opened", "drawings", "naive", "of", "the", "in", "a", "letters"]
    texts = [" ".join(words[i] for i in (n % 9, n * 7 % 8, n // 9 % 9, n // 5 % 7)) for n in range(90)]
    documents = tmp_path / "texts.txt"
    documents.write_text("\n".join(texts))
    queries, output = ["museum of letters", "drawings opened", "naive the in"], tmp_path / "both.jsonl"
    fixed = ("--index", tmp_path / "index", "--documents", documents, "--by", "both", "--top", "1")
    assert search(run, *queries, *fixed, "--output", output) == 0
    results = bertjax.search(run, queries, index=tmp_path / "index", by="both", top=1)
    assert [[one.id for one in ranking] for ranking in results] == result_ids(output)


def test_search_from_python_warns_of_cut_texts(run, tmp_path):
    (tmp_path / "texts.txt").write_text("the museum " * 300 + "\nshort\n")
    with pytest.warns(UserWarning) as warnings:
        bertjax.search(run, ["museum " * 300], index=tmp_path / "index", documents=[tmp_path / "texts.txt"])
    with pytest.raises(ValueError, match="pooling='none': an index has one vector for each document"):
        bertjax.search(run, [], index=tmp_path / "other", documents=[tmp_path / "texts.txt"], pooling="none")
    assert not (tmp_path / "other").exists()
    assert [str(one.message).partition(" were")[0] for one in warnings] == [
        "documents: 1 of 2 texts",
        "queries: 1 of 1 texts",
    ]


def test_search_writes_trec_and_figures(run, data, index, tmp_path, capsys):
    fixed = (run, "--index", index, "--queries", data / "queries.jsonl", "--by", "both", "--qrels", data / "qrels.tsv")
    assert search(*fixed, "--output", tmp_path / "out.trec", "--top", "1") == 0
    lines = [line.split() for line in (tmp_path / "out.trec").read_text().splitlines()]
    assert [line[:2] + line[3:4] + line[5:] for line in lines] == [[q, "Q0", "1", "bertjax"] for q in QUERIES]
    output = capsys.readouterr().out
    assert "2 of 2 queries have relevant documents" in output
    ideal = 2 + 1 / np.log2(3)
    assert figures(output)["bm25"] == pytest.approx([((2 + 0.5) / ideal + 1) / 2, 1, 1, (2 / 3 + 1) / 2], abs=1e-4)
    assert list(figures(output)) == ["vectors", "bm25", "both"]


def test_folder_in_beirs_layout_is_evaluated(run, data, index, tmp_path, capsys):
    folder = tmp_path / "beir"
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("index"))
    options = (run, "--index", index, "--evaluate", folder)
    assert search(*options) == 1 and "no qrels/*.tsv; is it a folder in BEIR's layout?" in capsys.readouterr().err
    (folder / "qrels").mkdir()
    for name in ("dev", "train"):
        (folder / "qrels" / f"{name}.tsv").write_text(JUDGED.replace("q2\tpaper\t1\n", ""))
    assert search(*options) == 1 and "has dev.tsv, train.tsv; name one of them as --qrels" in capsys.readouterr().err
    (folder / "qrels" / "test.tsv").write_text(JUDGED.replace("q2\tpaper\t1\n", ""))
    assert search(*options) == 0
    tested = capsys.readouterr().out
    assert "nDCG@10" in tested and re.search(r"\b1 quer", tested), "q2 has no judgement, and is not searched for"
    assert search(*options, "--qrels", data / "qrels.tsv") == 0
    assert re.search(r"\b2 quer", capsys.readouterr().out)
    assert search(*options, "--queries", folder / "queries.jsonl") == 1
    assert "names the documents and queries; leave --queries out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("top", "candidates", "first", "recalled"),
    [(10, 50, 10, 50), (60, 50, 10, 60), (10, 100, 10, 100), (200, 1, 10, 100), (1, 5, 5, 5)],
)
def test_figures_depth_follows_candidates(run, data, index, capsys, top, candidates, first, recalled):
    fixed = (run, "--index", index, "--queries", data / "queries.jsonl", "--by", "bm25", "--qrels", data / "qrels.tsv")
    assert search(*fixed, "--top", top, "--candidates", candidates) == 0
    heading = capsys.readouterr().out.splitlines()[1].split()
    assert heading == ["by", f"nDCG@{first}", f"recall@{recalled}", f"MRR@{first}", f"judged@{first}"]


def test_search_writes_training_pairs(run, data, index, tmp_path, capsys):
    fixed = (run, "--index", index, "--queries", data / "queries.jsonl", "--by", "bm25", "--qrels", data / "qrels.tsv")
    assert search(*fixed, "--training-pairs", tmp_path / "out") == 0
    rows = {
        split: [
            json.loads(line) for line in (tmp_path / "out" / "relevance" / f"{split}.jsonl").read_text().splitlines()
        ]
        for split in ("train", "dev")
    }
    assert {split: [(row["text"], row["text_b"], row["label"]) for row in some] for split, some in rows.items()} == {
        "train": [
            ("museum opened", "The museum the museum opened in 1877", 1),
            ("museum opened", "drawings of a naive museum", 1),
        ],
        "dev": [("drawings", "drawings of a naive museum", 1)],
    }
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == f"{tmp_path}/out: 2 queries with 3 relevant passages and 0 hard negatives"
    assert f"next: bertjax finetune relevance --init-from {run} --data {tmp_path}/out/relevance" in output
    assert f"next: bertjax finetune pairs --init-from {run} --data {tmp_path}/out/pairs" in output
    assert search(*fixed, "--by", "vectors", "--training-pairs", tmp_path / "hard") == 0
    columns = "--text text text_b negatives"
    output = capsys.readouterr().out.splitlines()
    assert f"next: bertjax finetune pairs --init-from {run} --data {tmp_path}/hard/pairs {columns}" in output


def test_training_pairs_require_train_judgements(run, data, index, tmp_path, capsys):
    folder = shutil.copytree(data, tmp_path / "beir", ignore=shutil.ignore_patterns("index"))
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(JUDGED)
    fixed = (run, "--index", index, "--evaluate", folder, "--training-pairs", tmp_path / "out")
    assert search(*fixed) == 1
    assert "no qrels/train.tsv to make training data from; test.tsv" in capsys.readouterr().err
    (folder / "qrels" / "train.tsv").write_text(JUDGED.replace("q1\topening\t2\n", ""))
    assert search(*fixed) == 0
    assert "2 queries with 2 relevant passages" in capsys.readouterr().out


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Path]:
    """Like BEIR's ArguAna: queries are documents, answered by the next one; the third has its id by chance."""
    texts = {
        "pro-a": ("museums", "the museum  opened in 1877"),
        "pro-b": ("museums", "the museum opened"),
        "con-a": ("letters", "a b c d"),
        "con-b": ("letters", "a b c"),
        "3": ("", "drawings of a museum"),
    }
    queries = {"pro-a": "the museum opened in 1877", "con-a": "letters a b c d", "3": "drawings"}
    judged = [("pro-a", "pro-b"), ("con-a", "con-b"), ("3", "3")]
    rows = {
        "corpus": [{"_id": name, "title": title, "text": text} for name, (title, text) in texts.items()],
        "queries": [{"_id": name, "text": text} for name, text in queries.items()],
    }
    for name, some in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    (tmp_path / "qrels.tsv").write_text("".join(f"{query}\t{document}\t1\n" for query, document in judged))
    return {"documents": tmp_path / "corpus.jsonl", "queries": tmp_path / "queries.jsonl"}


def test_queries_that_are_documents_are_left_out(run, arguments, tmp_path, capsys):
    fixed = [run, "--index", tmp_path / "index"]
    for option, path in arguments.items():
        fixed += [f"--{option}", path]
    # One more result must be retrieved for these queries.
    judged = [*fixed, "--qrels", tmp_path / "qrels.tsv", "--by", "both", "--top", "1", "--candidates", "1"]
    assert search(*judged, "--output", tmp_path / "judged.jsonl") == 0
    output = capsys.readouterr().out
    assert "2 of 3 queries are documents themselves; they are left out of their own results, as BEIR does\n" in output
    assert figures(output)["bm25"] == [1, 1, 1, 1]
    first_ids = result_ids(tmp_path / "judged.jsonl")
    assert all(len(ids) == 1 for ids in first_ids) and first_ids[0] != ["pro-a"] and first_ids[1] != ["con-a"]
    # Without judgements ids are arbitrary, such as line numbers.
    assert search(*fixed, "--output", tmp_path / "all.jsonl") == 0
    assert "documents themselves" not in capsys.readouterr().out
    assert [ids[0] for ids in result_ids(tmp_path / "all.jsonl")[:2]] == ["pro-a", "con-a"]
    assert search(*judged[:-4], "--training-pairs", tmp_path / "pairs") == 0
    rows = [json.loads(line) for path in (tmp_path / "pairs" / "relevance").iterdir() for line in path.open()]
    texts = {(row["text"], row["text_b"]) for row in rows}
    assert ("letters a b c d", "letters a b c") in texts and len(texts) > 6
    assert not texts & {
        ("the museum opened in 1877", "museums the museum  opened in 1877"),
        ("letters a b c d", "letters a b c d"),
    }


@pytest.fixture
def stdin(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Replace this process's standard input; returns a function that sets its text."""
    before = os.dup(0)

    def put(text: str) -> None:
        (tmp_path / "given").write_text(text)
        with (tmp_path / "given").open() as file:
            os.dup2(file.fileno(), 0)

    yield put
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.parametrize("field", [None, "question"])
def test_search_reads_standard_input(run, index, tmp_path, stdin, field):
    stdin("".join((json.dumps({field: text}) if field else text) + "\n" for text in QUERIES.values()))
    options = ["--query-field", field] if field else []
    fixed = (run, "--index", index, "--queries", "-", "--by", "bm25", "--output", tmp_path / "out.jsonl")
    assert search(*fixed, *options) == 0
    assert result_ids(tmp_path / "out.jsonl") == [["opening", "twice", "paper"], ["paper"]]


def test_index_accepts_only_its_model(run, index, tmp_path, capsys):
    same, other = trained_model(tmp_path / "same"), trained_model(tmp_path / "other", layer_norm_eps=1e-6)
    assert search(write_run(same), "museum", "--index", index) == 0
    other.params["encoder"]["layers"]["mlp"]["output"]["bias"] += 1e-3
    assert search(write_run(other), "museum", "--index", index) == 1
    output = capsys.readouterr().err
    assert f"--index {index} was built with {run}, which differs from {tmp_path}/other; use that model" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q", "--index", "NEW"], "NEW: no index there; give the documents to build it: --documents FILE ..."),
        (["q", "--index", "s3://bucket/index"], "--index s3://bucket/index: an index must be a local folder"),
        (["q", "--index", "DATA"], "not an index, because it has no manifest.json; name another folder"),
        (["q", "--index", "NEW", "--documents", "nowhere.txt"], "--documents nowhere.txt: no such file"),
        (
            ["--index", "NEW", "--documents", "DATA/corpus.jsonl", "array"],
            "array: no such file; a query must come before --doc",
        ),
        (
            ["q", "--index", "INDEX", "--documents", "DATA/queries.jsonl"],
            "was built from other documents (corpus.jsonl)",
        ),
        (
            ["q", "--index", "INDEX", "--documents", "DATA/corpus.jsonl", "--field", "title"],
            "was built from other documents",
        ),
        (["q", "--index", "INDEX", "--pooling", "cls"], "pooling=cls: index INDEX was built with pooling=mean"),
        (["q", "--index", "INDEX", "--no-normalize"], "normalize=False: index INDEX was built with normalize=True"),
        (["q", "--index", "INDEX", "--max-length", "32"], "max_length=32: index INDEX was built with max_length=64"),
        (["q", "--index", "INDEX", "--queries", "DATA/queries.jsonl"], "there are queries on the command line too"),
        (["--index", "INDEX", "--queries", "DATA/none.txt"], "DATA/none.txt: the file has no query"),
        (["--index", "INDEX", "--queries", "DATA/twice.jsonl"], "twice.jsonl: two queries have the same id"),
        (["--index", "INDEX", "--qrels", "DATA/qrels.tsv"], "DATA/qrels.tsv requires queries; give QUERY"),
        (["--index", "INDEX", "--output", "out.trec"], "--output out.trec requires queries"),
        (["q", "--index", "INDEX", "--output", "out.csv"], "unsupported format '.csv'; use .jsonl, .trec"),
        (["q", "--index", "INDEX", "--qrels", "DATA/qrels.tsv"], "ids such as '1', and the judgements 'q1', 'q2'"),
        (["q", "--index", "INDEX", "--training-pairs", "NEW"], "--training-pairs NEW requires judgements"),
        (
            ["q", "--index", "INDEX", "--training-pairs", "NEW", "--qrels", "DATA/qrels.tsv", "--output", "out.trec"],
            "--output out.trec: --training-pairs writes other files; leave one of them out",
        ),
        (["q", "--index", "INDEX", "--negatives", "0"], "--negatives 0: give 1 or more"),
        (["q", "--index", "INDEX", "--negatives", "2"], "--negatives requires --training-pairs"),
        (["q", "--index", "INDEX", "--query-field", "question"], "--query-field requires --queries"),
        (["q", "--index", "INDEX", "--top", "0"], "--top 0: give 1 or more"),
        (["q", "--index", "INDEX", "--rerank-by", "both"], "--rerank-by both requires --rerank RUN2"),
        (["--index", "INDEX", "--queries", "DATA/spaces.jsonl", "--output", "out.trec"], "query id 'a b' has spaces"),
    ],
)
def test_bad_arguments_are_rejected_before_writing(run, data, index, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (data / "none.txt").write_text("")
    (data / "twice.jsonl").write_text('{"_id": "a", "text": "b"}\n' * 2)
    (data / "spaces.jsonl").write_text('{"_id": "a b", "text": "the"}\n')
    places = {"INDEX": str(index), "DATA": str(data), "NEW": str(tmp_path / "new")}
    for name, place in places.items():
        arguments, message = [word.replace(name, place) for word in arguments], message.replace(name, place)
    assert search(run, *arguments) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["vectors.npy", "documents.jsonl", "bm25/data.csc.index.npy", "manifest.json"])
def test_damaged_index_file_is_named(run, index, tmp_path, capsys, name):
    folder = tmp_path / "index"
    shutil.copytree(index, folder)
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    assert search(run, "museum", "--index", folder) == 1
    output = capsys.readouterr().err
    assert f"{folder / name}: " in output and "damaged" in output and "build the index again" in output
    (folder / name).unlink()
    assert search(run, "museum", "--index", folder) == 1
    assert name in capsys.readouterr().err


def test_index_of_another_format_is_rejected(index, tmp_path):
    folder = tmp_path / "index"
    shutil.copytree(index, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format_version": 1}))
    with pytest.raises(
        ValueError, match="an index of format 1, but this version of bertjax reads 2; remove the folder"
    ):
        open_index(folder)


def test_interruption_leaves_no_index(run, data, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(index_module, "search_terms", interrupted)
    assert search(run, "museum", "--index", tmp_path / "index", "--documents", data / "corpus.jsonl") == 130
    assert "no partial index was left; run the same command again to start over" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_concurrent_build_is_rejected(run, data, index, tmp_path, capsys, monkeypatch):
    fixed = (run, "museum", "--index", tmp_path / "index", "--documents", data / "corpus.jsonl")
    search_terms, errors = index_module.search_terms, []

    def meanwhile(*arguments):
        if not errors:
            errors.append("")
            assert search(*fixed) == 1
            errors[0] = capsys.readouterr().err
        return search_terms(*arguments)

    monkeypatch.setattr(index_module, "search_terms", meanwhile)
    assert search(*fixed) == 0
    assert f"{tmp_path}/index: another process is writing it; wait for it, or name another folder" in errors[0]
    assert open_index(tmp_path / "index").vectors.tobytes() == open_index(index).vectors.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    # It checked for an index before the other process had finished, and began after that.
    monkeypatch.setattr(searching, "has_index", lambda folder: False)
    assert search(*fixed) == 1
    assert "index: another process has just built the index; run the same command" in capsys.readouterr().err


@pytest.mark.long  # the suite has the formula in test_bm25.py, and the figures on a small collection
def test_bm25_on_cranfield(real_data, tmp_path, capsys):
    """BM25 with a real vocabulary has a known nDCG; vectors of a random model find nothing."""
    data = write_beir(real_data / "retrieval" / "cranfield", tmp_path / "beir")
    vocabulary = load_tokenizer(real_data / "vocab" / "bert-base-uncased" / "vocab.txt", TextRules(True, True))
    run = write_run(trained_model(tmp_path / "run", vocabulary))
    options = ("--documents", data / "corpus.jsonl", "--max-length", "8", "--queries", data / "queries.jsonl")
    assert search(run, "--index", tmp_path / "index", *options, "--by", "both", "--qrels", data / "qrels.tsv") == 0
    output = capsys.readouterr().out
    assert "225 of 225 queries have relevant documents" in output
    assert figures(output)["bm25"][0] == pytest.approx(0.4950, abs=5e-4)
    assert figures(output)["vectors"][0] < 0.1


def figures(output: str) -> dict[str, list[float]]:
    """Parse the table of figures: nDCG@10, recall@100, MRR@10, judged@10."""
    rows = re.findall(r"^  (vectors|bm25|both) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    return {way: [float(value) for value in values] for way, *values in rows}
