"""The content of the attention page: a sentence or a pair through every head, and the patterns of the heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.families.registry import family_of
from bertjax.finetune.kinds import kind_of
from bertjax.interpret.attention_maps import LabelAtCls, likeliest_label, look_inside, next_sentence, untrained_heads
from bertjax.interpret.attention_patterns import PATTERNS, PREDICTIVE, PatternSums, WordTable, measure_patterns
from bertjax.interpret.sample_text import SampleText
from bertjax.interpret.token_rows import TokenRow, read_row
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress

EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")
MOST_TOKENS = 128  # on a page


@dataclass(frozen=True)
class AttentionView:
    """The content of the page; `missing` has a sentence for each part that could not be measured."""

    model: str
    sentences: tuple[str, ...]
    row: TokenRow
    attention: np.ndarray  # float32 [layers, H, n, n]
    at_cls: LabelAtCls | None
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
    """Compute the attention of one or two sentences, and measure patterns on `count` sentences of a sample, in pairs.

    Raises ValueError for sentences that are too long, or a sample without pairs that are short enough.
    """
    template = family_of(model.config.model.family).template
    row = read_row(model.tokenizer, sentences, model.max_length, template)
    if len(row) > MOST_TOKENS:
        raise ValueError(f"the sentences have {len(row)} tokens; the page has room for {MOST_TOKENS}: shorten them")
    rows = sample.pairs(-(-count // 2), model.max_length)
    if not rows:
        raise ValueError(f"{sample.origin}: no two sentences in a row that are short enough; give another --text")
    no_masks, no_label = _no_masks(model), _no_label(model, len(sentences) == 2)
    read = likeliest_label if model.kind else next_sentence
    patterns = measure_patterns(model, rows, WordTable(model), not no_masks, progress)
    return AttentionView(
        model=name,
        sentences=tuple(sentences),
        row=row,
        attention=next(look_inside(model, [row])).attention,
        at_cls=None if no_label else read(model, row),
        patterns=patterns,
        sample=sample.origin,
        pairs=len(rows),
        missing=tuple(_missing(patterns, no_masks, no_label)),
    )


def _missing(patterns: PatternSums, no_masks: str, no_label: str) -> Iterator[str]:
    """A sentence for each part that could not be measured."""
    for number, pattern in enumerate(PATTERNS):
        if not patterns.tokens[number]:
            none = "no word predicts another" if number == PREDICTIVE else f"no token may look at {pattern.looks_at}"
            yield f"“{pattern.name}” is not measured: {(no_masks if number == PREDICTIVE else '') or none}."
    if no_label:
        yield f"The gradient of the loss at [CLS] is not shown: {no_label}."


def _no_masks(model: TrainedModel) -> str:
    """Why the model cannot fill masks; empty if it can."""
    if model.config.model.causal:
        return "the model predicts the next token and knows no masks"
    return "the model has no trained MLM head" if "MLM head" in untrained_heads(model) else ""


def _no_label(model: TrainedModel, is_pair: bool) -> str:
    """Why the model has no prediction at [CLS]; empty if it has."""
    if model.config.model.causal:
        return "the [CLS] of a causal model sees nothing but itself"
    if model.kind and kind_of(model.kind).classifies_texts:
        return ""
    if model.kind:
        return f"the model was fine-tuned for {model.kind}, and gives a text no label"
    if "NSP head" in untrained_heads(model):
        return "the model has no trained NSP head; once fine-tuned for classification, it has a label there"
    return "" if is_pair else "whether B follows A takes a second sentence"
