"""Fill [MASK] in texts, and in held-out sentences for a report."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.families.registry import get_family
from bertjax.input.randomness import below, derive_key, hash64
from bertjax.input.training_data import Sentences
from bertjax.interpret.token_rows import TokenRow, excerpt, pad_rows, row_width
from bertjax.model.network import Params, PretrainingNetwork, bind
from bertjax.report.run_summary import Completion
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import Tokenizer

MASK = "[MASK]"

_SAMPLE = 4096  # held-out sentences to consider, so that the report does not read the whole split
_SENTENCE_TOKENS = range(12, 31)  # enough context for a prediction, and short enough for a line of the report
_SHORTEST, _ENOUGH = 8, 100  # minimum tokens if fewer than 100 sentences have that length
# Bounds on the hidden word's share of the sample: rarer words are hardly learned, common ones are "the" and "of".
_RAREST, _COMMONEST, _SEEN = 1e-4, 1e-2, 3


class Guess(NamedTuple):
    """A vocabulary entry for a [MASK]; an initial ## continues the word before it."""

    token: str
    probability: float


Text = str | tuple[str, str]  # one text, or two as segments A and B


def fill_mask(model: TrainedModel, texts: Sequence[Text], top: int) -> list[list[list[Guess]]]:
    """Predict the `top` likeliest entries for each [MASK] of each text, best first.

    [MASK] in a text is the mask token; other special tokens spelled out in it are plain text. A generator is used if
    there is one. Raises ValueError for a text without [MASK] or longer than the rows of training, a `top` outside the
    vocabulary, and as `mlm_model` does.
    """
    model = mlm_model(model)
    if not 1 <= top <= model.config.model.vocab_size:
        raise ValueError(f"top={top}: give 1 to {model.config.model.vocab_size} guesses, the vocabulary's entries")
    return _best(model, [_masked_row(model, text) for text in texts], top)


def mlm_model(model: TrainedModel) -> TrainedModel:
    """The model with the MLM head: the generator, or the model itself if it has none.

    Raises ValueError for a fine-tuned model, one without an MLM head, and a causal one, which is trained without masks.
    """
    if model.kind:
        raise ValueError(f"{model.directory}: it was fine-tuned ({model.kind}) and has no MLM head")
    model = model.generator or model
    if "mlm_head" not in model.params:
        raise ValueError(f"{model.directory}: it has no MLM head; give a model that was trained with one")
    if model.config.model.causal:
        raise ValueError(f"{model.directory}: model.causal=True: it predicts the next token and cannot fill {MASK}")
    return model


def held_out_completions(
    model: TrainedModel, split: Sentences, count: int, seed: int, top: int = 5
) -> tuple[Completion, ...]:
    """Mask a word in each of `count` sentences of a split and predict it; the seed decides the choice.

    Sentences have 12 (8 if few have) to 30 tokens and no [UNK], and sentences of whole words come first.
    Words are whole, alphabetic, not behind an apostrophe, neither rare nor very common, and all different.
    Returns fewer if the split has no more such sentences, and none for a causal model, which is trained without masks.
    """
    if model.config.model.causal:
        return ()
    model = model.generator or model
    hidden = _hide_words(model.tokenizer, _sample(model, split, seed), count, seed)
    own_mask = model.tokenizer.tokens[model.tokenizer.mask_id]

    def decode(ids: np.ndarray) -> str:
        text = model.tokenizer.decode(ids, skip_special_tokens=False).lstrip().replace(own_mask, MASK)
        text = re.sub(r"(?<=[\w,.;:!?])\[MASK\]", f" {MASK}", text)
        # The text is for `fill-mask` too, so it must give the same ids.
        closed = close_up(text)
        return closed if encode_with_masks(model.tokenizer, closed) == ids.tolist() else text

    guesses = _best(model, [row for row, _ in hidden], top)
    return tuple(
        Completion(decode(row.ids[1:-1]), answer, tuple((g.token, g.probability) for g in best))
        for (row, answer), (best,) in zip(hidden, guesses, strict=True)
    )


def close_up(text: str) -> str:
    """Remove the spaces around punctuation that a WordPiece tokenizer leaves: `it ' s` becomes `it's`."""
    text = re.sub(r"(?<=\w) ' (?=(?:s|d|t|m|ll|re|ve)\b)", "'", text)
    text = re.sub(r"(?<=\w) - (?=\w)", "-", text.replace("- -", "--"))
    text = text.replace("( ", "(").replace(" )", ")")
    is_contraction = re.search(r"\w ' \[MASK\]", text)  # possibly: that depends on the hidden word
    for mark in '"' if is_contraction else "\"'":
        first, *others = re.split(rf"(?:^| ){mark}(?: |$)", text)
        text, opens = first, True
        for part in others:
            opens = not text or (opens and bool(part))  # a mark before all words opens, one behind closes
            text += f"{' ' * bool(text)}{mark}{part}" if opens else f"{mark}{' ' * bool(part)}{part}"
            opens = not opens
    return text


