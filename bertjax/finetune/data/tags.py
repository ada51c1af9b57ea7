"""Tagged words: CoNLL files (one word per line), CoNLL-U, records with lists of words, and published sets of entities.

In a record, a text without white space stands for the list of its letters: a sequence, or one-letter tags.

Each of BioBERT's sets (dmis-lab/biobert, `run_ner.py`) is a folder such as NCBI-disease, with tabs and the tags B, I
and O: `train.tsv`, `devel.tsv`, `test.tsv`, and `train_dev.tsv`, which joins the first two. LeNER-Br (peluz/lener-br),
of Brazilian law, has spaces and tags such as B-PESSOA: `train/train.conll`, `dev/dev.conll`, `test/test.conll`. The
test sets are tagged, so that they are measured too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.finetune.data.examples import SPLIT_NAMES, TaggedSentence, missing, split_file, whole_text
from bertjax.finetune.data.tables import WITHOUT_TABS, Notify, Selection, read_rows, table_suffix
from bertjax.finetune.metrics.entities import entities, is_entity_tag
from bertjax.storage.files import replace_text
from bertjax.storage.lines import COMPRESSED

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
UNTAGGED = "_"  # in CoNLL-U

_RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".csv")
_SUFFIXES = (".conllu", ".txt", ".conll", ".bio", ".iob", ".iob2", ".tsv", *_RECORDS, "")
_CONLL_NAMES = {"train": ("eng.train",), "dev": ("testa", "eng.testa"), "test": ("testb", "eng.testb")}
_DOCUMENT = "-DOCSTART-"
_NO_WORD = re.compile(r"\d+[-.]\d+")  # IDs of CoNLL-U's multiword tokens (1-2) and empty nodes (1.1)
_SENTENCE_ID = re.compile(r"# *sent_id *= *(.*)")


@dataclass(frozen=True)
class TagLayout:
    """The columns of words and of tags, from 0; -1 is the last."""

    word: int
    tag: int
    conllu: bool = False  # ten columns separated by tabs, comments, and lines that are not words

    def tag_column(self, columns: int) -> int:
        """Return the index of the tag in a line of `columns` columns; one after the last if the line has no tags."""
        return max(columns + self.tag if self.tag < 0 else self.tag, self.word + 1)


@dataclass(frozen=True)
class TagColumns:
    """The columns of tags and words; "" selects the format's default."""

    tag: str = ""  # a number from 1; in CoNLL-U and in records a name
    words: str = ""  # in records


CONLL = TagLayout(0, -1)  # as in CoNLL-2003, separated by spaces, or by tabs if a file has any
CONLLU = TagLayout(CONLLU_COLUMNS.index("FORM"), CONLLU_COLUMNS.index("UPOS"), conllu=True)


class _Line(NamedTuple):
    """A line of a file; it has columns only if it holds a word."""

    number: int
    text: str
    columns: list[str]


def read_tags(columns: TagColumns, named: bool, data: Path, split: str, notify: Notify) -> list[TaggedSentence]:
    """Read a split from a folder or a file; a test set is read without its tags.

    The file is named train, dev, valid or test with one of several suffixes, or as in CoNLL-2003 (eng.testa) or a
    treebank (en_ewt-ud-dev.conllu). `named`: tags must name entities, such as B-PER, or be O. Raises
    MissingSplitError for a missing file, and ValueError naming file and line of an error in it.
    """
    path = _split_path(data, split, _SUFFIXES)
    labelled = split != "test"
    if columns.words and table_suffix(path) not in _RECORDS:
        raise ValueError(
            f"{path}: task.text={columns.words!r} names the column of words in records, such as .jsonl, but the "
            "columns of this file are fixed; leave it out (--text)"
        )
    if table_suffix(path) in _RECORDS:
        sentences = list(_read_records(path, columns, labelled, notify))
    else:
        sentences = read_tagged(path, tag_layout(path, columns.tag), labelled=labelled)
    if named:
        require_entities(sentences)
    return sentences


def read_numbers(columns: TagColumns, data: Path, split: str, notify: Notify) -> list[TaggedSentence]:
    """Read records with lists of words and of numbers, one or null per word; a string of numbers has spaces between.

    The tags are the numbers as text, or "" for null. Raises as `read_tags` does, and ValueError naming file and line of
    anything that is not a finite number.
    """
    path = _split_path(data, split, _RECORDS)
    if table_suffix(path) not in _RECORDS:
        raise ValueError(f"{path}: numbers per word are read from records; give a file ending in {', '.join(_RECORDS)}")
    return list(_read_records(path, columns, split != "test", notify, "numbers", _numbers))


