"""The measurements of `bertjax inspect`, before they are rendered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bertjax.inspect.corpus_figures import Amount, Count, Lengths, Words, count_store, measure_lengths, measure_words
from bertjax.inspect.evaluation_texts import EvaluationTexts, held_out_texts
from bertjax.inspect.near_duplicates import Duplicates, NearDuplicates, find_duplicates, find_near_duplicates
from bertjax.inspect.overlap import MEASURES, Overlap, find_overlaps
from bertjax.inspect.row_figures import ReadablePair, RowFigures, RowKind, measure_rows, readable_rows
from bertjax.inspect.stretches import token_ranges
from bertjax.storage.progress import Progress
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.tokenization.tokenizer import Tokenizer

EXAMPLES = 5
MOST_FREQUENT = 30
SHOWN_ROWS = 3
_EXCERPT_TOKENS = 36


@dataclass(frozen=True)
class Inspection:
    """Statistics and examples of a token store. Lengths, words, duplicates and rows are of the training split."""

    store: str
    fingerprint: str
    notes: tuple[str, ...]  # on how the text was prepared
    text_bytes: int | None  # of both splits, as read; None: not recorded
    amounts: tuple[Amount, ...]
    lengths: tuple[Lengths, ...]
    words: Words
    rows: tuple[RowFigures, ...]
    duplicates: Duplicates
    duplicate_texts: tuple[tuple[int, str], ...]  # (number of copies, beginning)
    near: NearDuplicates
    near_texts: tuple[tuple[int, float, str, str], ...]  # (documents in the group, similarity of two, their beginnings)
    overlaps: tuple[Overlap, ...]  # of the held-out documents, then of each file
    overlap_texts: tuple[tuple[str, float, str], ...]  # (name of the set, share of runs seen, beginning)
    readable: tuple[ReadablePair, ...]


def inspect_store(
    store: TokenStore, kinds: Sequence[RowKind], evaluations: Sequence[EvaluationTexts], progress: Progress
) -> Inspection:
    """Measure a store by reading it a few times, in bounded memory.

    The readable rows are of the kind with the shortest rows. Raises ValueError for a damaged store, or one with too
    little text for rows.
    """
    tokenizer, train = store.tokenizer(), store.split("train")
    provenance = store.manifest["provenance"]
    everything = train.num_tokens + store.split("held_out").num_tokens
    rows = tuple(measure_rows(train, tokenizer, kind) for kind in kinds)
    with _counting("counting tokens", everything, progress) as count:
        amounts, counts = count_store(store, tokenizer, count)
    with _counting("looking for duplicates", train.num_tokens, progress) as count:
        duplicates = find_duplicates(train, count, EXAMPLES)
    with _counting("looking for near-duplicates", train.num_tokens, progress) as count:
        near = find_near_duplicates(train, tokenizer.vocab_size, duplicates.copies, count, EXAMPLES)
    texts = [held_out_texts(store.split("held_out"), "held-out documents"), *evaluations]
    with _counting("looking for evaluation texts", train.num_tokens * len(MEASURES), progress) as count:
        overlaps = find_overlaps(train, texts, tokenizer.vocab_size, count, EXAMPLES)
    shortest = min(kinds, key=lambda kind: kind.data.sequence_length)
    return Inspection(
        store=store.name,
        fingerprint=store.fingerprint,
        notes=tuple(provenance.get("notes", ())),
        text_bytes=provenance.get("text_bytes"),
        amounts=amounts,
        lengths=measure_lengths(train),
        words=measure_words(counts["train"], tokenizer, provenance.get("added_words"), MOST_FREQUENT),
        rows=rows,
        duplicates=duplicates,
        duplicate_texts=tuple((size, beginning(train, number, tokenizer)) for number, size in duplicates.largest),
        near=near,
        near_texts=tuple(
            (
                pair.group,
                pair.similarity,
                beginning(train, pair.first, tokenizer),
                beginning(train, pair.second, tokenizer),
            )
            for pair in near.examples
        ),
        overlaps=overlaps,
        overlap_texts=tuple(example for overlap in overlaps for example in _worst(overlap, tokenizer)),
        readable=readable_rows(train, tokenizer, shortest, SHOWN_ROWS),
    )


def beginning(split: SplitView, document: int, tokenizer: Tokenizer) -> str:
    """The beginning of a document, as spelled by its tokens."""
    starts, lengths = token_ranges(split, np.array([document]))
    return _spell(split.tokens(starts, np.minimum(lengths, _EXCERPT_TOKENS)), int(lengths[0]), tokenizer)


def _spell(ids: np.ndarray, length: int, tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(ids[:_EXCERPT_TOKENS], skip_special_tokens=False)
    return f"{text} ..." if length > _EXCERPT_TOKENS else text


def _worst(overlap: Overlap, tokenizer: Tokenizer) -> Iterator[tuple[str, float, str]]:
    """Yield the texts of a set with the largest overlap by the first measure."""
    texts = overlap.texts
    ends = np.cumsum(texts.segment_lengths)
    for number, share in overlap.by_measure[0].worst:
        segments = np.flatnonzero(texts.text_numbers == number)
        ids = texts.ids[ends[segments[0]] - texts.segment_lengths[segments[0]] : ends[segments[-1]]]
        yield texts.name, share, _spell(ids, len(ids), tokenizer)


@contextmanager
def _counting(what: str, total: int, progress: Progress) -> Iterator[Count]:
    """Count tokens with progress; completion is reported even if some tokens were skipped."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if done < total:
            progress(what, done, total)

    progress(what, 0, total)
    yield count
    progress(what, total, total)
