"""Warnings about text that an objective cannot learn from: one-sentence documents, scripts without spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.masking.options import member
from bertjax.input.masking.units import UNITS, WORDS
from bertjax.input.targets import registry
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer, is_unspaced

_LEAST_PAIRS = 0.01  # smallest share of documents with a second sentence that lets pairs be learned
_LEAST_UNSPACED = 0.1  # share of single characters of a script without spaces that gets a warning
_SAMPLED_SENTENCES = 2_000
_SAMPLED_TOKENS = 1 << 22  # size of the text from which these sentences are drawn


def pair_notes(manifest: Mapping[str, Any], stages: Sequence[DataConfig], objectives: Sequence[str]) -> list[str]:
    """Warn if sentence pairs are an objective but, by the store's manifest, documents have one sentence each."""
    names = [
        name
        for name, objective in registry.choose(objectives).items()
        if objective.pairing and objective.pairing.has_labels
    ]
    if not names or all(stage.rows != "pairs" for stage in stages):
        return []
    documents, sentences = (manifest["splits"]["train"][key] for key in ("documents", "sentences"))
    if sentences - documents >= _LEAST_PAIRS * documents:
        return []
    return [
        f"{names[0].upper()} cannot be learned from documents of one sentence: {documents:,} documents have "
        f"{sentences:,} sentences, so every pair gets the same label. Put blank lines between documents, not between "
        f"sentences, or leave {names[0]} out of --training.objectives"
    ]


def masking_notes(split: SplitView, tokenizer: Tokenizer, stages: Sequence[DataConfig]) -> list[str]:
    """Warn if whole-word masking would mask single characters, because the script has no spaces between words."""
    units = {stage.masking: member(UNITS, "masking", stage.masking).make(stage) for stage in stages}
    names = [name for name, unit in units.items() if unit.needs_words and unit.plane == WORDS and not unit.needs_plane]
    if not names or split.has_plane(WORDS):
        return []
    share = _unspaced_share(split, tokenizer)
    if share < _LEAST_UNSPACED:
        return []
    return [
        f"data.masking={names[0]!r} masks single characters in {share:.0%} of this text, whose script has no spaces "
        "between words. For Chinese with WordPiece set --data.segmenter jieba; otherwise mark words with --data.units"
    ]


def _unspaced_share(split: SplitView, tokenizer: Tokenizer) -> float:
    """Share of tokens that are single characters of scripts without spaces, in a sample of sentences."""
    split = split.sample(_SAMPLED_TOKENS)
    count = min(split.num_sentences, _SAMPLED_SENTENCES)
    chosen = np.linspace(0, split.num_sentences - 1, count).astype(np.int64)
    offsets = split.sentence_offsets
    ids, times = np.unique(split.tokens(offsets[chosen], offsets[chosen + 1] - offsets[chosen]), return_counts=True)
    surfaces, continues = tokenizer.surfaces, tokenizer.is_continuation
    texts = [surfaces[number].decode(errors="replace") for number in ids.tolist()]
    is_single = np.array([len(text) == 1 and is_unspaced(text) for text in texts]) & ~continues[ids]
    return float(times[is_single].sum() / times.sum())