def _split_path(data: Path, split: str, suffixes: Sequence[str]) -> Path:
    """Find the file of a split. Raises MissingSplitError if there is none."""
    names = [*SPLIT_NAMES.get(split, (split,)), *_CONLL_NAMES.get(split, ())]
    treebanks = sorted({path.name.partition(".")[0] for path in data.glob(f"*-ud-{split}.conllu*")})
    path = data if data.is_file() else split_file(data, [*names, *treebanks], suffixes)
    if path is None:
        raise missing(data, split, [f"{name}.*" for name in names] + [f"*-ud-{split}.conllu"])
    return path


def tag_layout(path: Path, column: str = "") -> TagLayout:
    """Choose the layout of a file by its suffix. The tags' `column` is a number from 1, or in CoNLL-U a name.

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
    raise ValueError(f"column {column!r} of {path} does not hold tags; give {columns}")


def read_tagged(path: Path, layout: TagLayout, *, labelled: bool = True) -> list[TaggedSentence]:
    """Read the sentences of a file, in order; without tags unless `labelled`. It may be compressed.

    Ids are CoNLL-U's sent_id, else numbers from 1. Raises ValueError naming file and line for a line whose number of
    columns differs from the others, or without word or tag; and naming a file without words.
    """
    sentences = []
    for lines in _sentences(path, tagged_text(path), layout):
        words = [line for line in lines if line.columns]
        tags: list[str] = []
        for line in words if labelled else ():
            where, column = f"{path}:{line.number}", layout.tag_column(len(line.columns))
            if column >= len(line.columns):
                raise ValueError(f"{where}: {len(line.columns)} columns, but the tag should be in column {column + 1}")
            tag = line.columns[column]
            if not tag or (layout.conllu and tag == UNTAGGED):
                raise ValueError(
                    f"{where}: {line.columns[layout.word]!r} has no tag in column {column + 1}; give it one"
                )
            tags.append(tag)
        ids = [_SENTENCE_ID.fullmatch(line.text) for line in lines if layout.conllu and not line.columns]
        name = next((match[1].strip() for match in ids if match), "") or str(len(sentences) + 1)
        forms, numbers = zip(*((line.columns[layout.word], line.number) for line in words), strict=True)
        sentences.append(
            TaggedSentence(f"{path}:{numbers[0]}", name, forms, tuple(tags) if labelled else None, numbers)
        )
    if not sentences:
        raise ValueError(f"{path}: no words; write one per line, with its tag in another column")
    return sentences


def tags_in(sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    """List the sorted tags of sentences. Raises ValueError naming the first sentence if it has none."""
    if not sentences or sentences[0].tags is None:
        raise ValueError(f"{sentences[0].where if sentences else 'no sentence'}: no tags to learn; give a tagged file")
    return tuple(sorted({tag for sentence in sentences for tag in sentence.tags or ()}))


def tagged_text(path: Path) -> str:
    """Read a file of tags, decompressed, with line feeds as the only line ends."""
    return whole_text(path).replace("\r\n", "\n")


def write_tags(source: Path, text: str, target: Path, layout: TagLayout, tags: Sequence[Sequence[str]]) -> None:
    """Write the `text` of `source`, from `tagged_text`, with new tags; adds the column of tags if it is missing."""
    words = [[line for line in lines if line.columns] for lines in _sentences(source, text, layout)]
    lines = text.split("\n")
    for sentence, sentence_tags in zip(words, tags, strict=True):
        for line, tag in zip(sentence, sentence_tags, strict=True):
            # Columns keep their separators.
            parts = re.split(r"(\t)" if "\t" in line.text else r"( +)", line.text.rstrip(" "))
            column = layout.tag_column(len(line.columns))
            if column == len(line.columns):
                parts += [parts[1] if len(parts) > 1 else " ", tag]
            else:
                parts[2 * column] = tag
            lines[line.number - 1] = "".join(parts)
    replace_text(target, "\n".join(lines))


def write_words(target: Path, sentences: Sequence[TaggedSentence], tags: Sequence[Sequence[str]]) -> None:
    """Write a line for each word with its tag, separated by a tab, and a blank line after each sentence."""
    parts = [
        "".join(f"{word.translate(WITHOUT_TABS)}\t{tag}\n" for word, tag in zip(sentence.words, new, strict=True))
        for sentence, new in zip(sentences, tags, strict=True)
    ]
    replace_text(target, "".join(f"{part}\n" for part in parts))


def _sentences(path: Path, text: str, layout: TagLayout) -> Iterator[list[_Line]]:
    """Yield the lines, comments included, of each sentence that has words."""
    for is_end, group in itertools.groupby(_lines(path, text, layout), lambda line: line is None):
        lines = [line for line in group if line is not None]
        if not is_end and any(line.columns for line in lines):
            yield lines


def _lines(path: Path, text: str, layout: TagLayout) -> Iterator[_Line | None]:
    """Yield the lines of a text, with None between sentences."""
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
                expected = max(width, layout.tag_column(width))
                raise ValueError(f"{path}:{number}: {len(columns)} columns, not {expected}; correct the line")
            if not columns[layout.word]:
                raise ValueError(f"{path}:{number}: no word in column {layout.word + 1}; correct the line")
            is_word = not (layout.conllu and _NO_WORD.fullmatch(columns[0]))
            yield _Line(number, line, columns if is_word else [])


def _read_records(
    path: Path,
    columns: TagColumns,
    labelled: bool,
    notify: Notify,
    tag: str = "tags",
    read_list: Callable[[Any, str], tuple[str, ...]] | None = None,
) -> Iterator[TaggedSentence]:
    """Read the records of a file. `tag` is the default column of tags, which `read_list` parses."""
    names = (columns.words or "tokens", columns.tag or tag)[: 2 if labelled else 1]
    for number, row in enumerate(read_rows(path, Selection(names), notify)):
        readers = (_texts, read_list or _texts)
        lists = [read(row.values[name], f"{row.where}: {name!r}") for read, name in zip(readers, names, strict=False)]
        sizes = [len(value) for value in lists]
        if not sizes[0] or sizes[0] != sizes[-1]:
            counts = " and ".join(f"{size} in {name!r}" for size, name in zip(sizes, names, strict=True))
            raise ValueError(f"{row.where}: {counts}; give words, and a {tag.removesuffix('s')} for each")
        yield TaggedSentence(row.where, str(number), lists[0], lists[1] if labelled else None)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    """Parse a list of texts, or the letters of a text without white space."""
    is_sequence = isinstance(value, str) and len(value.split()) == 1
    texts = [*value.strip()] if is_sequence else value
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not is_list or not all(isinstance(x, str) and x for x in texts):
        raise ValueError(f"{where} is {str(value)[:60]!r}, not a list of texts")
    return tuple(texts)


def _numbers(value: Any, where: str) -> tuple[str, ...]:
    """Parse numbers into text, "" for null; in a string they are separated by spaces, and `nan` is null."""
    numbers = value.split() if isinstance(value, str) else value
    try:
        if not isinstance(numbers, Sequence):
            raise ValueError
        values = [math.nan if number is None else float(number) for number in numbers]
        if any(map(math.isinf, values)):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"{where} is {str(value)[:60]!r}, not a list of numbers") from None
    return tuple("" if math.isnan(number) else repr(number) for number in values)


def require_entities(sentences: Sequence[TaggedSentence]) -> None:
    """Raise ValueError naming file and line of the first tag that is neither `O` nor like `B-PER` or `B`."""
    for sentence in sentences:
        try:
            entities(sentence.tags or ())
        except ValueError as error:
            word = next(number for number, tag in enumerate(sentence.tags or ()) if not is_entity_tag(tag))
            raise ValueError(f"{sentence.locate_word(word)}: {error}") from None


_JOINED = "train_dev"  # BioBERT's training and development sets in one file


@dataclass(frozen=True)
class EntitySet:
    """A published set of tagged entities."""

    folder: str
    names: Mapping[str, tuple[str, ...]]  # the first that exists is read
    suffix: str
    tags: tuple[str, ...]


def biobert_set(folder: str) -> EntitySet:
    """Describe one of BioBERT's sets."""
    names = {"train": ("train", _JOINED), "dev": ("devel",), "test": ("test",)}
    return EntitySet(folder, names, ".tsv", ("B", "I", "O"))


