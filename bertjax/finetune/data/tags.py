"""Tagged words: CoNLL's files of one word a line, CoNLL-U, and records with lists of words."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.finetune.data.examples import SPLIT_NAMES, TaggedSentence, missing, split_file, whole_text
from bertjax.finetune.data.tables import WITHOUT_TABS, Notify, Row, Wanted, read_rows, table_suffix
from bertjax.finetune.metrics.entities import entities, is_of_entities
from bertjax.storage.files import replace_text
from bertjax.storage.lines import COMPRESSED

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
UNTAGGED = "_"  # in CoNLL-U

_RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
_SUFFIXES = (".conllu", ".txt", ".conll", ".bio", ".iob", ".iob2", ".tsv", *_RECORDS, "")
_CONLL_NAMES = {"train": ("eng.train",), "dev": ("testa", "eng.testa"), "test": ("testb", "eng.testb")}
_DOCUMENT = "-DOCSTART-"
_NO_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: a range of words written as one, or a word that is not written
_SENTENCE_ID = re.compile(r"# *sent_id *= *(.*)")


@dataclass(frozen=True)
class TagLayout:
    """The columns, from 0, of the words and of their tags; -1 is the last."""

    word: int
    tag: int
    conllu: bool = False  # ten columns separated by tabs, comments, and lines that are not words

    def tag_column(self, columns: int) -> int:
        """The column of the tag in a line of `columns` columns; one after the last if a line has a word only."""
        return max(columns + self.tag if self.tag < 0 else self.tag, self.word + 1)


@dataclass(frozen=True)
class TagColumns:
    """The columns of tags and words; "" is the usual one of each format."""

    tag: str = ""  # a number from 1; in CoNLL-U and in records a name
    words: str = ""  # in records


CONLL = TagLayout(0, -1)  # as in CoNLL-2003, separated by spaces, or by tabs where a file has any
CONLLU = TagLayout(CONLLU_COLUMNS.index("FORM"), CONLLU_COLUMNS.index("UPOS"), conllu=True)


class _Line(NamedTuple):
    """A line of a file, with its columns if it is a word's."""

    number: int
    text: str
    columns: list[str]


def read_tags(columns: TagColumns, named: bool, data: Path, split: str, notify: Notify) -> list[TaggedSentence]:
    """The sentences of a split's file in a folder, or of a file; a test set is read without its tags.

    The file is named train, dev, valid or test with one of several suffixes, or as CoNLL-2003's are (eng.testa), or as
    those of treebanks (en_ewt-ud-dev.conllu). `named`: tags are of named entities, O or such as B-PER. Raises
    MissingSplitError if there is no file, and ValueError naming file and line of what is wrong in it.
    """
    names = [*SPLIT_NAMES.get(split, (split,)), *_CONLL_NAMES.get(split, ())]
    treebanks = sorted({path.name.partition(".")[0] for path in data.glob(f"*-ud-{split}.conllu*")})
    path = data if data.is_file() else split_file(data, [*names, *treebanks], _SUFFIXES)
    if path is None:
        raise missing(data, split, [f"{name}.*" for name in names] + [f"*-ud-{split}.conllu"])
    labelled = split != "test"
    if columns.words and table_suffix(path) not in _RECORDS:
        raise ValueError(
            f"{path}: task.text={columns.words!r} names the words of records, such as .jsonl, and the columns of "
            "this file are fixed; leave it out (--text)"
        )
    if table_suffix(path) in _RECORDS:
        sentences = list(_of_records(path, columns, labelled, notify))
    else:
        sentences = read_tagged(path, tag_layout(path, columns.tag), labelled=labelled)
    if named:
        require_entities(sentences)
    return sentences


