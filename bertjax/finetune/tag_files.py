"""Files of tagged words, one a line with its columns: as in CoNLL-2003, and CoNLL-U."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bertjax.finetune.examples import TaggedSentence
from bertjax.finetune.whole_text import whole_text
from bertjax.storage.files import replace_text
from bertjax.storage.lines import COMPRESSED

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
UNTAGGED = "_"  # in CoNLL-U

_DOCUMENT = "-DOCSTART-"
_NO_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: a range of words that are written as one, or a word that is not written
_SENTENCE_ID = re.compile(r"# *sent_id *= *(.*)")


@dataclass(frozen=True)
class TagLayout:
    """Which columns, from 0, hold the words and their tags; -1 is the last."""

    word: int
    tag: int
    conllu: bool = False  # ten columns parted by tabs, comments, and lines that are no words

    def place(self, columns: int) -> int:
        """Where the tags are in a line of so many columns; behind the last where words stand alone."""
        return max(columns + self.tag if self.tag < 0 else self.tag, self.word + 1)


CONLL = TagLayout(0, -1)  # as in CoNLL-2003, parted by spaces, or by tabs where a file has any
CONLLU = TagLayout(CONLLU_COLUMNS.index("FORM"), CONLLU_COLUMNS.index("UPOS"), conllu=True)


class _Line(NamedTuple):
    """A line of a file: of a word its columns, else none."""

    number: int
    text: str
    columns: list[str]


def tag_layout(path: Path, column: str = "") -> TagLayout:
    """The layout of a file, CoNLL-U if it is called .conllu; `column` is its tags', by number from 1 or CoNLL-U's name.

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
        tags = tuple(line.columns[layout.place(len(line.columns))] for line in words) if labelled else None
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
    """A file of tags, decompressed, its lines parted by line feeds alone."""
    return whole_text(path).replace("\r\n", "\n")


def write_tags(source: Path, text: str, target: Path, layout: TagLayout, tags: Sequence[Sequence[str]]) -> None:
    """Write the text of `source`, as `tagged_text` gave it, but with these tags of each sentence in the column of tags.

    Where words stand alone, or the column is the one behind the last, it is added.
    """
    words = [[line for line in lines if line.columns] for lines in _sentences(source, text, layout)]
    assert [*map(len, words)] == [*map(len, tags)], "a tag for each word"
    changed = text.split("\n")
    for lines, new in zip(words, tags, strict=True):
        for line, tag in zip(lines, new, strict=True):
            changed[line.number - 1] = _tagged(line, layout, tag)
    replace_text(target, "\n".join(changed))


def write_words(target: Path, sentences: Sequence[TaggedSentence], tags: Sequence[Sequence[str]]) -> None:
    """Write words and these tags, parted by a tab, a word a line and a blank line behind each sentence."""
    parts = [
        "".join(f"{word}\t{tag}\n" for word, tag in zip(sentence.words, new, strict=True))
        for sentence, new in zip(sentences, tags, strict=True)
    ]
    replace_text(target, "".join(f"{part}\n" for part in parts))


def _tagged(line: _Line, layout: TagLayout, tag: str) -> str:
    """A line with another tag; its columns stay parted as they are."""
    parts = re.split(r"(\t)" if "\t" in line.text else r"( +)", line.text.rstrip(" "))
    place = layout.place(len(line.columns))
    if place == len(line.columns):
        return "".join([*parts, parts[1] if len(parts) > 1 else " ", tag])
    parts[2 * place] = tag
    return "".join(parts)


def _require_tag(path: Path, line: _Line, layout: TagLayout) -> None:
    """Raise ValueError unless a word's line has a tag."""
    where, place = f"{path}:{line.number}", layout.place(len(line.columns))
    if place >= len(line.columns):
        raise ValueError(f"{where}: {len(line.columns)} columns, and the tag should be in column {place + 1}")
    tag = line.columns[place]
    if not tag or (layout.conllu and tag == UNTAGGED):
        raise ValueError(f"{where}: {line.columns[layout.word]!r} has no tag in column {place + 1}; give it one")


def _id(lines: Sequence[_Line], layout: TagLayout) -> str:
    """CoNLL-U's id of a sentence; "" if it has none."""
    found = [_SENTENCE_ID.fullmatch(line.text) for line in lines if layout.conllu and not line.columns]
    return next((match[1].strip() for match in found if match), "")


def _sentences(path: Path, text: str, layout: TagLayout) -> Iterator[list[_Line]]:
    """The lines of each sentence that has a word, comments and what is no word among them."""
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
    parted = re.compile("\t" if layout.conllu or "\t" in text else " +")
    width = len(CONLLU_COLUMNS) if layout.conllu else 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (not layout.conllu and line.startswith(_DOCUMENT)):
            yield None
        elif layout.conllu and line.startswith("#"):
            yield _Line(number, line, [])
        else:
            columns = parted.split(line.rstrip(" "))
            width = width or len(columns)
            if len(columns) != width or layout.place(width) > width:
                wanted = max(width, layout.place(width))
                raise ValueError(f"{path}:{number}: {len(columns)} columns and not {wanted}; mend the line")
            if not columns[layout.word]:
                raise ValueError(f"{path}:{number}: no word in column {layout.word + 1}; mend the line")
            is_word = not (layout.conllu and _NO_WORD.fullmatch(columns[0]))
            yield _Line(number, line, columns if is_word else [])
