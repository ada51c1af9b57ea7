"""All that a page about a model's attention shows: a sentence or a pair seen by every head, and what heads do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.analyze.attention_maps import NextSentence, look_inside, next_sentence, untrained_heads
from bertjax.analyze.attention_patterns import (
    PATTERNS,
    PREDICTIVE,
    PatternSums,
    WordTable,
    measure_patterns,
)
from bertjax.analyze.sample_text import SampleText
from bertjax.analyze.token_rows import TokenRow, read_row
from bertjax.text.progress import Progress
from bertjax.training.run_directory import TrainedModel

EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")
MOST_TOKENS = 128  # on a page


@dataclass(frozen=True)
class AttentionView:
    """What was found; `missing` says what could not be shown, and why."""

    model: str
    sentences: tuple[str, ...]
    row: TokenRow
    attention: np.ndarray  # float32 [layers, H, n, n]
    next_sentence: NextSentence | None
    patterns: PatternSums
    sample: str
    pairs: int
    missing: tuple[str, ...]

    @property
    def clearest(self) -> list[tuple[int, int] | None]:
        """For each pattern the layer and the head, from 0, that show it most; None where it was not measured."""
        strengths = self.patterns.strengths
        heads = self.attention.shape[1]
        return [None if np.isnan(one).any() else divmod(int(one.argmax()), heads) for one in strengths]


def view_attention(
    model: TrainedModel, name: str, sentences: Sequence[str], sample: SampleText, count: int, progress: Progress
) -> AttentionView:
    """Look at one or two sentences, and at `count` sentences of a sample, in pairs, for what the heads do.

    Raises ValueError for sentences that are too long, or a sample without pairs that are short enough.
    """
    row = read_row(model.tokenizer, sentences, model.max_length)
    if len(row) > MOST_TOKENS:
        raise ValueError(f"the sentences have {len(row)} tokens; the page has room for {MOST_TOKENS}: shorten them")
    rows = sample.pairs(-(-count // 2), model.max_length)
    if not rows:
        raise ValueError(f"{sample.origin}: no two sentences in a row that are short enough; give another --text")
    causal = model.config.model.causal
    knows_masks = not causal and "MLM head" not in untrained_heads(model)
    patterns = measure_patterns(model, rows, WordTable(model), knows_masks, progress)
    missing = []
    if not knows_masks:
        why = "the model predicts the next token and knows no masks" if causal else "the model has no trained MLM head"
        missing.append(f"“{PATTERNS[PREDICTIVE].name}” is not measured: {why}.")
    for number, pattern in enumerate(PATTERNS):
        if not patterns.tokens[number] and number != PREDICTIVE:
            missing.append(f"“{pattern.name}” is not measured: no token may look at {pattern.looks_at}.")
    if knows_masks and not patterns.tokens[PREDICTIVE]:
        missing.append(f"“{PATTERNS[PREDICTIVE].name}” is not measured: no word predicts another.")
    why_not = _no_next_sentence(model, len(sentences) == 2)
    if why_not:
        missing.append(f"The gradient of the next-sentence loss is not shown: {why_not}.")
    return AttentionView(
        model=name,
        sentences=tuple(sentences),
        row=row,
        attention=next(look_inside(model, [row])).attention,
        next_sentence=None if why_not else next_sentence(model, row),
        patterns=patterns,
        sample=sample.origin,
        pairs=len(rows),
        missing=tuple(missing),
    )


def _no_next_sentence(model: TrainedModel, is_pair: bool) -> str:
    """Why the next-sentence loss says nothing, if so."""
    if not is_pair:
        return "it takes a second sentence"
    if model.config.model.causal:
        return "the [CLS] of a causal model sees nothing but itself"
    return "the model has no trained NSP head" if "NSP head" in untrained_heads(model) else ""
