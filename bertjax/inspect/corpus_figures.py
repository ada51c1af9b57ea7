"""Statistics of a token store: amounts, lengths, and the vocabulary's coverage of its words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bertjax.inspect.stretches import stretches
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.text.store.manifest import SPLITS, SplitName
from bertjax.tokenization import entity_map
from bertjax.tokenization.tokenizer import Tokenizer

OFFSETS_AT_ONCE = 1 << 22
RARE = 10  # occurrences; a rarer token is hardly learned
_NEVER_IN_TEXT = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")

Count = Callable[[int], None]  # called with the number of tokens read since the last call


@dataclass(frozen=True)
class Amount:
    """Amounts of a split, or of one source's share of it."""

    split: SplitName
    source: str  # empty: the whole split
    documents: int
    sentences: int
    tokens: int
    spelled_bytes: int  # UTF-8 bytes of the text as spelled by its tokens: normalised, without white space and [UNK]
    unknown: int  # tokens that are [UNK]


@dataclass(frozen=True)
class Lengths:
    """A histogram of lengths."""

    what: str
    counts: np.ndarray  # int64 [longest + 1]

    @property
    def mean(self) -> float:
        """The mean length; 0 if there is nothing."""
        return float(self.counts @ np.arange(len(self.counts)) / max(self.counts.sum(), 1))

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share does not exceed."""
        reached = np.cumsum(self.counts) >= share * self.counts.sum()
        return int(np.argmax(reached)) if len(reached) else 0

    def binned(self, per_octave: int) -> tuple[np.ndarray, np.ndarray]:
        """Edges int64 [bins + 1] and counts int64 [bins], with `per_octave` bins per power of two."""
        octaves = max(len(self.counts) - 1, 1).bit_length()
        edges = np.unique(np.rint(2.0 ** (np.arange(octaves * per_octave + 1) / per_octave)).astype(np.int64))
        total = np.concatenate([[0], np.cumsum(self.counts)])
        return edges, np.diff(total[np.minimum(edges, len(self.counts))])


@dataclass(frozen=True)
class TokenCounts:
    """The tokens of a split, or of a part of it, by kind."""

    by_id: np.ndarray  # int64 [vocab_size]
    split_words: int  # words of more than one piece
    continuations: int  # pieces that continue a word

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            self.by_id + other.by_id,
            self.split_words + other.split_words,
            self.continuations + other.continuations,
        )


@dataclass(frozen=True)
class Words:
    """The vocabulary's coverage of the training text; a punctuation mark counts as a word."""

    vocab_size: int
    tokens: int
    words: int
    unknown: int  # words, or characters, that are [UNK]
    unknown_are: Literal["words", "characters"]
    added: int | None  # occurrences of words from an extension; None: the vocabulary was not extended
    entities: int | None  # tokens of the entity map; None: there is no map
    split: int  # words of more than one piece
    continuations: int  # pieces that continue a word
    never: int  # vocabulary entries that never occur, without [PAD], [CLS], [SEP] and [MASK]
    rare: int  # entries that occur, but fewer than RARE times
    most_frequent: tuple[tuple[str, int], ...]


def count_tokens(view: SplitView, tokenizer: Tokenizer, count: Count) -> TokenCounts:
    """Count the tokens of a view in one pass.

    A sentence begins a word, also where byte-level BPE has no space in front of its first piece.
    """
    by_id, split_words, continuations = np.zeros(tokenizer.vocab_size, np.int64), 0, 0
    sentences, documents = view.sentence_offsets, view.document_offsets
    for stretch in stretches(view):
        by_id += np.bincount(stretch.ids, minlength=tokenizer.vocab_size)
        continues = tokenizer.is_continuation[stretch.ids]
        first, last = documents[stretch.documents[0]], documents[stretch.documents[-1] + 1]
        begins = np.asarray(sentences[first:last]) - sentences[first]
        continues[begins[begins < len(continues)]] = False
        split_words += int(np.count_nonzero(continues[1:] & ~continues[:-1]))
        continuations += int(np.count_nonzero(continues))
        count(len(stretch.ids))
    return TokenCounts(by_id, split_words, continuations)


