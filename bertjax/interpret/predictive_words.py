"""Which word of a sentence predicts another, by the model's own measure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.interpret.attention_maps import exact_graphdef
from bertjax.interpret.token_rows import TokenRow, padded
from bertjax.model.network import Params, bind
from bertjax.storage.progress import Progress
from bertjax.training.run_directory import TrainedModel

LEAST = math.log(1.1)  # nats: a word that lowers another's probability by less than this factor does not predict it
_ROWS_AT_ONCE = 64


class _Masked(NamedTuple):
    row: TokenRow  # with masks
    place: int  # of the token that is asked for
    token: int


def predictive_words(
    model: TrainedModel, asked: Sequence[tuple[TokenRow, int]], progress: Progress
) -> list[int | None]:
    """For each token asked for (its row, its place), the place of the word token that predicts it most, if one does.

    That is the token that, masked beside the token asked for, lowers its probability most ("perturbed masking", Wu et
    al. 2020, with the probability of the token as the measure), by a factor of 1.1 at least. The model must know masks.
    """
    questions = [list(_masked(row, place)) for row, place in asked]
    flat = [question for group in questions for question in group]
    found = np.array(list(_log_probabilities(model, flat, progress)))
    answers: list[int | None] = []
    edges = np.cumsum([0, *map(len, questions)])
    for (row, place), first, last in zip(asked, edges, edges[1:], strict=False):
        alone, *with_another = found[first:last]
        drops = alone - np.array(with_another)
        best = int(drops.argmax()) if len(drops) else -1
        answers.append(int(_others(row, place)[best]) if len(drops) and drops[best] >= LEAST else None)
    return answers


def _others(row: TokenRow, place: int) -> np.ndarray:
    return np.flatnonzero(row.is_word & (np.arange(len(row)) != place))


def _masked(row: TokenRow, place: int) -> Iterator[_Masked]:
    """The row with the token masked, and then with each other word token masked beside it."""
    for other in (None, *_others(row, place)):
        ids = row.ids.copy()
        ids[place] = row.tokenizer.mask_id
        if other is not None:
            ids[other] = row.tokenizer.mask_id
        yield _Masked(TokenRow(ids, row.segments, row.tokenizer), place, int(row.ids[place]))


def _log_probabilities(model: TrainedModel, asked: Sequence[_Masked], progress: Progress) -> Iterator[float]:
    """The log probability of the token at the place of each masked row; equal shapes, so that it compiles once."""
    graphdef, rest = exact_graphdef(model), iter(asked)
    longest, done = max((len(one.row) for one in asked), default=0), 0
    while part := list(islice(rest, _ROWS_AT_ONCE)):
        filled = part + part[:1] * (_ROWS_AT_ONCE - len(part))
        batch = padded([one.row for one in filled], longest)
        places = np.array([[one.place] for one in filled], np.int32)
        tokens = np.array([one.token for one in filled], np.int32)
        with jax.default_matmul_precision("highest"):
            found = np.asarray(_of_tokens(graphdef, model.params, *batch, places, tokens))
        yield from found[: len(part)].tolist()
        done += len(part)
        progress("asking which words predict others", done, len(asked))


@functools.partial(jax.jit, static_argnames="graphdef")
def _of_tokens(
    graphdef: nnx.GraphDef,
    params: Params,
    ids: jax.Array,
    types: jax.Array,
    sequence_ids: jax.Array,
    places: jax.Array,
    tokens: jax.Array,
) -> jax.Array:
    """float32 [B]: the log probability of a token at one place of each row."""
    bert = bind(graphdef, params)
    logits = bert.mlm_logits(bert.encoder(ids, types, sequence_ids), places)[:, 0]
    return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, None], axis=1)[:, 0]
