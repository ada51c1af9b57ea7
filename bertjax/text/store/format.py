"""The token store, format version 1: memory-mapped tokens of a corpus, each block verified when first read.

A store is a directory:
    manifest.json            counts, tokenizer, fingerprint, and of each file its size, its SHA-256 and the SHA-256 of
                             each block of 1 MiB
    vocab.txt or similar     the vocabulary of the ids
    train-00000.tokens       ids, flat, little endian, uint16 (uint32 if the vocabulary has more than 65,536 entries)
    train-00000.sentences    int64 [sentences + 1], offsets into the shard's tokens
    train-00000.documents    int64 [documents + 1], offsets into the shard's sentences
    held_out-00000...        the same for the held-out documents
    train-00000.continues    with a segmenter: bool, whether a token continues the word before it
    train-00000.phrases      with data.units: bool, whether a token continues the phrase or word before it
    train-00000.entities     the same for entities
If documents are pieces of works, a shard's record in the manifest has `works`: the number of pieces of each, in order.
Every sentence has a token and every document a sentence. `planes` in the manifest names the further per-token arrays.
`writer.write_store` makes a store of ids, `prepare` one of text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.text.ragged import range_indices
from bertjax.text.store.manifest import (
    BLOCK_BYTES,
    GROUP_DTYPE,
    GROUPS,
    OFFSET_DTYPE,
    PLANES,
    SPLITS,
    Split,
    read_manifest,
)
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer


class TokenStore:
    """A store opened for reading."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.special: dict[str, int] = manifest["tokenizer"]["special"]  # pad, unk, cls, sep, mask
        about = manifest["provenance"]
        homes, units = about.get("shard_sources", {}), about.get("units")
        # A source may have no document in a split. A plane without a unit of its kind counts as absent.
        num_sources = max(len(about.get("sources", ())), *(1 + home for of in homes.values() for home in of), 0)
        segmented = ["continues"] * ("segmenter" in about)
        present = [plane for plane in PLANES if units is None or plane in units or plane in segmented]
        self._splits = {
            split: SplitView(
                [
                    _Shard(path, shard, manifest["token_dtype"], present)
                    for shard in manifest["splits"][split]["shards"]
                ],
                homes.get(split),
                num_sources,
            )
            for split in SPLITS
        }

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Open a store without reading tokens.

        Raises ValueError if it is not a store, has another format version or a changed manifest, or a file is missing
        or of another size.
        """
        return cls(Path(path), read_manifest(Path(path)))

    def split(self, name: Split) -> SplitView:
        """The documents of a split as one corpus."""
        if name not in self._splits:
            raise ValueError(f"token store {self.path}: no split {name!r}; it has {', '.join(self._splits)}")
        return self._splits[name]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the store's ids.

        Raises ValueError if its vocabulary is not that of the manifest.
        """
        about = self.manifest["tokenizer"]
        tokenizer = load_tokenizer(self.path, TextRules.from_dict(about))
        if tokenizer.fingerprint != about["fingerprint"]:
            raise ValueError(
                f"token store {self.path}: its vocabulary is not the one it was made with; prepare it again"
            )
        return tokenizer

    def verify(self) -> None:
        """Check every block of every file. Raises ValueError naming the first damaged file and byte offset."""
        for view in self._splits.values():
            view.verify()