def count_store(
    store: TokenStore, tokenizer: Tokenizer, count: Count
) -> tuple[tuple[Amount, ...], dict[SplitName, TokenCounts]]:
    """Count each split, followed by its sources if known: (amounts, split -> token counts)."""
    spelled = np.array([len(surface) for surface in tokenizer.surfaces])
    amounts, totals = [], {}
    for split in SPLITS:
        view = store.split(split)
        parts = _parts(view, store.manifest["provenance"])
        counted = [count_tokens(part, tokenizer, count) for _, part in parts]
        totals[split] = sum(counted, TokenCounts(np.zeros(tokenizer.vocab_size, np.int64), 0, 0))
        rows = [("", view, totals[split])]
        if view.has_sources:
            rows += [(name, part, held) for (name, part), held in zip(parts, counted, strict=True)]
        amounts += [
            Amount(
                split, name, part.num_documents, part.num_sentences, part.num_tokens,
                int(held.by_id @ spelled), int(held.by_id[tokenizer.unk_id]),
            )
            for name, part, held in rows
        ]  # fmt: skip
    return tuple(amounts), totals


def measure_lengths(view: SplitView) -> tuple[Lengths, Lengths, Lengths]:
    """Tokens per sentence, sentences per document and tokens per document."""
    sentences, documents = view.sentence_offsets, view.document_offsets
    return (
        Lengths("tokens per sentence", _histogram(len(sentences), lambda part: sentences[part])),
        Lengths("sentences per document", _histogram(len(documents), lambda part: documents[part])),
        Lengths("tokens per document", _histogram(len(documents), lambda part: sentences[documents[part]])),
    )


def measure_words(
    counts: TokenCounts, tokenizer: Tokenizer, added: Collection[str] | None, most_frequent: int
) -> Words:
    """Word statistics of a split, with its `most_frequent` tokens; `added` are the words of an extension."""
    by_id = counts.by_id
    in_text = np.array([token not in _NEVER_IN_TEXT for token in tokenizer.display_texts])
    best = np.argsort(-by_id, kind="stable")[:most_frequent]
    entities = None
    if entity_map.FILE in tokenizer.files:  # tokens of the map, whatever words they stand for
        entities = int(by_id[sorted(set(tokenizer.entities.values()))].sum())
    return Words(
        vocab_size=tokenizer.vocab_size,
        tokens=int(by_id.sum()),
        words=int(by_id.sum()) - counts.continuations,
        unknown=int(by_id[tokenizer.unk_id]),
        unknown_are=tokenizer.rules.unknown,
        added=None if added is None else int(by_id @ np.isin(tokenizer.tokens, list(added))),
        entities=entities,
        split=counts.split_words,
        continuations=counts.continuations,
        never=int(np.count_nonzero(in_text & (by_id == 0))),
        rare=int(np.count_nonzero((by_id > 0) & (by_id < RARE))),
        most_frequent=tuple((tokenizer.display_texts[i], int(by_id[i])) for i in best if by_id[i]),
    )


def _parts(view: SplitView, provenance: dict[str, Any]) -> list[tuple[str, SplitView]]:
    """The view's sources with their names, or the view itself if sources are unknown."""
    if not view.has_sources:
        return [("", view)]
    names = []
    for source in provenance.get("sources", []):
        files = source["files"]
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        names.append(f"{source['kind']}: {files[0][0]}{more}" if files else source["kind"])
    names += [f"source {number}" for number in range(len(names), view.num_sources)]
    return [(names[number], view.select_sources(number)) for number in range(view.num_sources)]


def _histogram(entries: int, offsets: Callable[[slice], np.ndarray]) -> np.ndarray:
    """A histogram of the differences between adjacent offsets, int64 [largest + 1]."""
    total = np.zeros(1, np.int64)
    for start in range(0, entries - 1, OFFSETS_AT_ONCE):
        counts = np.bincount(np.diff(offsets(slice(start, start + OFFSETS_AT_ONCE + 1))))
        if len(counts) < len(total):
            counts, total = total, counts
        counts[: len(total)] += total
        total = counts
    return total
