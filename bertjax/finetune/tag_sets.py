"""Training, development and test sets of tagged words: CoNLL's files, a treebank's, or records with lists of words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.finetune.entity_metrics import entities, is_of_entities
from bertjax.finetune.examples import TaggedSentence
from bertjax.finetune.split_files import missing, split_file
from bertjax.finetune.table_files import SPLIT_NAMES
from bertjax.finetune.table_rows import Row, Tell, Wanted, read_rows, table_suffix
from bertjax.finetune.tag_files import read_tagged, tag_layout

_RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
_SUFFIXES = (".conllu", ".txt", ".conll", ".bio", ".iob", ".iob2", ".tsv", *_RECORDS, "")
_CONLL_NAMES = {"train": ("eng.train",), "dev": ("testa", "eng.testa"), "test": ("testb", "eng.testb")}


@dataclass(frozen=True)
class TagColumns:
    """Which column is what; "" is the usual one of each format."""

    tag: str = ""  # by number from 1, of CoNLL-U and of records by name
    words: str = ""  # of records


def read_tags(columns: TagColumns, named: bool, data: Path, split: str, tell: Tell) -> list[TaggedSentence]:
    """The sentences of the file of a split in a folder, or of a file; a test set is read without its tags.

    Such a file is called train, dev, valid or test with any of many suffixes, eng.testa as CoNLL-2003's, or as
    treebanks are, en_ewt-ud-dev.conllu. `named`: tags are of named entities, O or such as B-PER. Raises
    MissingSplitError if there is none, and ValueError naming file and line of what is wrong in it.
    """
    names = [*SPLIT_NAMES.get(split, (split,)), *_CONLL_NAMES.get(split, ())]
    treebanks = sorted({path.name.partition(".")[0] for path in data.glob(f"*-ud-{split}.conllu*")})
    path = data if data.is_file() else split_file(data, [*names, *treebanks], _SUFFIXES)
    if path is None:
        raise missing(data, split, [f"{name}.*" for name in names] + [f"*-ud-{split}.conllu"])
    labelled = split != "test"
    if columns.words and table_suffix(path) not in _RECORDS:
        raise ValueError(
            f"{path}: task.text={columns.words!r} names the words of records, such as .jsonl, and here they have their "
            "place in the line; leave it out (--text)"
        )
    if table_suffix(path) in _RECORDS:
        sentences = list(_of_records(path, columns, labelled, tell))
    else:
        sentences = read_tagged(path, tag_layout(path, columns.tag), labelled=labelled)
    if named:
        _require_entities(sentences)
    return sentences


def _of_records(path: Path, columns: TagColumns, labelled: bool, tell: Tell) -> Iterator[TaggedSentence]:
    words, tag = columns.words or "tokens", columns.tag or "tags"
    for number, row in enumerate(read_rows(path, Wanted((words, tag) if labelled else (words,)), tell)):
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


def _require_entities(sentences: Sequence[TaggedSentence]) -> None:
    for sentence in sentences:
        try:
            entities(sentence.tags or ())
        except ValueError as error:
            wrong = next(place for place, tag in enumerate(sentence.tags or ()) if not is_of_entities(tag))
            raise ValueError(f"{sentence.where_of(wrong)}: {error}") from None