def tag_layout(path: Path, column: str = "") -> TagLayout:
    """The layout of a file, CoNLL-U if its suffix is .conllu; `column`: of the tags, a number from 1 or CoNLL-U's name.

    Raises ValueError if there is no such column.
    """
    name = path.stem if path.suffix in COMPRESSED else path.name
    layout = CONLLU if name.endswith(".conllu") else CONLL
    if not column:
        return layout
    if layout.conllu and column.upper() in CONLLU_COLUMNS[2:]:
        return replace(layout, tag=CONLLU_COLUMNS.index(column.upper()))
    if not layout.conllu and column.isdecimal() and int(column) > 1:
        return replace(layout, tag=int(column) - 1)
    columns = f"one of {', '.join(CONLLU_COLUMNS[2:])}" if layout.conllu else "a number from 2, words being column 1"
    raise ValueError(f"column {column!r} of {path}: it holds no tags; give {columns}")


def read_tagged(path: Path, layout: TagLayout, *, labelled: bool = True) -> list[TaggedSentence]:
    """The sentences of a file, in order; without tags where not `labelled`. It may be compressed.

    Their ids are CoNLL-U's sent_id, else their numbers from 1. Raises ValueError naming file and line for a line with
    another number of columns than the others, or without word or tag; and naming the file if it has no word.
    """
    sentences = []
    for lines in _sentences(path, tagged_text(path), layout):
        words = [line for line in lines if line.columns]
        for line in words:
            if labelled:
                _require_tag(path, line, layout)
        name = _id(lines, layout) or str(len(sentences) + 1)
        forms = tuple(line.columns[layout.word] for line in words)
        tags = tuple(line.columns[layout.tag_column(len(line.columns))] for line in words) if labelled else None
        lines_of_words = tuple(line.number for line in words)
        sentences.append(TaggedSentence(f"{path}:{words[0].number}", name, forms, tags, lines_of_words))
    if not sentences:
        raise ValueError(f"{path}: no word in it; it needs one a line, with its tag in another column")
    return sentences


