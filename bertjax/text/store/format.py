"""The token store, format versions 1 and 2: memory-mapped tokens of a corpus, each block verified when first read.

A store is a directory:
    manifest.json            counts, tokenizer, fingerprint, and for each file its size, its SHA-256 and the SHA-256 of
                             each block of 1 MiB
    vocab.txt or similar     the vocabulary of the ids
    train-00000.tokens       ids, flat, little endian, uint16 (uint32 if the vocabulary has more than 65,536 entries)
    train-00000.sentences    int64 [sentences + 1], offsets into the shard's tokens
    train-00000.documents    int64 [documents + 1], offsets into the shard's sentences
    held_out-00000...        the same for the held-out documents
    train-00000.tokens.blocks  for a file above 16 MiB: the SHA-256 of each of its blocks, 32 bytes each, instead of in
                             the manifest (format version 2)
    train-00000.continues    with a segmenter: bool, whether a token continues the word before it
    train-00000.phrases      with data.units: bool, whether a token continues the phrase or word before it
    train-00000.entities     the same for entities
    origin                   in a copy with holes: the path or URL of the original store
    train.counts             int64 [vocabulary]: how often each id occurs in the split; likewise held_out.counts
If documents are pieces of works, a shard's record in the manifest has `works`: the number of pieces in each, in order.
Every sentence has a token and every document a sentence. `planes` in the manifest names the optional per-token arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from bertjax.text.ragged import range_indices
from bertjax.text.store.blocks import BlockFile, Origin, require_file
from bertjax.text.store.manifest import (
    GROUP_DTYPE,
    GROUPS,
    OFFSET_DTYPE,
    ORIGIN_FILE,
    PLANES,
    SPLITS,
    SplitName,
    read_manifest,
)
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer

_DTYPES = {"sentences": OFFSET_DTYPE, "documents": OFFSET_DTYPE, GROUPS: GROUP_DTYPE, **PLANES}
_SAMPLED_PARTS = 16

# The open copies with a bound. A process opens each only once: a second one would miss which blocks were removed.
_bounded: WeakValueDictionary[Path, TokenStore] = WeakValueDictionary()


class TokenStore:
    """A store opened for reading."""

    def __init__(self, path: Path, manifest: dict[str, Any], origin: Origin | None = None) -> None:
        self.path, self.name = path, str(path)
        self._origin = origin
        self.location = str(origin.folder if origin else path.absolute())  # of the original store
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.special: dict[str, int] = manifest["tokenizer"]["special"]  # pad, unk, cls, sep, mask
        provenance = manifest["provenance"]
        homes, units = provenance.get("shard_sources", {}), provenance.get("units")
        # A source may have no document in a split. A plane without a unit of its kind counts as absent.
        num_sources = max(
            len(provenance.get("sources", ())), *(1 + home for split in homes.values() for home in split), 0
        )
        segmented = ["continues"] * ("segmenter" in provenance)
        present = [plane for plane in PLANES if units is None or plane in units or plane in segmented]
        self._splits = {
            split: SplitView(
                [
                    _Shard(path, shard, manifest["token_dtype"], present, origin)
                    for shard in manifest["splits"][split]["shards"]
                ],
                homes.get(split),
                num_sources,
                [BlockFile(path, provenance["token_counts"][split], OFFSET_DTYPE, origin)]
                if split in provenance.get("token_counts", {})
                else [],
            )
            for split in SPLITS
        }

    @classmethod
    def open(cls, path: str | Path, most_bytes: int = 0, manifest: dict[str, Any] | None = None) -> TokenStore:
        """Open a store without reading tokens. A copy with holes may have a bound on its bytes, see `Origin`.

        Pass the store's `manifest` if it has been read already.

        Raises ValueError if it is not a store, has another format version or a changed manifest, or a file is missing
        or has another size.
        """
        folder = Path(path)
        origin_file = folder / ORIGIN_FILE
        if most_bytes and (opened := _bounded.get(folder.absolute())) is not None:
            return opened
        origin = Origin(origin_file, most_bytes) if origin_file.is_file() else None
        store = cls(folder, manifest or read_manifest(folder), origin)
        if most_bytes:
            _bounded[folder.absolute()] = store
        return store

    def split(self, name: SplitName) -> SplitView:
        """The documents of a split as one corpus."""
        if name not in self._splits:
            raise ValueError(f"token store {self.path}: no split {name!r}; it has {', '.join(self._splits)}")
        return self._splits[name]

    @property
    def is_bounded(self) -> bool:
        """Whether this is a copy that may hold only some of the store's bytes at a time."""
        return self._origin is not None and self._origin.most_bytes > 0

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the store's ids.

        Raises ValueError if its vocabulary does not match the manifest.
        """
        record = self.manifest["tokenizer"]
        tokenizer = load_tokenizer(self.path, TextRules.from_dict(record))
        if tokenizer.fingerprint != record["fingerprint"]:
            raise ValueError(
                f"token store {self.path}: its vocabulary differs from the one it was made with; prepare it again"
            )
        return tokenizer

    def verify(self) -> None:
        """Check every block of every file. Raises ValueError naming the first damaged file and byte offset."""
        for file in self.files():
            file.whole()

    def files(self) -> Iterator[BlockFile]:
        """All array files, each after the file with its digests."""
        for view in self._splits.values():
            for file in view.files():
                if file.digest_file is not None:
                    yield file.digest_file
                yield file


class Part(NamedTuple):
    """Successive documents of one shard of a split."""

    shard: int
    first: int  # the first of its documents in the shard
    stop: int  # one past the last
    tokens: int  # an estimate, as if all documents of a shard had the same length
    source: int  # 0 if the store does not record sources


class SplitView:
    """A split of a store, or some parts of it, as one corpus with offsets over all of its shards."""

    def __init__(
        self,
        shards: Sequence[_Shard],
        sources: list[int] | None = None,
        num_sources: int = 0,
        counts: Sequence[BlockFile] = (),
        pieces: Sequence[_Piece] | None = None,
    ) -> None:
        """Make a view of shards.

        Args:
            shards: The shards of the split.
            sources: The source of each shard, if the store records it.
            num_sources: The sources of the store; some may have no document in the split.
            counts: Files whose sums are the `token_counts`; empty if the store does not record them.
            pieces: The documents of the view; None: all documents.
        """
        self._shards, self._sources, self._counts = shards, sources, counts
        self.num_sources = num_sources
        self._cuts: dict[tuple[int, int], list[Part]] = {}  # cached, because many stages and lanes need the same
        self._pieces = [_Piece.whole(n, shard) for n, shard in enumerate(shards)] if pieces is None else pieces
        self._first_sentence = _bases([piece.num_sentences for piece in self._pieces])
        self._first_token = _bases([piece.num_tokens for piece in self._pieces])
        self.num_documents = sum(piece.num_documents for piece in self._pieces)
        self.num_sentences = int(self._first_sentence[-1])
        self.num_tokens = int(self._first_token[-1])

    @classmethod
    def joined(cls, views: Sequence[SplitView]) -> SplitView:
        """Join whole splits in order; the documents of the n-th become source n."""
        homes = [number for number, view in enumerate(views) for _ in view._shards]
        counts = [file for view in views for file in view._counts] if all(view._counts for view in views) else []
        return cls([shard for view in views for shard in view._shards], homes, len(views), counts)

    @cached_property
    def document_offsets(self) -> np.ndarray:
        """int64 [documents + 1]: the sentence at which each document starts."""
        return _joined([piece.documents() for piece in self._pieces], self._first_sentence)

    @cached_property
    def sentence_offsets(self) -> np.ndarray:
        """int64 [sentences + 1]: the token at which each sentence starts."""
        return _joined([piece.sentences() for piece in self._pieces], self._first_token)

    @cached_property
    def works(self) -> np.ndarray | None:
        """int64 [documents]: the work that each document belongs to; None if documents are whole works."""
        works = [piece.works() for piece in self._pieces if piece.shard.works is not None]
        if not works or len(works) < len(self._pieces):
            return None
        firsts = _bases([int(one.max(initial=-1)) + 1 for one in works])
        return np.concatenate([one + first for one, first in zip(works, firsts, strict=False)])

    @property
    def token_counts(self) -> np.ndarray | None:
        """int64 [vocab_size]: how often each id occurs in the whole split, even if the view is a part of it.

        None if the store does not record it, or the view selects sources.
        """
        return np.sum([file.whole() for file in self._counts], axis=0) if self._counts else None

    def parts(self, most_tokens: int, least: int = 1) -> list[Part]:
        """Cut the split into parts of at most about `most_tokens`, in order, using only the manifest's counts.

        Each source gets at least `least` parts, if it has enough documents. A part of one document may be larger.
        """
        if (cached := self._cuts.get((most_tokens, least))) is not None:
            return cached
        homes = self._sources or [0] * len(self._shards)
        shard_counts, parts = Counter(homes), []
        for number, (shard, home) in enumerate(zip(self._shards, homes, strict=True)):
            count = max(-(-shard.num_tokens // most_tokens), -(-least // shard_counts[home]))
            count = max(min(count, shard.num_documents), 1)
            parts += [shard.part(number, n, count, home) for n in range(count)]
        self._cuts[most_tokens, least] = parts
        return parts

    def select(self, parts: Sequence[Part]) -> SplitView:
        """A view of some parts, in their order, as one corpus. Reads and verifies the offsets at their edges."""
        pieces = [_Piece.part(part.shard, self._shards[part.shard], part.first, part.stop) for part in parts]
        return SplitView(self._shards, self._sources, self.num_sources, self._counts, pieces)

    def sample(self, tokens: int) -> SplitView:
        """Sample about `tokens` tokens, spread over the split; returns the view itself if it has no more."""
        if self.num_tokens <= tokens:
            return self
        size = max(tokens // _SAMPLED_PARTS, 1)  # of a part
        parts = {}
        for place in np.linspace(0, self.num_tokens - 1, _SAMPLED_PARTS).astype(np.int64).tolist():
            number = int(np.searchsorted(self._first_token, place, side="right")) - 1
            piece = self._pieces[number]
            count = max(min(-(-piece.shard.num_tokens // size), piece.shard.num_documents), 1)
            within = piece.first_token + place - int(self._first_token[number])
            part = piece.shard.part(piece.number, within * count // piece.shard.num_tokens, count)
            parts[part.shard, part.first] = part
        return self.select([*parts.values()])

    def place_in_split(self, documents: np.ndarray, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert document and sentence numbers in this view to numbers in the whole split; int64 of one shape."""
        first_document = _bases([piece.num_documents for piece in self._pieces])
        home = np.searchsorted(first_document, documents, side="right") - 1
        pieces = [(piece.number, piece.first_document, piece.first_sentence) for piece in self._pieces]
        number, document, sentence = np.array(pieces, np.int64).T
        document += _bases([shard.num_documents for shard in self._shards])[number] - first_document[:-1]
        sentence += _bases([shard.num_sentences for shard in self._shards])[number] - self._first_sentence[:-1]
        return documents + document[home], sentences + sentence[home]

    @cached_property
    def groups(self) -> np.ndarray | None:
        """uint64 [documents]: the group of near relatives of each document; None for a store without groups."""
        groups = [shard.file(GROUPS).whole() for shard in self._shards if GROUPS in shard.names]
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
        return _bases(self._sum_by_source([piece.num_documents for piece in self._pieces]))

    @cached_property
    def source_tokens(self) -> np.ndarray:
        """int64 [sources]: the tokens of each source. Raises ValueError if the store does not record sources."""
        return self._sum_by_source([piece.num_tokens for piece in self._pieces])

    def select_sources(self, *sources: int) -> SplitView:
        """A view of some sources. Raises ValueError if the store does not record sources."""
        return SplitView([shard for shard, home in zip(self._shards, self._homes(), strict=True) if home in sources])

    def _sum_by_source(self, amounts: Sequence[int]) -> np.ndarray:
        """Sum the pieces' amounts for each source."""
        homes, sums = self._homes(), np.zeros(self.num_sources, np.int64)
        np.add.at(sums, [homes[piece.number] for piece in self._pieces], amounts)
        return sums

    def _homes(self) -> list[int]:
        if self._sources is None:
            raise ValueError(
                "token store: an older store, which does not record the source of each document; delete it and "
                "prepare it again"
            )
        return self._sources

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of ranges [start, start + length), concatenated in order: uint16 or uint32 [sum of lengths].

        starts, lengths: int64 [n]; a range must not cross the end of a document. Raises ValueError for a range outside
        the split, and, naming file and byte offset, for a damaged block that is read for the first time.
        """
        return self._gather([piece.shard.file("tokens") for piece in self._pieces], starts, lengths)

    def has_plane(self, plane: str) -> bool:
        """Whether the split has this plane."""
        return all(plane in shard.present for shard in self._shards)

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str = "continues") -> np.ndarray:
        """Whether each token of ranges continues the word or unit before it, by a plane: bool [sum of lengths].

        Otherwise like `tokens`.
        """
        return self._gather([piece.shard.file(plane) for piece in self._pieces], starts, lengths)

    def _gather(self, files: list[BlockFile], starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The values of ranges in per-token files, one file per piece."""
        starts, lengths = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
        self._check_ranges(starts, lengths)
        if len(files) == 1:
            starts = starts + self._pieces[0].first_token
            return files[0].take(range_indices(starts, lengths), starts, lengths)
        home = np.searchsorted(self._first_token, starts, side="right") - 1
        order = np.argsort(home, kind="stable")
        local, sizes = starts[order] + self._shift[home[order]], lengths[order]
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

    @cached_property
    def _shift(self) -> np.ndarray:
        """int64 [pieces]: what to add to a token's number in the view to get its number in the shard."""
        return np.array([piece.first_token for piece in self._pieces], np.int64) - self._first_token[:-1]

    def files(self) -> Iterator[BlockFile]:
        """The files of all shards of the split."""
        yield from self._counts
        for shard in self._shards:
            yield from map(shard.file, shard.names)

    @property
    def is_copy(self) -> bool:
        """Whether the store is a copy, whose blocks may have to be fetched."""
        return any(piece.shard.is_copy for piece in self._pieces)

    def verify_tokens(self) -> None:
        """Fetch or check the blocks of the view's tokens and planes, front to back, before they are read."""
        for piece in self._pieces:
            for name in ("tokens", *PLANES):
                if name in piece.shard.names:
                    piece.shard.file(name).span(piece.first_token, piece.first_token + piece.num_tokens)

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
                f"split, which has {self.num_tokens} tokens; ranges must lie within documents"
            )


