"""Files of tagged words are read and written back; errors name file and line."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from bertjax.finetune.data.tags import (
    CONLL,
    CONLLU,
    read_tagged,
    tag_layout,
    tagged_text,
    tags_in,
    write_tags,
    write_words,
)

CONLL_2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter NNP I-NP I-PER
-DOCSTART- -X- O O

600\u00a0000 CD I-NP O
"""
UD = """# newdoc
# sent_id = one
# text = vámonos 600 000
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tnada\t_\tNOUN\t_\t_\t_\t_\t_\t_
3\t600 000\t_\tNUM\tM\t_\t1\tobl\t_\t_

1\t#\t_\tSYM\tS\t_\t0\troot\t_\t_
"""


def write_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def conll(tmp_path: Path) -> Path:
    return write_file(tmp_path / "train.txt", CONLL_2003)


@pytest.fixture
def conllu(tmp_path: Path) -> Path:
    return write_file(tmp_path / "es-ud-train.conllu", UD)


def test_conll_files_are_read(conll: Path) -> None:
    one, two, three = read_tagged(conll, tag_layout(conll))
    assert (one.where, one.id, one.words, one.tags) == (f"{conll}:3", "1", ("EU", "rejects"), ("I-ORG", "O"))
    assert (one.file, one.locate_word(1)) == (conll, f"{conll}:4")
    assert (two.where, two.words, two.tags) == (f"{conll}:6", ("Peter",), ("I-PER",))
    assert (three.id, three.words) == ("3", ("600\u00a0000",))
    assert read_tagged(conll, tag_layout(conll, "2"))[0].tags == ("NNP", "VBZ")
    assert tags_in([one, two, three]) == ("I-ORG", "I-PER", "O")
    tabs = write_file(conll.with_name("tabs.txt"), CONLL_2003.replace(" ", "\t").replace("\n", "\r\n"))
    assert [s.words for s in read_tagged(tabs, CONLL)] == [s.words for s in (one, two, three)]


def test_conllu_files_are_read(conllu: Path) -> None:
    one, two = read_tagged(conllu, tag_layout(conllu))
    assert (one.id, one.where) == ("one", f"{conllu}:5")
    assert (one.words, one.tags) == (("vamos", "nos", "600 000"), ("VERB", "PRON", "NUM"))
    assert one.locate_word(2) == f"{conllu}:8"
    assert (two.id, two.words) == ("2", ("#",))
    assert read_tagged(conllu, tag_layout(conllu, "xpos"))[0].tags == ("V", "P", "M")
    assert read_tagged(conllu, CONLLU, labelled=False)[0].tags is None


def test_write_tags_keeps_everything_but_tags(conll: Path, conllu: Path) -> None:
    for path, old, new in ((conll, " O\n", " B-X\n"), (conllu, "\tVERB\t", "\tNOUN\t")):
        layout, target = tag_layout(path), path.with_name("predicted")
        tags = [list(sentence.tags) for sentence in read_tagged(path, layout)]
        write_tags(path, tagged_text(path), target, layout, tags)
        assert target.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
        tags = [[new.strip() if tag == old.strip() else tag for tag in part] for part in tags]
        write_tags(path, tagged_text(path), target, layout, tags)
        before, after = path.read_text(encoding="utf-8"), target.read_text(encoding="utf-8")
        parts = [line if line.startswith("-DOC") else line.replace(old, new) for line in before.splitlines(True)]
        assert after == "".join(parts) != before


def test_write_tags_adds_missing_column(tmp_path: Path) -> None:
    source, target = write_file(tmp_path / "test.txt", "a\nb\n\nc\n"), tmp_path / "predicted"
    assert read_tagged(source, CONLL, labelled=False)[0].words == ("a", "b")
    write_tags(source, tagged_text(source), target, CONLL, [["X", "Y"], ["Z"]])
    assert target.read_text(encoding="utf-8") == "a X\nb Y\n\nc Z\n"
    source = write_file(tmp_path / "test.tsv", "a\tN\n")
    write_tags(source, tagged_text(source), target, tag_layout(source, "3"), [["X"]])
    assert target.read_text(encoding="utf-8") == "a\tN\tX\n"