class SplitView:
    """One split of a store: its shards as one corpus, with offsets over all of them."""

    def __init__(self, shards: list[_Shard], sources: list[int] | None = None, num_sources: int = 0) -> None:
        self._shards, self._sources = shards, sources
        self.num_sources = num_sources  # of the store; a source may have no document in the split
        self._first_sentence = _bases([shard.num_sentences for shard in shards])
        self._first_token = _bases([shard.num_tokens for shard in shards])
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_sentences = int(self._first_sentence[-1])
        self.num_tokens = int(self._first_token[-1])

    @cached_property
    def document_offsets(self) -> np.ndarray:
        """int64 [documents + 1]: the sentence at which each document starts."""
        return _joined([shard.documents for shard in self._shards], self._first_sentence)

    @cached_property
    def sentence_offsets(self) -> np.ndarray:
        """int64 [sentences + 1]: the token at which each sentence starts."""
        return _joined([shard.sentences for shard in self._shards], self._first_token)

    @cached_property
    def works(self) -> np.ndarray | None:
        """int64 [documents]: the work that each document is a piece of; None if documents are whole works."""
        works = [shard.works for shard in self._shards if shard.works is not None]
        if not works or len(works) < len(self._shards):
            return None
        pieces = np.concatenate(works)
        return np.repeat(np.arange(len(pieces)), pieces)

    @cached_property
    def groups(self) -> np.ndarray | None:
        """uint64 [documents]: the group of near relatives of each document; None for a store without groups."""
        groups = [shard.groups.whole() for shard in self._shards if shard.groups is not None]
        return np.concatenate(groups) if groups and len(groups) == len(self._shards) else None

    @property
    def has_sources(self) -> bool:
        """Whether the store records the source of each document."""
        return self._sources is not None

    @cached_property
    def source_edges(self) -> np.ndarray:
        """int64 [sources + 1]: the document with which each source starts.

        Raises ValueError if the store does not record sources.
        """
        held = np.zeros(self.num_sources, np.int64)
        np.add.at(held, self._homes(), [shard.num_documents for shard in self._shards])
        return _bases(held)

    def select_source(self, source: int) -> SplitView:
        """The documents of one source. Raises ValueError if the store does not record sources."""
        return SplitView([shard for shard, home in zip(self._shards, self._homes(), strict=True) if home == source])

    def _homes(self) -> list[int]:
        if self._sources is None:
            raise ValueError(
                "token store: it does not record the source of each document, as older ones do not; delete it and "
                "prepare it again"
            )
        return self._sources

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of ranges [start, start + length), concatenated in order: uint16 or uint32 [sum of lengths].

        starts, lengths: int64 [n]; a range must not cross the end of a document. Raises ValueError for a range outside
        the split, and, naming file and byte offset, for a damaged block that is read for the first time.
        """
        return self._gather([shard.tokens for shard in self._shards], starts, lengths)

    @property
    def has_words(self) -> bool:
        """Whether a segmenter or units marked words in the store."""
        return self.has_plane("continues")

    def has_plane(self, plane: str) -> bool:
        """Whether the split has this plane."""
        return all(plane in shard.present for shard in self._shards)

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str = "continues") -> np.ndarray:
        """Whether each token of ranges continues the word or unit before it, by a plane: bool [sum of lengths].

        Otherwise like `tokens`.
        """
        return self._gather([shard.planes[plane] for shard in self._shards], starts, lengths)

    def _gather(self, files: list[_CheckedFile], starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The values of ranges in per-token files, one file per shard."""
        starts, lengths = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
        self._check_ranges(starts, lengths)
        if len(files) == 1:
            return files[0].take(range_indices(starts, lengths), starts, lengths)
        home = np.searchsorted(self._first_token, starts, side="right") - 1
        order = np.argsort(home, kind="stable")
        local, sizes = starts[order] - self._first_token[home[order]], lengths[order]
        indices, ends = range_indices(local, sizes), _bases(sizes)
        gathered = np.empty(len(indices), files[0].dtype if files else np.uint16)
        edges = np.searchsorted(home[order], np.arange(len(files) + 1))
        for file, a, b in zip(files, edges[:-1], edges[1:], strict=True):
            if a < b:
                span = slice(ends[a], ends[b])
                gathered[span] = file.take(indices[span], local[a:b], sizes[a:b])
        out = np.empty_like(gathered)
        out[range_indices(_bases(lengths)[:-1][order], sizes)] = gathered
        return out

    def verify(self) -> None:
        """Check every block. Raises ValueError naming the first damaged file and byte offset."""
        for shard in self._shards:
            for file in (shard.tokens, shard.sentences, shard.documents, *shard.planes.values()):
                file.whole()
            if shard.groups is not None:
                shard.groups.whole()

    def _check_ranges(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        if not len(starts):
            return
        bad = (starts < 0) | (lengths < 0) | (starts >= self.num_tokens)
        if not bad.any():
            bad = starts + lengths > self._first_token[np.searchsorted(self._first_token, starts, side="right")]
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"token range {first}: start {starts[first]}, length {lengths[first]} is not inside one shard of the "
                f"split (it has {self.num_tokens} tokens); ranges must lie within documents"
            )