class _Piece(NamedTuple):
    """Successive documents of a shard, with their sentences and tokens."""

    number: int  # of the shard
    shard: _Shard
    first_document: int
    num_documents: int
    first_sentence: int
    num_sentences: int
    first_token: int
    num_tokens: int

    @classmethod
    def whole(cls, number: int, shard: _Shard) -> _Piece:
        return cls(number, shard, 0, shard.num_documents, 0, shard.num_sentences, 0, shard.num_tokens)

    @classmethod
    def part(cls, number: int, shard: _Shard, first: int, stop: int) -> _Piece:
        if stop - first == shard.num_documents:
            return cls.whole(number, shard)
        sentence, last_sentence = (int(shard.file("documents").span(at, at + 1)[0]) for at in (first, stop))
        token, last_token = (int(shard.file("sentences").span(at, at + 1)[0]) for at in (sentence, last_sentence))
        return cls(number, shard, first, stop - first, sentence, last_sentence - sentence, token, last_token - token)

    def documents(self) -> np.ndarray:
        """int64 [documents + 1]: sentence offsets, counted in the shard."""
        return _ascending(self.shard.file("documents"), self.first_document, self.num_documents, self.num_sentences)

    def sentences(self) -> np.ndarray:
        """int64 [sentences + 1]: token offsets, counted in the shard."""
        return _ascending(self.shard.file("sentences"), self.first_sentence, self.num_sentences, self.num_tokens)

    def works(self) -> np.ndarray:
        """int64 [documents]: the work of each, from 0."""
        pieces = self.shard.works
        assert pieces is not None
        works = np.repeat(np.arange(len(pieces)), pieces)[self.first_document :][: self.num_documents]
        return works - works[0] if len(works) else works


