"""Internals of a forward pass: attention of every head, hidden states of every layer, gradients of a loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bertjax.families.networks import abstract_network
from bertjax.finetune.kinds import get_kind
from bertjax.finetune.kinds.kind import default_labels
from bertjax.interpret.token_rows import TokenRow, pad_rows, round_up_width
from bertjax.model.attention.backends import visible
from bertjax.model.attention.self_attention import LayerInputs, layer_windows
from bertjax.model.network import Network, Params, PretrainingNetwork, bind
from bertjax.model.stack import Layer
from bertjax.model.task_heads import SequenceNetwork
from bertjax.run.run_directory import TrainedModel

_ROWS_AT_ONCE = 16


class Inside(NamedTuple):
    """The internals for one row of n tokens."""

    attention: np.ndarray  # float32 [layers, H, n, n], query x key; each row sums to 1
    hidden: np.ndarray  # float32 [layers + 1, n, D]: the embeddings, and the output of each layer
    seen: np.ndarray  # bool [n, n]: the attention mask, query x key, of the layer with the widest window


@dataclass(frozen=True)
class LabelAtCls:
    """A prediction at [CLS], and its gradients."""

    label: str
    probability: float
    loss: float  # -log(probability), nats
    gradient_norms: np.ndarray  # float32 [layers + 1, n]: of the loss by each token's vector, Euclidean


def exact_graphdef(model: TrainedModel) -> nnx.GraphDef:
    """The model in float32 with the reference attention, for any execution options.

    Raises ValueError for a model whose attention is not one softmax over a row.
    """
    config = model.config.model
    if config.global_tokens != "none" or config.attention_block:
        raise ValueError(
            f"{model.directory}: model.global_tokens={config.global_tokens!r}, model.attention_block="
            f"{config.attention_block}: attention with global tokens or blocks is unsupported here; use another model"
        )
    return abstract_network(config)[0]


def untrained_heads(model: TrainedModel) -> tuple[str, ...]:
    """Name the heads, of `MLM head` and `NSP head`, that are missing or untrained: all biases are 0, as initialised.

    A head is untrained if an imported model lacks it or if no objective of the run uses it. Fine-tuned models and some
    families have no such head.
    """
    untrained = []
    for label, name in (("MLM head", "mlm_head"), ("NSP head", "nsp_head")):
        leaves = jax.tree_util.tree_leaves_with_path(model.params.get(name, {}))
        biases = [leaf for path, leaf in leaves if path[-1].key == "bias"]
        if name in model.untrained or not any(map(jnp.any, biases)):
            untrained.append(label)
    return tuple(untrained)


def look_inside(model: TrainedModel, rows: Sequence[TokenRow]) -> Iterator[Inside]:
    """Attention and hidden states of each row, without dropout."""
    graphdef, causal = exact_graphdef(model), model.config.model.causal
    windows = layer_windows(model.config.model)
    widest = 0 if 0 in windows else max(windows)
    at_once, longest = min(len(rows), _ROWS_AT_ONCE), max(map(len, rows), default=0)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        # All batches have the same shape, so that the function compiles once.
        batch = pad_rows([*part, *[part[0]] * (at_once - len(part))], round_up_width(longest))
        with jax.default_matmul_precision("highest"):
            attention, hidden = jax.device_get(_inside(graphdef, model.params, *batch))
        seen = np.asarray(visible(jnp.asarray(batch[2]), causal, widest))
        for number, row in enumerate(part):
            n = len(row)
            yield Inside(attention[:, number, :, :n, :n], hidden[:, number, :n], seen[number, :n, :n])


def next_sentence(model: TrainedModel, row: TokenRow, follows: bool = True) -> LabelAtCls:
    """The prediction of the NSP head for a pair."""
    return _label_at_cls(model, row, ("B follows A", "B does not follow A"), 0 if follows else 1)


def likeliest_label(model: TrainedModel, row: TokenRow) -> LabelAtCls:
    """The prediction of a classifier."""
    kind = get_kind(model.kind)
    assert kind.classifies_texts, "no other head has labels at [CLS]"
    labels = model.labels or default_labels(model.config.model.num_labels)
    return _label_at_cls(model, row, labels, None, several_hold=kind.several_hold)


def _label_at_cls(
    model: TrainedModel, row: TokenRow, labels: Sequence[str], number: int | None, *, several_hold: bool = False
) -> LabelAtCls:
    """The prediction for the label with this number, or for the likeliest.

    Gradients are with respect to the hidden states after the embeddings and after each layer. `several_hold`: labels
    have probabilities of their own.
    """
    ids, types, sequence_ids = pad_rows([row], round_up_width(len(row)))
    layers, width = model.config.model.num_hidden_layers + 1, model.config.model.hidden_size
    nudges = jnp.zeros((layers, 1, ids.shape[1], width), jnp.float32)
    with jax.default_matmul_precision("highest"):
        (loss, label), gradient = _loss_and_gradient(
            nudges, exact_graphdef(model), model.params, ids, types, sequence_ids, number, several_hold
        )
    norms = np.linalg.norm(np.asarray(gradient)[:, 0, : len(row)], axis=-1)
    return LabelAtCls(labels[int(label)], math.exp(-float(loss)), float(loss), norms)


@functools.partial(jax.jit, static_argnames="graphdef")
def _inside(
    graphdef: nnx.GraphDef, params: Params, ids: jax.Array, types: jax.Array, sequence_ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Attention [layers, B, H, L, L] and hidden states [layers + 1, B, L, D]."""
    encoder = bind(graphdef, params).encoder
    first = encoder.embeddings(ids, types, sequence_ids)

    def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        attention = layer.attention.probabilities(layer.attention_input(x), inputs)
        x = layer(x, inputs)
        return x, (attention, x)

    last, (attention, hidden) = encoder.stack.run(step, first, encoder.layer_inputs(sequence_ids))
    return attention, jnp.concatenate([first[None], hidden[:-1], encoder.normed(last)[None]])