class _Shard:
    """The files of one shard."""

    def __init__(self, folder: Path, record: Mapping[str, Any], dtype: str, present: Sequence[str]) -> None:
        self.num_documents: int = record["documents"]
        self.num_sentences: int = record["sentences"]
        self.num_tokens: int = record["tokens"]
        self.works = np.array(record["works"], np.int64) if "works" in record else None
        files = record["files"]
        self.tokens = _CheckedFile(folder, files["tokens"], dtype)
        self.sentences = _CheckedFile(folder, files["sentences"], OFFSET_DTYPE)
        self.documents = _CheckedFile(folder, files["documents"], OFFSET_DTYPE)
        self.groups = _CheckedFile(folder, files[GROUPS], GROUP_DTYPE) if GROUPS in files else None
        self.planes = {name: _CheckedFile(folder, files[name], PLANES[name]) for name in PLANES if name in files}
        self.present = self.planes.keys() & set(present)


class _CheckedFile:
    """A memory-mapped array whose blocks are compared with their SHA-256 the first time they are read."""

    def __init__(self, folder: Path, record: Mapping[str, Any], dtype: str) -> None:
        self.path = folder / record["name"]
        self._digests: list[str] = record["blocks"]
        self.dtype = np.dtype(dtype)
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != record["bytes"]:
            state = "is missing" if size is None else f"has {size} bytes instead of {record['bytes']}"
            raise ValueError(f"token store file {self.path} {state}; delete the store and prepare it again")
        # A plain array over the map: indexing an np.memmap costs more than the gather.
        self._array = np.asarray(np.memmap(self.path, self.dtype, mode="r"))
        self._checked = np.zeros(len(self._digests), bool)
        self._all_checked = False

    def whole(self) -> np.ndarray:
        """The whole array, verified."""
        if not self._all_checked:
            self._check(np.arange(len(self._digests)))
        return self._array

    def take(self, indices: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The elements at `indices`, which lie in the ranges of `starts` and `lengths`."""
        if not self._all_checked:
            per_block = BLOCK_BYTES // self.dtype.itemsize
            first, last = starts // per_block, np.maximum(starts + lengths - 1, starts) // per_block
            self._check(np.unique(range_indices(first, last - first + 1)))
        return self._array.take(indices)

    def _check(self, blocks: np.ndarray) -> None:
        content = self._array.data.cast("B")
        for block in blocks[~self._checked[blocks]].tolist():
            start = block * BLOCK_BYTES
            if hashlib.sha256(content[start : start + BLOCK_BYTES]).hexdigest() != self._digests[block]:
                raise ValueError(
                    f"token store file {self.path}: the block at byte {start} is damaged (its SHA-256 is not the "
                    f"manifest's); delete the store and prepare it again"
                )
            self._checked[block] = True
        self._all_checked = bool(self._checked.all())


def _bases(counts: np.ndarray | list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _joined(files: list[_CheckedFile], bases: np.ndarray) -> np.ndarray:
    """Join the shards' offsets; returns the memory map itself for a single shard."""
    offsets = [_ascending(file, total) for file, total in zip(files, np.diff(bases).tolist(), strict=True)]
    if len(files) == 1:
        return offsets[0]
    parts = [shard[:-1] + base for shard, base in zip(offsets, bases, strict=False)]
    return np.concatenate([*parts, bases[-1:]])


def _ascending(file: _CheckedFile, total: int) -> np.ndarray:
    """Read offsets. Raises ValueError unless they ascend from 0 to `total`: digests detect only damage."""
    offsets = file.whole()
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] <= offsets[:-1]).any():
        raise ValueError(
            f"token store file {file.path}: its offsets do not ascend from 0 to {total:,}; delete the store and "
            "prepare it again"
        )
    return offsets