class _Shard:
    """The files of one shard, each opened when it is first read. Unless the store is a copy, all must exist."""

    def __init__(
        self, folder: Path, record: Mapping[str, Any], dtype: str, present: Sequence[str], origin: Origin | None
    ) -> None:
        self.num_documents: int = record["documents"]
        self.num_sentences: int = record["sentences"]
        self.num_tokens: int = record["tokens"]
        self.works = np.array(record["works"], np.int64) if "works" in record else None
        self._folder, self._records, self._dtype, self._origin = folder, record["files"], dtype, origin
        self._files: dict[str, BlockFile] = {}
        self.is_copy = origin is not None
        self.names = [name for name in ("tokens", "sentences", "documents", *PLANES, GROUPS) if name in self._records]
        self.present = set(self.names).intersection(present)
        if origin is None:
            for file in self._records.values():
                require_file(str(folder), file)

    def file(self, name: str) -> BlockFile:
        """The file of an array."""
        if (file := self._files.get(name)) is None:
            dtype = _DTYPES.get(name, self._dtype)  # tokens have the store's dtype
            # All threads must use the same object, because it counts the blocks that a bounded copy holds.
            file = self._files.setdefault(name, BlockFile(self._folder, self._records[name], dtype, self._origin))
        return file

    def part(self, number: int, n: int, count: int, source: int = 0) -> Part:
        """Part n of `count` of this shard (number `number`, of source `source`), computed from its counts alone."""
        first, stop = self.num_documents * n // count, self.num_documents * (n + 1) // count
        tokens = self.num_tokens * (n + 1) // count - self.num_tokens * n // count
        return Part(number, first, stop, tokens, source)