def _masked_row(model: TrainedModel, text: Text) -> TokenRow:
    """The row of a text or pair. Raises ValueError if it has no [MASK] or is too long."""
    tokenizer, limit = model.tokenizer, model.max_length
    segments = [np.array(encode_with_masks(tokenizer, part)) for part in ([text] if isinstance(text, str) else text)]
    row = TokenRow.of(tokenizer, segments, get_family(model.config.model.family).template)
    start = excerpt(str(text))
    if tokenizer.mask_id not in row.ids:
        raise ValueError(f"text {start!r} has no {MASK}; write {MASK} in place of a word")
    if len(row) > limit:
        raise ValueError(
            f"text {start!r} has {len(row)} tokens, special ones included; the model was trained on rows of {limit} "
            "(data.sequence_length, stages.*.sequence_length); shorten it"
        )
    return row


def encode_with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text in which [MASK] is the mask token; the text behind it is encoded as in rows of training.

    An exported tokenizer begins a word there, as `tokenizers` does: with SentencePiece "[MASK]." gets a space more.
    """
    *before, last = text.split(MASK)
    first, *others = [*(part.rstrip() for part in before), last]  # the space before a mask belongs to the masked word
    ids = tokenizer.encode([first])[0].tolist()
    for part in tokenizer.encode_behind(others):
        ids += [tokenizer.mask_id, *part.tolist()]
    return ids


def _sample(model: TrainedModel, split: Sentences, seed: int) -> list[np.ndarray]:
    """Draw sentences of suitable length from a split, each at most once; returns their ids."""
    if not split.num_sentences:
        return []
    drawn = below(hash64(derive_key(seed, "completions"), np.arange(_SAMPLE)), split.num_sentences)
    chosen = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    starts = np.asarray(split.sentence_offsets)[chosen]
    lengths = np.asarray(split.sentence_offsets)[chosen + 1] - starts
    longest = min(_SENTENCE_TOKENS[-1], model.max_length - 2)
    fits = (lengths >= _SENTENCE_TOKENS[0]) & (lengths <= longest)
    if np.count_nonzero(fits) < _ENOUGH:
        fits = (lengths >= _SHORTEST) & (lengths <= longest)
    if not fits.any():
        return []
    ids = split.tokens(starts[fits], lengths[fits]).astype(np.int64)
    return np.split(ids, np.cumsum(lengths[fits])[:-1])


def _hide_words(tokenizer: Tokenizer, sentences: list[np.ndarray], count: int, seed: int) -> list[tuple[TokenRow, str]]:
    """(row with one word hidden, that word) for the first `count` sentences with a suitable word."""
    if not sentences:
        return []
    flat = np.concatenate(sentences)
    counts = np.bincount(flat, minlength=tokenizer.vocab_size)
    suitable = (counts >= max(_SEEN, _RAREST * len(flat))) & (counts <= _COMMONEST * len(flat))
    suitable &= np.array([token.isalpha() for token in tokenizer.display_texts])
    is_apostrophe = np.array([token in ("'", "’") for token in tokenizer.display_texts])
    whole_words_first = sorted(sentences, key=lambda ids: bool(tokenizer.is_continuation[ids].any()))
    hidden: dict[str, TokenRow] = {}
    for number, ids in enumerate(whole_words_first):
        if len(hidden) == count:
            break
        continued = np.append(tokenizer.is_continuation[ids[1:]], False)
        contracted = np.append(False, is_apostrophe[ids[:-1]])
        positions = np.flatnonzero(suitable[ids] & ~continued & ~contracted)
        if len(positions) and tokenizer.unk_id not in ids:
            position = positions[below(hash64(derive_key(seed, "hidden word"), np.array([number])), len(positions))[0]]
            masked = ids.copy()
            masked[position] = tokenizer.mask_id
            hidden.setdefault(tokenizer.display_texts[ids[position]], TokenRow.of(tokenizer, [masked]))
    return [(row, word) for word, row in hidden.items()]


def _best(model: TrainedModel, rows: Sequence[TokenRow], top: int) -> list[list[list[Guess]]]:
    """The guesses for each mask of each row, computed in few shapes, because each is compiled."""
    masks = [np.flatnonzero(row.ids == model.tokenizer.mask_id) for row in rows]
    slots = max(map(len, masks), default=0)
    tokens = model.tokenizer.display_texts
    guesses = []
    for row, positions in zip(rows, masks, strict=True):
        batch = pad_rows([row], row_width(model, len(row)))
        padded_positions = np.pad(positions, (0, slots - len(positions))).astype(np.int32)[None]
        shares, ids = jax.device_get(_predict(model.graphdef, model.params, *batch, padded_positions, top=top))
        by_mask = zip(ids[: len(positions)], shares[: len(positions)], strict=True)
        guesses.append([[Guess(tokens[i], float(share)) for i, share in zip(*best, strict=True)] for best in by_mask])
    return guesses


@functools.partial(jax.jit, static_argnames=("graphdef", "top"))
def _predict(
    graphdef: nnx.GraphDef,
    params: Params,
    input_ids: jax.Array,
    token_type_ids: jax.Array,
    sequence_ids: jax.Array,
    positions: jax.Array,
    *,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    """The `top` largest probabilities at each position of a row, and their ids: float32, int32 [P, top]."""
    bert = cast(PretrainingNetwork, bind(graphdef, params))
    hidden_BLD = bert.decode(input_ids, token_type_ids, sequence_ids, packed=False)
    return jax.lax.top_k(jax.nn.softmax(bert.mlm_logits(hidden_BLD, positions)[0].astype(jnp.float32)), top)