def nudged_loss(
    nudges: jax.Array,
    network: Network,
    ids: jax.Array,
    types: jax.Array,
    sequence_ids: jax.Array,
    label: int | None,
    several_hold: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """(loss of a label at [CLS], the label) with `nudges` added to the hidden states; None means the likeliest label.

    `nudges` is [layers + 1, 1, L, D], added after the embeddings and after each layer. `several_hold` as in
    `_label_at_cls`.
    """
    encoder = network.encoder
    x = encoder.embeddings(ids, types, sequence_ids) + nudges[0]

    def step(layer: Layer, inputs: LayerInputs, x: jax.Array, nudge: jax.Array) -> tuple[jax.Array, None]:
        return layer(x, inputs) + nudge, None

    x, _ = encoder.stack.run(step, x, encoder.layer_inputs(sequence_ids), nudges[1:])
    cls_positions = jnp.zeros((1, 1), jnp.int32)
    if isinstance(network, PretrainingNetwork):
        logits = network.nsp_logits(encoder.normed(x), cls_positions)[0, 0]
    else:
        logits = cast(SequenceNetwork, network).sequence_logits(encoder.normed(x), cls_positions)[0, 0]
    chosen = logits.argmax() if label is None else jnp.asarray(label)
    if several_hold:
        return jax.nn.softplus(-logits[chosen]), chosen
    return optax.softmax_cross_entropy_with_integer_labels(logits, chosen), chosen


@functools.partial(jax.jit, static_argnames=("graphdef", "label", "several_hold"))
def _loss_and_gradient(
    nudges: jax.Array,
    graphdef: nnx.GraphDef,
    params: Params,
    ids: jax.Array,
    types: jax.Array,
    sequence_ids: jax.Array,
    label: int | None,
    several_hold: bool,
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    network = bind(graphdef, params)
    loss = jax.value_and_grad(nudged_loss, has_aux=True)
    return loss(nudges, network, ids, types, sequence_ids, label, several_hold)
