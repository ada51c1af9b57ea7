"""Log probabilities of masked tokens, one in each row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.families.networks import abstract_network
from bertjax.interpret.token_rows import TokenRow, pad_rows, row_width
from bertjax.model.network import Params, PretrainingNetwork, bind
from bertjax.run.run_directory import TrainedModel

_TOKENS = 4096  # of a batch, at most
_FEW = 8  # rows; larger batches are padded to the maximum, because compiling takes longer than computing


Question = TypeVar("Question", bound="tuple[TokenRow, *tuple[Any, ...]]")  # a row and its query


class MaskedToken(NamedTuple):
    """A row with masks in it, and the original token of one of them."""

    row: TokenRow
    position: int
    token: int


def log_probabilities(model: TrainedModel, tokens: Iterable[MaskedToken]) -> Iterator[float]:
    """log p(token at its position | row) in nats for each, in order; float32 with the reference attention.

    Successive rows of about the same length share a batch, so sort them by length.
    """
    graphdef = abstract_network(model.config.model)[0]
    for part, filled, batch in _batches(model, tokens):
        positions = np.array([[masked_token.position] for masked_token in filled], np.int32)
        ids = np.array([masked_token.token for masked_token in filled], np.int32)
        with jax.default_matmul_precision("highest"):
            values = np.asarray(_token_log_probabilities(graphdef, model.params, *batch, positions, ids))
        yield from values[:part].tolist()


def log_distributions(model: TrainedModel, questions: Iterable[tuple[TokenRow, Sequence[int]]]) -> Iterator[np.ndarray]:
    """log p(every token at its positions | row) in nats for each row: float32 [P, V padded]; as `log_probabilities`."""
    graphdef = abstract_network(model.config.model)[0]
    for part, filled, batch in _batches(model, questions):
        slots = 1 << (max(len(positions) for _, positions in filled) - 1).bit_length()  # few, because each is compiled
        padded_positions = np.array([[*places, *[0] * (slots - len(places))] for _, places in filled], np.int32)
        with jax.default_matmul_precision("highest"):
            values = np.asarray(_log_distributions(graphdef, model.params, *batch, padded_positions))
        yield from (
            distributions[: len(places)]
            for distributions, (_, places) in zip(values[:part], filled[:part], strict=True)
        )


def _batches(
    model: TrainedModel, questions: Iterable[Question]
) -> Iterator[tuple[int, list[Question], tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Yield batches of one width and few heights: (number of questions, the questions padded by repetition, arrays)."""
    for width, group in itertools.groupby(questions, lambda question: row_width(model, len(question[0]))):
        most = max(1, _TOKENS // width)
        while part := list(itertools.islice(group, most)):
            height = min(most, _FEW) if len(part) <= _FEW else most
            filled = part + part[:1] * (height - len(part))
            yield len(part), filled, pad_rows([question[0] for question in filled], width)


@functools.partial(jax.jit, static_argnames="graphdef")
def _log_distributions(
    graphdef: nnx.GraphDef,
    params: Params,
    ids: jax.Array,
    types: jax.Array,
    sequence_ids: jax.Array,
    positions: jax.Array,
) -> jax.Array:
    """The log probability of every token at some positions of each row: float32 [B, P, V padded]."""
    bert = cast(PretrainingNetwork, bind(graphdef, params))
    logits = bert.mlm_logits(bert.decode(ids, types, sequence_ids, packed=False), positions)
    return jax.nn.log_softmax(logits.astype(jnp.float32))


@functools.partial(jax.jit, static_argnames="graphdef")
def _token_log_probabilities(
    graphdef: nnx.GraphDef,
    params: Params,
    ids: jax.Array,
    types: jax.Array,
    sequence_ids: jax.Array,
    positions: jax.Array,
    tokens: jax.Array,
) -> jax.Array:
    """The log probability of a token at one position of each row: float32 [B]."""
    logs = _log_distributions(graphdef, params, ids, types, sequence_ids, positions)[:, 0]
    return jnp.take_along_axis(logs, tokens[:, None], axis=1)[:, 0]