def _bases(counts: np.ndarray | list[int]) -> np.ndarray:
    """Running sums that begin with 0: int64 [counts + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _joined(offsets: list[np.ndarray], bases: np.ndarray) -> np.ndarray:
    """Join the pieces' offsets, counting each piece from its base; returns the memory map itself for a single shard."""
    if len(offsets) == 1 and offsets[0][0] == 0:
        return offsets[0]
    joined = np.empty(sum(len(one) - 1 for one in offsets) + 1, np.int64)
    at = 0
    for one, base in zip(offsets, bases, strict=False):
        np.add(one[:-1], base - one[0], out=joined[at : at + len(one) - 1])
        at += len(one) - 1
    joined[at] = bases[-1]
    return joined


def _ascending(file: BlockFile, first: int, count: int, total: int) -> np.ndarray:
    """Read `count` + 1 offsets.

    Raises ValueError unless they ascend by `total`, from 0 if `first` is 0. Digests detect damage, not wrong offsets.
    """
    offsets = file.span(first, first + count + 1)
    if (not first and offsets[0] != 0) or offsets[-1] - offsets[0] != total or (offsets[1:] <= offsets[:-1]).any():
        raise ValueError(
            f"token store file {file.path}: its offsets do not ascend from 0 to {total:,}; delete the store and "
            "prepare it again"
        )
    return offsets
