"""The predictions of every checkpoint of a run for one text, in the order of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.families.registry import get_family
from bertjax.interpret.attention_maps import next_sentence, untrained_heads
from bertjax.interpret.fill_mask import MASK, Guess, encode_with_masks, fill_mask
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.checkpoint import DIRECTORY, is_checkpoint, saved_steps
from bertjax.run.run_directory import load_run
from bertjax.storage.remote import AnyPath, to_path


@dataclass(frozen=True)
class CheckpointPredictions:
    """The predictions of one checkpoint."""

    step: int
    guesses: tuple[tuple[Guess, ...], ...]  # for each [MASK] of the text, best first
    follows: float | None  # the probability that B follows A, of a pair


def checkpoint_predictions(run: str | AnyPath, sentences: Sequence[str], top: int) -> Iterator[CheckpointPredictions]:
    """Predict the [MASK]s of a text or pair, and NSP of a pair, with every checkpoint of a run, or the one named.

    Raises ValueError for a single text without [MASK], for a run without checkpoints, for a pair if the newest
    checkpoint's NSP head is untrained, and as `fill_mask` and `load_run` do.
    """
    has_masks = any(MASK in sentence for sentence in sentences)
    if not has_masks and len(sentences) < 2:
        raise ValueError(f"nothing to predict in {sentences[0]!r}: write {MASK} in it, or give a second sentence")
    newest = load_run(run)
    steps = [newest.step] if is_checkpoint(to_path(str(run))) else saved_steps(newest.directory)
    if has_masks and "mlm_head" in newest.untrained:
        raise ValueError(f"{newest.directory}: its MLM head is untrained, so it cannot fill masks")
    if len(sentences) == 2 and "NSP head" in untrained_heads(newest):
        raise ValueError(
            f"{newest.directory}: its NSP head is untrained and cannot predict whether B follows A; give one sentence"
        )
    for step in steps:
        model = newest if step == newest.step else load_run(newest.directory / DIRECTORY / str(step))
        text = sentences[0] if len(sentences) == 1 else (sentences[0], sentences[1])
        guesses = fill_mask(model, [text], top)[0] if has_masks else []
        follows = None
        if len(sentences) == 2:
            ids = [np.array(encode_with_masks(model.tokenizer, sentence)) for sentence in sentences]
            template = get_family(model.config.model.family).template
            follows = next_sentence(model, TokenRow.of(model.tokenizer, ids, template)).probability
        yield CheckpointPredictions(step, tuple(map(tuple, guesses)), follows)
