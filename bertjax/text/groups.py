"""Groups of near relatives among records, such as clusters of proteins, by `data.groups`.

All records of a group are in one split: a held-out record whose relatives were trained on tests nothing. A group is
identified by a uint64 hash of its name; a record without a group forms its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bertjax.config import DataConfig
from bertjax.storage.lines import read_lines
from bertjax.storage.remote import to_path
from bertjax.storage.sums import sha256_of_file
from bertjax.text.documents import Document
from bertjax.text.spans import get_record

_COLUMN = "column"
_ORDERS = {"file": (0, 1), "mmseqs": (1, 0)}  # which field of a line is the record's name, and which the group's


@dataclass(frozen=True)
class Groups:
    """The group of each record: looked up by the record's name, or from the source if `names` is None."""

    names: np.ndarray | None = None  # uint64 [records], ascending hashes
    members: np.ndarray | None = None  # uint64 [records], the group of each

    def of(self, document: Document) -> int | None:
        """The group of a document; None if it has none."""
        record = get_record(document.text)
        if self.names is None or self.members is None:
            return name_hash(record.group) if record.group else None
        place = int(np.searchsorted(self.names, hashed := np.uint64(name_hash(record.name))))
        return int(self.members[place]) if place < len(self.names) and self.names[place] == hashed else None


def name_hash(name: str) -> int:
    """64-bit hash of a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def group_column(data: DataConfig) -> str:
    """The record field that names the group; empty if groups come from a file, or there are none."""
    kind, _, field = data.groups.partition(":")
    return field if kind == _COLUMN else ""


def groups_fingerprint(written: str) -> str:
    """Fingerprint of `data.groups`: the column, or the digest of the file."""
    kind, _, path = written.partition(":")
    if kind == _COLUMN:
        return written
    read_groups(written)
    return f"{kind}:{sha256_of_file(path)}"


@lru_cache(maxsize=1)
def read_groups(written: str) -> Groups:
    """Read the groups of `data.groups`, which is `file:PATH`, `mmseqs:PATH` or `column:FIELD`.

    Raises ValueError for another form, a missing file, a line without two fields, or a record in two groups.
    """
    kind, _, path = written.partition(":")
    if kind == _COLUMN and path:
        return Groups()
    setting = f"data.groups={written!r}"
    if kind not in _ORDERS or not path:
        raise ValueError(
            f"{setting}: write file:PATH (on each line a record and its group), mmseqs:PATH (the group first, as "
            "MMseqs2 writes clusters), or column:FIELD"
        )
    if not to_path(path).is_file():
        raise ValueError(f"{setting}: no such file; give a file with a record and its group on each line")
    record, group = _ORDERS[kind]
    pairs = []
    for number, line in enumerate(read_lines(path, lambda number: None), 1):
        fields = line.split()
        if len(fields) != 2:
            raise ValueError(f"{path}, line {number}: {line[:80]!r}; expected two names, a record and its group")
        pairs.append((name_hash(fields[record]), name_hash(fields[group])))
    table = np.array(pairs, np.uint64).reshape(-1, 2)
    order = np.lexsort((table[:, 1], table[:, 0]))
    names, members = table[order].T
    twice = np.flatnonzero((names[1:] == names[:-1]) & (members[1:] != members[:-1]))
    if len(twice):
        line = int(order[twice[0] : twice[0] + 2].max()) + 1
        raise ValueError(f"{setting}, line {line}: this record was already put in another group; give it one group")
    return Groups(names, members)
