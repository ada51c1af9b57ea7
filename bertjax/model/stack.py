"""The stack of layers: which layers share parameters, the window of each, and the scan that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.kernels import FUSED_ATTENTION
from bertjax.model.attention.self_attention import LayerInputs, SelfAttention, layer_windows
from bertjax.model.convolution import Convolution
from bertjax.model.dropout import ATTENTION_OUTPUT, MLP_OUTPUT, dropout
from bertjax.model.layers import FeedForward, LayerNorm, recomputed
from bertjax.model.products import PRODUCT, unstack
from bertjax.parallel.gathering import gather_layer
from bertjax.parallel.sharding import constrain

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT, FUSED_ATTENTION),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Layer(nnx.Module):
    """One transformer layer: each half is LayerNorm(x + dropout(f(x))) (paper, section 3).

    With `norm_place` pre each half is x + dropout(f(LayerNorm(x))), and the encoder has a final norm. Layer 0 may lack
    the attention norm and may end with a convolution.
    """

    def __init__(self, config: ModelConfig, first: bool = False, *, rngs: nnx.Rngs) -> None:
        self.attention = SelfAttention(config, rngs=rngs)
        self.attention_norm = LayerNorm(config, config.hidden_size) if config.first_norm or not first else None
        self.convolution = Convolution(config, rngs=rngs) if first and config.conv_kernel else None
        self.mlp = FeedForward(config, rngs=rngs)
        self.mlp_norm = LayerNorm(config, config.hidden_size)
        self.dropout_rate, self.pre = config.hidden_dropout_prob, config.norm_place == "pre"
        depth = config.residual_depth
        self.divisor = math.sqrt(config.num_hidden_layers / depth) if depth else 1.0

    def __call__(self, x_BLD: jax.Array, inputs: LayerInputs, queries_BLD: jax.Array | None = None) -> jax.Array:
        """Compute the next layer's input; `queries_BLD` replaces x in the queries and in the residual connection."""
        layer_input, keys = x_BLD, inputs.dropout_keys
        # 1. Attention; its LayerNorm is in `_norm_and_expand`, or in `attention_input` with `norm_place` pre
        attended = self.attention(x_BLD, inputs, queries_BLD, self.attention_input)
        residual = x_BLD if queries_BLD is None else queries_BLD
        x_BLD = residual + self._scale_branch(dropout(attended, keys, ATTENTION_OUTPUT, self.dropout_rate))

        # 2. Feed-forward
        # A norm and the product that follows are one function, so that the backward pass keeps no normalised x.
        residual, parts = recomputed(self._norm_and_expand)(x_BLD)
        x_BLD = residual + self._scale_branch(dropout(self.mlp.contract(*parts), keys, MLP_OUTPUT, self.dropout_rate))
        if not self.pre:
            x_BLD = self.mlp_norm(x_BLD)

        # 3. The convolution beside both halves (DeBERTa-v2)
        if self.convolution is not None:
            x_BLD = self.convolution(layer_input, x_BLD, inputs.sequence_ids, keys)
        return constrain(x_BLD, "act_batch", "act_length", "act_embed")

    def attention_input(self, x_BLD: jax.Array) -> jax.Array:
        """The input of attention: with `norm_place` pre, the normalised input of the layer."""
        return self.attention_norm(x_BLD) if self.pre and self.attention_norm is not None else x_BLD

    def _norm_and_expand(self, x_BLD: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Apply the norm between the halves: (residual of the feed-forward half, inputs of its activation).

        The norm is the last operation of the attention half; with `norm_place` pre it is the first of the feed-forward
        half, and the residual is not normalised.
        """
        if self.pre:
            return x_BLD, self.mlp.expand(self.mlp_norm(x_BLD))
        assert self.attention_norm is not None, "only layers with norm_place pre may lack this norm"
        x_BLD = self.attention_norm(x_BLD)
        return x_BLD, self.mlp.expand(x_BLD)

    def _scale_branch(self, branch_BLD: jax.Array) -> jax.Array:
        """Scale a branch before it is added to the residual stream (`residual_depth`)."""
        return branch_BLD if self.divisor == 1.0 else branch_BLD / self.divisor


# (layer, its inputs, x, its part of `extras`) -> (x for the next layer, what to collect)
Step = Callable[[Layer, LayerInputs, jax.Array, Any], tuple[jax.Array, Any]]


def stacked_layers(config: ModelConfig, *, rngs: nnx.Rngs) -> tuple[Layer | None, Layer]:
    """Create layer 0 separately if its parameters differ in kind, else None; and the stack of other layers or groups.

    So no parameter is unused, and the stack holds whole periods of windows (ModernBERT-Base: 1 + 7 x 3 layers).
    """
    first = Layer(config, first=True, rngs=rngs) if config.first_layer_apart else None
    count = config.layer_groups or config.num_hidden_layers - (first is not None)
    return first, nnx.vmap(lambda r: Layer(config, rngs=r))(rngs.split(count))


def layers_per_group(config: ModelConfig) -> list[int]:
    """The number of consecutive layers in each of `layer_groups`, which share parameters (ALBERT, section 3.1).

    Layer n of N uses group int(n / (N / G)), rounded as transformers rounds it.
    """
    depth, groups = config.num_hidden_layers, config.layer_groups
    numbers = [int(number / (depth / groups)) for number in range(depth)]
    return [numbers.count(group) for group in range(groups)]


class Stack(NamedTuple):
    """The layers of an encoder, and how they are executed; `first` and `layers` come from `stacked_layers`."""

    config: ModelConfig
    execution: ExecutionConfig
    first: Layer | None
    layers: Layer

    def lower(self, count: int) -> Stack:
        """The first `count` layers of a stack in which no layers share parameters."""
        stacked = count - (self.first is not None)
        return self._replace(
            config=replace(self.config, num_hidden_layers=count), layers=_slice_tree(self.layers, slice(0, stacked))
        )

    def last_repeated(self, times: int) -> Stack:
        """The last layer, repeated with shared parameters."""
        config = replace(self.config, num_hidden_layers=times, layer_groups=1)
        return self._replace(config=config, first=None, layers=_slice_tree(self.layers, slice(-1, None)))

    def run(
        self, step: Step, x: jax.Array, inputs: LayerInputs, extras: Any = None, first_number: int = 0
    ) -> tuple[jax.Array, Any]:
        """Apply `step` to every layer in order: (output of the last layer, values that the steps collect).

        Layers are numbered from `first_number`. `extras` and the collected values are trees of arrays whose first dim
        is the layer.
        """
        config = self.config
        numbers = jnp.arange(first_number, first_number + config.num_hidden_layers, dtype=jnp.uint32)
        windows = layer_windows(config)
        scan = partial(self._scan, step, inputs)
        if self.first is not None:
            alone, others = (_slice_tree((numbers, extras), part) for part in (slice(0, 1), slice(1, None)))
            x, first_collected = scan(windows[:1], x, (None, *alone), shared=self.first)
            if config.num_hidden_layers == 1:
                return x, first_collected
            x, others_collected = scan(windows[1:], x, (self.layers, *others))
            return x, _concatenate([first_collected, others_collected])
        if not config.layer_groups:
            return scan(windows, x, (self.layers, numbers, extras))
        collected, start = [], 0
        for group, size in enumerate(layers_per_group(config)):
            if not size:
                continue
            members = slice(start, start + size)
            start += size
            items = (None, *_slice_tree((numbers, extras), members))
            x, group_collected = scan(windows[members], x, items, shared=self._gather(_layer_at(self.layers, group)))
            collected.append(group_collected)
        return x, _concatenate(collected)

    def _scan(
        self,
        step: Step,
        inputs: LayerInputs,
        windows: tuple[int, ...],
        x: jax.Array,
        items: Any,
        shared: Layer | None = None,
    ) -> tuple[jax.Array, Any]:
        """Run consecutive layers; `items` stacks their (layer, number, extra), with `shared` (None, number, extra).

        The scan runs over periods, within which each layer's window is known at trace time, as fused kernels require.
        Layers that do not fill a period run after the scan.
        """
        period, unroll = _period(windows), self.execution.unrolled_periods
        periods = len(windows) // period

        def run_layer(x: jax.Array, item: Any, window: int) -> tuple[jax.Array, Any]:
            layer, number, extra = item
            layer = self._gather(layer if shared is None else shared)
            return step(layer, inputs.for_layer(number, window), x, extra)

        if self.execution.remat != "none":
            run_layer = jax.checkpoint(run_layer, policy=REMAT_POLICIES[self.execution.remat], static_argnums=2)

        def run_period(x: jax.Array, members: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
            collected = []
            for member, window in zip(members, windows[:period], strict=True):
                x, layer_collected = run_layer(x, member, window)
                collected.append(layer_collected)
            return x, tuple(collected)

        collected = []
        scanned = 0 if unroll >= periods else periods * period
        if scanned:
            members = _split_periods(_slice_tree(items, slice(0, scanned)), period)
            x, periods_collected = jax.lax.scan(run_period, x, members, unroll=unroll)
            collected.append(_interleave(periods_collected))
        # The rest of the layers; all of them if the scan would be fully unrolled, since it would still stack and slice
        # what each layer keeps for the backward pass.
        for item, window in zip(
            _unstack_tree(_slice_tree(items, slice(scanned, None))), windows[scanned:], strict=True
        ):
            x, layer_collected = run_layer(x, item, window)
            collected.append(jax.tree.map(lambda value: value[None], layer_collected))
        return x, _concatenate(collected)

    def _gather(self, layer: Layer) -> Layer:
        """Gather the weights of a layer if a device holds shards of them (`execution.gather`).

        If the step is rematerialised, the backward pass gathers them again: no policy keeps weights.
        """
        width = layer.attention.query.kernel.shape[0]
        return layer if width == self.config.hidden_size else gather_layer(layer, self.execution.dtype)


def _period(windows: tuple[int, ...]) -> int:
    """The smallest number of layers after which the windows repeat."""
    return next(p for p in range(1, len(windows) + 1) if windows[p:] == windows[:-p])


def _split_periods(stacked: Any, period: int) -> tuple[Any, ...]:
    """Split a tree of [layers, ...] into one of [periods, ...] for each layer of a period.

    The gradient concatenates the parts' gradients. With strided slices it would pad each with zeros and add them, which
    took a sixth of ModernBERT's step on a TPU.
    """
    if period == 1:
        return (stacked,)
    return tuple(_unstack_tree(jax.tree.map(lambda x: x.reshape(-1, period, *x.shape[1:]), stacked), axis=1))


def _unstack_tree(stacked: Any, axis: int = 0) -> Iterator[Any]:
    stacks, form = jax.tree.flatten(stacked)
    return (form.unflatten(members) for members in zip(*(unstack(stack, axis) for stack in stacks), strict=True))


def _layer_at(stacked: Any, number: int) -> Any:
    return jax.tree.map(lambda stack: stack[number], stacked)


def _slice_tree(stacked: Any, which: slice) -> Any:
    """Slice a tree of stacks; slicing all layers costs no operation."""

    def cut(stack: jax.Array) -> jax.Array:
        return stack if which.indices(len(stack)) == (0, len(stack), 1) else stack[which]

    return jax.tree.map(cut, stacked)


def _interleave(members: tuple[Any, ...]) -> Any:
    """Merge one tree of [periods, ...] for each layer of a period into a tree of [layers, ...], in layer order."""
    if len(members) == 1:
        return members[0]
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *members)


def _concatenate(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
