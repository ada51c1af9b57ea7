"""All that a page about a model's attention shows: a sentence or a pair seen by every head, and what heads do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.analyze.attention_maps import NextSentence, look_inside, next_sentence, untrained_heads
from bertjax.analyze.attention_patterns import (
    PATTERNS,
    PREDICTIVE,
    SAME_ACROSS,
    PatternSums,
    WordTable,
    measure_patterns,
)
from bertjax.analyze.sample_text import SampleText
from bertjax.analyze.token_rows import TokenRow, read_row
from bertjax.text.progress import Progress
from bertjax.training.run_directory import TrainedModel

EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")


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
    untrained = untrained_heads(model)
    causal = model.config.model.causal
    rows = sample.pairs(-(-count // 2), model.max_length)
    if not rows:
        raise ValueError(f"{sample.origin}: no two sentences in a row that are short enough; give another --text")
    knows_masks = not causal and "MLM head" not in untrained
    patterns = measure_patterns(model, rows, WordTable(model), knows_masks, progress)
    pair = len(sentences) == 2
    missing = []
    if not knows_masks:
        why = "the model predicts the next token and knows no masks" if causal else "the model has no trained MLM head"
        missing.append(f"“{PATTERNS[PREDICTIVE].name}” is not measured: {why}.")
    if not patterns.tokens[SAME_ACROSS]:
        missing.append(f"“{PATTERNS[SAME_ACROSS].name}” is not measured: no pair has such words.")
    if not pair:
        missing.append("The gradient of the next-sentence loss takes a second sentence.")
    elif "NSP head" in untrained:
        missing.append("The gradient of the next-sentence loss is not shown: the model has no trained NSP head.")
    return AttentionView(
        model=name,
        sentences=tuple(sentences),
        row=row,
        attention=next(look_inside(model, [row])).attention,
        next_sentence=next_sentence(model, row) if pair and "NSP head" not in untrained else None,
        patterns=patterns,
        sample=sample.origin,
        pairs=len(rows),
        missing=tuple(missing),
    )
