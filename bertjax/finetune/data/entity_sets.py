"""Named entities of two fields, in the files of the published sets: a word and its tag per line, blank lines between.

BioBERT's sets (dmis-lab/biobert, `run_ner.py`) have a folder each, such as NCBI-disease, with tabs and the tags B, I
and O: `train.tsv`, `devel.tsv`, `test.tsv`, and `train_dev.tsv`, which is the first two. LeNER-Br (peluz/lener-br), of
Brazilian law, has spaces and tags such as B-PESSOA: `train/train.conll`, `dev/dev.conll`, `test/test.conll`. Test sets
have their tags, so that they are measured too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertjax.finetune.data.examples import TaggedSentence, missing, split_file
from bertjax.finetune.data.tables import Notify
from bertjax.finetune.data.tags import CONLL, read_tagged, require_entities

_JOINED = "train_dev"  # BioBERT's training and development sets in one file


@dataclass(frozen=True)
class EntitySet:
    """The files of a set: its folder's own name, the names of each split within it, their suffix, and the tags."""

    folder: str
    names: Mapping[str, tuple[str, ...]]  # the first that is there
    suffix: str
    tags: tuple[str, ...]


def biobert_set(folder: str) -> EntitySet:
    """One of BioBERT's sets."""
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
    """The sentences of a split in the set's folder, or the one that holds it, or of a file.

    Raises MissingSplitError if there is no file, and ValueError naming file and line of what is wrong in it.
    """
    folder = data / layout.folder if (data / layout.folder).is_dir() else data
    names = layout.names.get(split, (split,))
    found = (split_file(folder, (name,), (layout.suffix,)) for name in names)
    path = data if data.is_file() else next(filter(None, found), None)
    if path is None:
        raise missing(folder, split, [f"{name}{layout.suffix}" for name in names])
    if split == "train" and path.name.startswith(_JOINED):
        notify(f"{path} contains the development set, so its figures will be too high; use {names[0]}{layout.suffix}")
    sentences = read_tagged(path, CONLL)
    require_entities(sentences)
    return sentences