_TYPES = ("JURISPRUDENCIA", "LEGISLACAO", "LOCAL", "ORGANIZACAO", "PESSOA", "TEMPO")
LENER_BR = EntitySet(
    "leNER-Br",
    {split: (f"{split}/{split}", split) for split in ("train", "dev", "test")},
    ".conll",
    (*(f"{kind}-{type_}" for kind in "BI" for type_ in _TYPES), "O"),
)


def read_entity_set(layout: EntitySet, data: Path, split: str, notify: Notify) -> list[TaggedSentence]:
    """Read a split from the set's folder, the folder above it, or a file.

    Raises MissingSplitError for a missing file, and ValueError naming file and line of an error in it.
    """
    folder = data / layout.folder if (data / layout.folder).is_dir() else data
    names = layout.names.get(split, (split,))
    paths = (split_file(folder, (name,), (layout.suffix,)) for name in names)
    path = data if data.is_file() else next(filter(None, paths), None)
    if path is None:
        raise missing(folder, split, [f"{name}{layout.suffix}" for name in names])
    if split == "train" and path.name.startswith(_JOINED):
        notify(f"{path} contains the development set, so its figures will be too high; use {names[0]}{layout.suffix}")
    sentences = read_tagged(path, CONLL)
    require_entities(sentences)
    return sentences
