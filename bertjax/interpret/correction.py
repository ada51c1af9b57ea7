"""Correction: finds words that are far less likely than another token in their place; the text needs no [MASK].

By default the MLM head predicts every token of the unchanged text in one pass, as MacBERT is used for correction (Cui
et al. 2020): masked language modelling also trains on unchanged and random tokens. `masked` hides each token in turn
(pseudo-likelihood, Salazar et al. 2020): one row per token, and the prediction does not depend on the token itself.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.families.registry import get_family
from bertjax.interpret.fill_mask import mlm_model
from bertjax.interpret.token_rows import TokenRow, excerpt, pad_rows, row_width
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.network import Params, PretrainingNetwork, bind
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import Tokenizer

# Log ratios above which a word is replaced: the best ones of tests/benchmarks/bench_correction.py (3.52 and 8.62 for a
# small encoder with a new MLM head), rounded up.
_THRESHOLD, _MASKED_THRESHOLD = 4.0, 9.0

_LOGITS, _TOKENS = 1 << 25, 4096  # of a batch, at most
_NO_KIND = -1


class Proposal(NamedTuple):
    """A token to replace another: its text, and log p(it) - log p(the original token)."""

    text: str
    log_ratio: float


class Word(NamedTuple):
    """A word that is one token, its offsets in the text, and proposals to replace it, the likeliest first."""

    start: int  # characters from the beginning of the text
    end: int
    text: str
    proposals: tuple[Proposal, ...]


class Correction(NamedTuple):
    """A corrected text, and the words of the original that were replaced by their first proposals."""

    text: str
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Examined:
    """A text, its examined words, and those skipped: of several tokens, or not in the vocabulary."""

    text: str
    words: tuple[Word, ...]
    skipped: tuple[str, ...]

    def correction(self, threshold: float) -> Correction:
        """Replace each word whose log ratio is above the threshold by its first proposal."""
        words = tuple(word for word in self.words if word.proposals[0].log_ratio > threshold)
        parts, behind = [], 0
        for word in words:
            parts += [self.text[behind : word.start], word.proposals[0].text]
            behind = word.end
        return Correction("".join([*parts, self.text[behind:]]), words)


@dataclass(frozen=True)
class _Cut:
    """The tokens of a text, and those that are whole words of a kind."""

    ids: np.ndarray
    spans: tuple[tuple[int, int, int], ...]  # index of the token, start and end in characters
    skipped: tuple[str, ...]


class _Question(NamedTuple):
    """A row with the words to examine in it."""

    row: TokenRow
    positions: np.ndarray
    ids: np.ndarray  # of the text at these positions
    words: list[tuple[int, int]]  # (number of the text, number of the word)


def default_threshold(masked: bool) -> float:
    """The default log ratio above which a word is replaced."""
    return _MASKED_THRESHOLD if masked else _THRESHOLD


def examine(
    model: TrainedModel, texts: Sequence[str], *, masked: bool = False, top: int = 5, number_from: int = 1
) -> list[Examined]:
    """Examine the words of texts: each gets the `top` likeliest tokens of its kind as proposals.

    Two tokens are of one kind if both begin or both continue a word, and both are letters of one script, digits, or a
    sign. Texts longer than the rows of training are read in windows. A generator is used if there is one. Raises
    ValueError for a text that spells a special token, by its number (counted from `number_from`), for a `top` outside
    the vocabulary, and as `mlm_model` does.
    """
    model = mlm_model(model)
    tokenizer = model.tokenizer
    if not 1 <= top <= tokenizer.vocab_size:
        raise ValueError(f"top={top}: give 1 to {tokenizer.vocab_size} proposals, the vocabulary's entries")
    kinds = _kinds(tokenizer)
    cuts = [_cut(tokenizer, kinds, text, number) for number, text in enumerate(texts, number_from)]
    proposals: dict[tuple[int, int], tuple[Proposal, ...]] = {}
    for question, ratios, ids in _answers(model, list(_questions(model, cuts)), kinds, top, masked):
        for word, word_ratios, word_ids in zip(question.words, ratios, ids, strict=True):
            start, end = cuts[word[0]].spans[word[1]][1:]
            original = texts[word[0]][start:end]
            proposals[word] = tuple(
                Proposal(_match_case(original, tokenizer, number), float(ratio))
                for ratio, number in zip(word_ratios, word_ids, strict=True)
                if np.isfinite(ratio)
            )
    return [
        Examined(
            text,
            tuple(
                Word(start, end, text[start:end], proposals[number, index])
                for index, (_, start, end) in enumerate(cut.spans)
                if proposals[number, index]
            ),
            cut.skipped,
        )
        for number, (text, cut) in enumerate(zip(texts, cuts, strict=True))
    ]


def _kinds(tokenizer: Tokenizer) -> np.ndarray:
    """The kind of each token, int32 [vocab_size]; -1 for tokens that are not a word, number or sign."""
    numbers: dict[tuple[bool, str], int] = {}
    kinds = np.full(tokenizer.vocab_size, _NO_KIND, np.int32)
    pairs = zip(tokenizer.surfaces, tokenizer.is_continuation.tolist(), strict=True)
    for number, (surface, continues) in enumerate(pairs):
        if kind := _name_kind(surface.decode(errors="replace")):
            kinds[number] = numbers.setdefault((continues, kind), len(numbers))
    return kinds


def _name_kind(text: str) -> str:
    """The script of letters, `digits`, `sign`, or "" for anything else, such as `[unused1]`."""
    if text.isdigit():
        return "digits"
    letters = [unicodedata.category(character)[0] in "LM" for character in text]
    if letters and letters[0] and all(letters):
        return unicodedata.name(text[0], "").partition(" ")[0]
    return "sign" if len(text) == 1 and not text.isspace() and text != "\ufffd" else ""


def _cut(tokenizer: Tokenizer, kinds: np.ndarray, text: str, number: int) -> _Cut:
    try:
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):
        raise ValueError(f"text {number} has a lone surrogate; it is not valid Unicode; correct the source") from None
    ids = np.array(encoding.ids, np.int32)
    for role, token in tokenizer.special.items():
        if role != "unk" and token in ids:
            raise ValueError(
                f"text {number}, {excerpt(text)!r}, contains the special token {tokenizer.tokens[token]}; leave it out "
                "(bertjax fill-mask fills masks)"
            )
    begins = ~tokenizer.is_continuation[ids]
    begins[:1] = True
    # A character such as "½" may become several tokens, each with the whole character as its span: together a word.
    offsets = np.array(encoding.offsets, int).reshape(-1, 2)
    begins[1:] &= offsets[1:, 0] >= offsets[:-1, 1]
    first = np.flatnonzero(begins).tolist()
    spans, skipped = [], []
    for begin, end in itertools.pairwise([*first, len(ids)]):
        start, stop = int(offsets[begin, 0]), int(offsets[end - 1, 1])
        following = offsets[end, 0] if end < len(ids) else len(text)
        while stop < following and unicodedata.category(text[stop]) == "Mn":  # an accent that normalisation removed
            stop += 1
        word = text[start:stop]
        start += len(word) - len(word.lstrip())
        if end == begin + 1 and kinds[ids[begin]] != _NO_KIND and word.strip():
            spans.append((begin, start, start + len(word.strip())))
        elif word.strip():
            skipped.append(word.strip())
    return _Cut(ids, tuple(spans), tuple(skipped))


def _questions(model: TrainedModel, cuts: Sequence[_Cut]) -> Iterator[_Question]:
    """A question for each window of a text that has words to examine."""
    tokenizer, template = model.tokenizer, get_family(model.config.model.family).template
    for number, cut in enumerate(cuts):
        word_starts = np.array([begin for begin, _, _ in cut.spans], int)
        starts, window = _windows(len(cut.ids), model.max_length - 2, word_starts)
        for index, start in enumerate(starts):
            ids = cut.ids[start : start + model.max_length - 2]
            words = np.flatnonzero(window == index)
            if len(words):
                row, positions = TokenRow.of(tokenizer, [ids], template), word_starts[words] - start + 1
                yield _Question(row, positions, row.ids[positions], [(number, word) for word in words.tolist()])


def _hide_each(questions: Iterable[_Question]) -> Iterator[_Question]:
    """Split each question into one for each of its words, which is hidden; rows are made as they are used."""
    for row, positions, own, words in questions:
        for index, position in enumerate(positions):
            ids = row.ids.copy()
            ids[position] = row.tokenizer.mask_id
            place = slice(index, index + 1)
            yield _Question(replace(row, ids=ids), positions[place], own[place], words[place])


def _windows(tokens: int, room: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(starts of windows of `room` tokens, the window with most context for each index of `places`)."""
    if tokens <= room:
        return np.zeros(1, int), np.zeros(len(places), int)
    starts = np.append(np.arange(0, tokens - room, max(1, room // 2)), tokens - room)
    before = places[:, None] - starts
    return starts, np.minimum(before, room - 1 - before).argmax(1)


def _answers(
    model: TrainedModel, questions: list[_Question], kinds: np.ndarray, top: int, masked: bool
) -> Iterator[tuple[_Question, np.ndarray, np.ndarray]]:
    """(question, log ratios float32 [words, top], ids int32 [words, top]) for each question, shorter rows first.

    With `masked` the questions are split by `_hide_each`.
    """
    # The kind of each token, and a number shared by tokens of equal text: int32 [V padded]
    texts: dict[bytes, int] = {}
    same = np.array([texts.setdefault(surface, len(texts)) for surface in model.tokenizer.surfaces], np.int32)
    beyond = padded_vocab_size(model.config.model) - len(kinds)
    tables = jnp.asarray(np.pad(kinds, (0, beyond), constant_values=_NO_KIND)), jnp.asarray(np.pad(same, (0, beyond)))
    questions.sort(key=lambda question: len(question.row))
    remaining = sum(len(question.words) for question in questions) if masked else len(questions)
    queue = _hide_each(questions) if masked else iter(questions)
    for width, group in itertools.groupby(queue, lambda question: row_width(model, len(question.row))):
        most = _TOKENS // width if masked else _LOGITS // (width * model.tokenizer.vocab_size)
        height = max(1, min(most, 1 << (remaining - 1).bit_length()))
        while batch := list(itertools.islice(group, height)):
            rows = pad_rows([question.row for question in batch + batch[:1] * (height - len(batch))], width)
            targets = np.zeros((2, height, 1 if masked else width), np.int32)
            for number, question in enumerate(batch):
                targets[:, number, : len(question.positions)] = question.positions, question.ids
            ratios, ids = jax.device_get(_compare(model.graphdef, model.params, *rows, *targets, *tables, top=top))
            for index, question in enumerate(batch):
                count = len(question.positions)
                yield question, ratios[index, :count], ids[index, :count]
            remaining -= len(batch)
            height = max(1, min(most, 1 << (remaining - 1).bit_length()))


@functools.partial(jax.jit, static_argnames=("graphdef", "top"))
def _compare(
    graphdef: nnx.GraphDef,
    params: Params,
    input_ids: jax.Array,
    token_type_ids: jax.Array,
    sequence_ids: jax.Array,
    positions_BP: jax.Array,
    own_BP: jax.Array,
    kinds_V: jax.Array,
    texts_V: jax.Array,
    *,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    """The `top` largest log p(token) - log p(original token) at each position, and their tokens: [B, P, top].

    Tokens of another kind than the original one, or with the same text, have -inf.
    """
    bert = cast(PretrainingNetwork, bind(graphdef, params))
    hidden_BLD = bert.decode(input_ids, token_type_ids, sequence_ids, packed=False)
    logits_BPV = bert.mlm_logits(hidden_BLD, positions_BP).astype(jnp.float32)
    own_logit = jnp.take_along_axis(logits_BPV, own_BP[..., None], axis=-1)
    allowed = (kinds_V == kinds_V[own_BP][..., None]) & (texts_V != texts_V[own_BP][..., None])
    # The normaliser of the softmax cancels out, so that logits serve as log probabilities.
    return jax.lax.top_k(jnp.where(allowed, logits_BPV - own_logit, -jnp.inf), top)


def _match_case(original: str, tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; if the vocabulary has no case, in the case of the word that it replaces."""
    text = tokenizer.surfaces[token].decode()
    if not tokenizer.rules.lowercase:
        return text
    if len(original) > 1 and original.isupper():
        return text.upper()
    return text[:1].upper() + text[1:] if original[:1].isupper() else text