def tags_in(sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    """The tags of sentences, sorted. Raises ValueError naming the first sentence if it has none."""
    if not sentences or sentences[0].tags is None:
        raise ValueError(
            f"{sentences[0].where if sentences else 'no sentence'}: no tags to learn; give a file with some"
        )
    return tuple(sorted({tag for sentence in sentences for tag in sentence.tags or ()}))


def tagged_text(path: Path) -> str:
    """A file of tags, decompressed, its lines separated by line feeds only."""
    return whole_text(path).replace("\r\n", "\n")


def write_tags(source: Path, text: str, target: Path, layout: TagLayout, tags: Sequence[Sequence[str]]) -> None:
    """Write the text of `source`, as `tagged_text` returned it, with these tags of each sentence in the column of tags.

    If lines have a word only, or that column is one after the last, it is added.
    """
    words = [[line for line in lines if line.columns] for lines in _sentences(source, text, layout)]
    assert [*map(len, words)] == [*map(len, tags)], "a tag for each word"
    changed = text.split("\n")
    for lines, new in zip(words, tags, strict=True):
        for line, tag in zip(lines, new, strict=True):
            changed[line.number - 1] = _tagged(line, layout, tag)
    replace_text(target, "\n".join(changed))


def write_words(target: Path, sentences: Sequence[TaggedSentence], tags: Sequence[Sequence[str]]) -> None:
    """Write a line for each word with its tag after a tab, and a blank line after each sentence.

    Tabs and line ends in words, which records may have, become spaces.
    """
    parts = [
        "".join(f"{word.translate(WITHOUT_TABS)}\t{tag}\n" for word, tag in zip(sentence.words, new, strict=True))
        for sentence, new in zip(sentences, tags, strict=True)
    ]
    replace_text(target, "".join(f"{part}\n" for part in parts))


def _tagged(line: _Line, layout: TagLayout, tag: str) -> str:
    """A line with another tag; its columns keep their separators."""
    parts = re.split(r"(\t)" if "\t" in line.text else r"( +)", line.text.rstrip(" "))
    column = layout.tag_column(len(line.columns))
    if column == len(line.columns):
        return "".join([*parts, parts[1] if len(parts) > 1 else " ", tag])
    parts[2 * column] = tag
    return "".join(parts)


def _require_tag(path: Path, line: _Line, layout: TagLayout) -> None:
    """Raise ValueError unless a word's line has a tag."""
    where, column = f"{path}:{line.number}", layout.tag_column(len(line.columns))
    if column >= len(line.columns):
        raise ValueError(f"{where}: {len(line.columns)} columns, and the tag should be in column {column + 1}")
    tag = line.columns[column]
    if not tag or (layout.conllu and tag == UNTAGGED):
        raise ValueError(f"{where}: {line.columns[layout.word]!r} has no tag in column {column + 1}; give it one")


def _id(lines: Sequence[_Line], layout: TagLayout) -> str:
    """CoNLL-U's id of a sentence; "" if it has none."""
    found = [_SENTENCE_ID.fullmatch(line.text) for line in lines if layout.conllu and not line.columns]
    return next((match[1].strip() for match in found if match), "")


def _sentences(path: Path, text: str, layout: TagLayout) -> Iterator[list[_Line]]:
    """The lines of each sentence that has a word, with its comments and lines that are not words."""
    lines: list[_Line] = []
    for line in itertools.chain(_lines(path, text, layout), [None]):
        if line is not None:
            lines.append(line)
            continue
        if any(line.columns for line in lines):
            yield lines
        lines = []


def _lines(path: Path, text: str, layout: TagLayout) -> Iterator[_Line | None]:
    """The lines of a text; None between sentences."""
    separator = re.compile("\t" if layout.conllu or "\t" in text else " +")
    width = len(CONLLU_COLUMNS) if layout.conllu else 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (not layout.conllu and line.startswith(_DOCUMENT)):
            yield None
        elif layout.conllu and line.startswith("#"):
            yield _Line(number, line, [])
        else:
            columns = separator.split(line.rstrip(" "))
            width = width or len(columns)
            if len(columns) != width or layout.tag_column(width) > width:
                wanted = max(width, layout.tag_column(width))
                raise ValueError(f"{path}:{number}: {len(columns)} columns and not {wanted}; correct the line")
            if not columns[layout.word]:
                raise ValueError(f"{path}:{number}: no word in column {layout.word + 1}; correct the line")
            is_word = not (layout.conllu and _NO_WORD.fullmatch(columns[0]))
            yield _Line(number, line, columns if is_word else [])


def _of_records(path: Path, columns: TagColumns, labelled: bool, notify: Notify) -> Iterator[TaggedSentence]:
    words, tag = columns.words or "tokens", columns.tag or "tags"
    for number, row in enumerate(read_rows(path, Wanted((words, tag) if labelled else (words,)), notify)):
        forms = _listed(row, words)
        tags = _listed(row, tag) if labelled else None
        if not forms or (tags is not None and len(tags) != len(forms)):
            there = "" if tags is None else f" and {len(tags)} in {tag!r}"
            raise ValueError(f"{row.where}: {len(forms)} in {words!r}{there}; give words, and a tag for each")
        yield TaggedSentence(row.where, str(number), forms, tags)


def _listed(row: Row, column: str) -> tuple[str, ...]:
    found: Any = row.values[column]
    if not isinstance(found, Sequence) or isinstance(found, str) or not all(isinstance(x, str) and x for x in found):
        raise ValueError(f"{row.where}: {column!r} is {str(found)[:60]!r} and should be a list of texts")
    return tuple(found)


def require_entities(sentences: Sequence[TaggedSentence]) -> None:
    """Raise ValueError naming file and line of the first tag that is not `O` or such as `B-PER` or `B`."""
    for sentence in sentences:
        try:
            entities(sentence.tags or ())
        except ValueError as error:
            wrong = next(word for word, tag in enumerate(sentence.tags or ()) if not is_of_entities(tag))
            raise ValueError(f"{sentence.where_of(wrong)}: {error}") from None