def test_write_words_output_is_readable(tmp_path: Path, conllu: Path) -> None:
    sentences, path = read_tagged(conllu, CONLLU), tmp_path / "words.tsv"
    write_words(path, sentences, [sentence.tags for sentence in sentences])
    assert path.read_text(encoding="utf-8") == "vamos\tVERB\nnos\tPRON\n600 000\tNUM\n\n#\tSYM\n\n"
    again = read_tagged(path, CONLL)
    assert [(s.words, s.tags) for s in again] == [(s.words, s.tags) for s in sentences]


@pytest.mark.parametrize("name", ["en_pud-ud-test", "th_pud-ud-test", "ja_gsd-ud-dev"])
def test_real_treebanks_are_written_back_unchanged(real_data: Path, tmp_path: Path, name: str) -> None:
    path = real_data / "pos" / f"{name}.conllu.xz"
    sentences = read_tagged(path, tag_layout(path))
    with lzma.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    blocks = [block.split("\n") for block in text.strip("\n").split("\n\n")]
    words = [[line.split("\t") for line in block if line.split("\t")[0].isdecimal()] for block in blocks]
    assert [list(s.words) for s in sentences] == [[columns[1] for columns in part] for part in words]
    assert [list(s.tags) for s in sentences] == [[columns[3] for columns in part] for part in words]
    assert all(f"# sent_id = {sentence.id}\n" in text for sentence in sentences)
    write_tags(path, tagged_text(path), tmp_path / "same", tag_layout(path), [sentence.tags for sentence in sentences])
    assert (tmp_path / "same").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "a X O\nb O\n", r":2: 2 columns, not 3; correct"),
        ("a.txt", "a X\n\n Y\n", r":3: no word in column 1"),
        ("a.tsv", "a\tX\nb\t\n", r":2: 'b' has no tag in column 2"),
        ("a.txt", "a\nb\n", r":1: 1 columns, but the tag should be in column 2"),
        ("a.txt", "", "no words"),
        ("a.txt", "-DOCSTART- O\n\n\n", "no words"),
        ("a.conllu", "1\ta\t_\tNOUN\n", r":1: 4 columns, not 10"),
        ("a.conllu", "1\ta\t_\t_\tX\t_\t_\t_\t_\t_\n", r":1: 'a' has no tag in column 4"),
        ("a.conllu", "# sent_id = 1\n", "no words"),
    ],
)
def test_malformed_tag_files_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write_file(tmp_path / name, text)
    with pytest.raises(ValueError, match=message) as error:
        read_tagged(path, tag_layout(path))
    assert str(error.value).startswith(str(path))


def test_missing_or_binary_tag_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(ValueError, match="no such file"):
        read_tagged(path, CONLL)
    path.write_bytes(b"a O\nb\xff O\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: not UTF-8 at byte 5"):
        read_tagged(path, CONLL)


@pytest.mark.parametrize(
    ("name", "column"), [("a.txt", "1"), ("a.txt", "UPOS"), ("a.conllu", "FORM"), ("a.conllu", "4")]
)
def test_tag_layout_rejects_columns_without_tags(name: str, column: str) -> None:
    with pytest.raises(ValueError, match="does not hold tags; give"):
        tag_layout(Path(name), column)


def test_tag_column_beyond_last_is_rejected(conll: Path) -> None:
    with pytest.raises(ValueError, match=r":3: 4 columns, but the tag should be in column 5"):
        read_tagged(conll, tag_layout(conll, "5"))
    with pytest.raises(ValueError, match=r":3: 4 columns, not 5"):
        read_tagged(conll, tag_layout(conll, "6"), labelled=False)
