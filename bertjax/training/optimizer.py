"""Update rules by name: BERT's Adam, LAMB's trust ratio, StableAdamW, Muon; decay, clipping, moving averages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from bertjax.config import OptimizerConfig
from bertjax.model.network import GENERATOR
from bertjax.model.shared_tables import DIFFERENCE


class BertAdamState(NamedTuple):
    """First and second moments, float32, shaped like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction (google-research/bert optimization.py)."""

    def init(params: optax.Params) -> BertAdamState:
        return BertAdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, BertAdamState]:
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB's trust ratio (arXiv 1904.00962): scale a matrix's update to the matrix's norm, unless either norm is 0.

    Layers that are stacked in one array are scaled separately. Biases and LayerNorm scales, which do not decay, are not
    scaled. Rows that pad the vocabulary are 0, and so is their update: they add nothing to either norm.
    """

    def scale(path: tuple, update: jax.Array, param: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if not _decays(names):
            return update
        within = tuple(range(1 if "layers" in names else 0, param.ndim))
        param_norm, update_norm = (jnp.sqrt(jnp.sum(jnp.square(x), within, keepdims=True)) for x in (param, update))
        both = (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(both, param_norm / jnp.where(both, update_norm, 1.0), 1.0)

    def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def decays(params: optax.Params) -> Any:
    """Mask of the parameters with weight decay: all but biases and LayerNorm scales (optimization.py)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _decays([part.key for part in path]), params)


def _decays(names: list[str]) -> bool:
    return names[-1] not in ("bias", "scale")


def clip_factors(grads: Any, norm: jax.Array, clip_norm: float) -> Any:
    """The factor for each gradient that clips the global norm to `clip_norm`; 0 does not clip.

    Like tf.clip_by_global_norm, it only scales gradients down. If a model learns the difference between its word table
    and its generator's, model and generator are clipped separately, like the two optimizers of DeBERTa v3
    (section 3.3): no parameter has gradients from both losses.
    """

    def factor(norm: jax.Array) -> Any:
        return clip_norm / jnp.maximum(norm, clip_norm) if clip_norm else 1.0

    if DIFFERENCE not in grads.get("encoder", {}).get("embeddings", {}):
        whole = factor(norm)
        return jax.tree.map(lambda _: whole, grads)

    def is_generators(path: tuple) -> bool:
        names = tuple(part.key for part in path)
        return names[0] == GENERATOR or names == ("encoder", "embeddings", "word")

    squares: dict[bool, Any] = {False: 0.0, True: 0.0}
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        squares[is_generators(path)] += jnp.sum(jnp.square(grad))
    factors = {side: factor(jnp.sqrt(total)) for side, total in squares.items()}
    return jax.tree_util.tree_map_with_path(lambda path, _: factors[is_generators(path)], grads)


class StableAdamState(NamedTuple):
    """First and second moments, float32, shaped like the parameters."""

    count: jax.Array  # int32 []: updates so far  # pyright: ignore[reportIncompatibleMethodOverride]
    mu: Any
    nu: Any


def stable_adamw(
    beta1: float, beta2: float, eps: float, decay: optax.GradientTransformation
) -> optax.GradientTransformation:
    """(m / (sqrt(v) + eps) + decay) / max(1, rho), rho = sqrt(mean(g^2 / max(v, eps^2))) (Wortsman et al. 2023).

    Update t uses beta (1 - beta^(t-1)) / (1 - beta^t), which corrects the bias. Every parameter has its rho: each layer
    of a stack, and queries, keys and values each (one tensor in ModernBERT). Rows that pad the vocabulary count as
    zeros. rho replaces clipping (AnswerDotAI/ModernBERT, `src/optimizer.py`).
    """

    def init(params: optax.Params) -> StableAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return StableAdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, StableAdamState]:
        grads = updates
        count = state.count + 1
        t = count.astype(jnp.float32)
        b1, b2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (beta1, beta2))
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        plain = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        decayed, _ = decay.update(plain, decay.init(params), params)

        def shorten(path: tuple, step: jax.Array, g: jax.Array, v: jax.Array) -> jax.Array:
            within = tuple(range("layers" in [part.key for part in path], g.ndim))
            excess = jnp.mean(jnp.square(g) / jnp.maximum(v, eps**2), within, keepdims=True)
            return step / jnp.maximum(1.0, jnp.sqrt(excess))

        return jax.tree_util.tree_map_with_path(shorten, decayed, grads, nu), StableAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def muon(beta1: float, beta2: float, eps: float, momentum: float) -> optax.GradientTransformation:
    """Muon for the matrices of the layers, Adam for everything else (Jordan 2024; Liu et al. 2025).

    Five Newton-Schulz iterations make the momentum of a matrix orthogonal. It is scaled by 0.2 sqrt(max(in, out)), so
    that an update is as large as Adam's and both share one learning rate. Every layer of a stack has its own matrices;
    queries, keys, values and both halves of a gated MLP are separate ones. Tables and heads use Adam.
    """

    def sides(path: tuple, x: Any) -> Sides:
        dims = matrix_dims([part.key for part in path], x.ndim)
        assert dims is not None, "only matrices have this rule"
        return dims

    def dimension_numbers(tree: Any) -> Any:
        def dims(path: tuple, x: Any) -> optax.contrib.MuonDimensionNumbers:
            return optax.contrib.MuonDimensionNumbers(*sides(path, x))

        return jax.tree_util.tree_map_with_path(dims, tree)

    def scale_to_adam(updates: optax.Updates, params: Any = None) -> optax.Updates:
        def scale(path: tuple, x: jax.Array) -> jax.Array:
            return x * (0.2 * math.sqrt(max(math.prod(x.shape[dim] for dim in dims) for dims in sides(path, x))))

        return jax.tree_util.tree_map_with_path(scale, updates)

    def label(path: tuple, x: Any) -> str:
        return "adam" if matrix_dims([part.key for part in path], x.ndim) is None else "muon"

    orthogonal = optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=dimension_numbers)
    return optax.partition(
        {
            "muon": optax.chain(orthogonal, optax.stateless(scale_to_adam)),
            "adam": optax.scale_by_adam(beta1, beta2, eps),
        },
        lambda params: jax.tree_util.tree_map_with_path(label, params),
    )


Sides = tuple[tuple[int, ...], tuple[int, ...]]  # the dims of a matrix that are its inputs and its outputs


def matrix_dims(names: list[str], ndim: int) -> Sides | None:
    """The dims of a layer's matrix that are its inputs and its outputs; None for another parameter."""
    if names[-1] != "kernel" or "convolution" in names or not {"layers", "first_layer"} & {*names}:
        return None
    dims = tuple(range("layers" in names, ndim))  # without the stacked dim
    if names[-2] == "intermediate":  # [in, out], or [in, halves, out]
        return dims[:1], dims[-1:]
    inputs = len(dims) - 1 if names[-2] == "output" else 1  # all heads go into the output
    return dims[:inputs], dims[inputs:]


class AveragedState(NamedTuple):
    """The state of an update rule, and the moving average of the parameters."""

    rule: Any
    decay: jax.Array  # float32 []
    count: jax.Array  # int32 []: updates so far  # pyright: ignore[reportIncompatibleMethodOverride]
    average: Any  # sum over updates t of (1 - decay) decay^(count - t) params_t, not divided by the sum of the factors


def with_average(rule: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Add a moving average of the parameters to a rule's state, sharded like the parameters; see `follow`."""

    def init(params: optax.Params) -> AveragedState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AveragedState(rule.init(params), jnp.float32(decay), jnp.zeros((), jnp.int32), zeros)

    def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, AveragedState]:
        updates, inner = rule.update(updates, state.rule, params)
        return updates, state._replace(rule=inner)

    return optax.GradientTransformation(init, update)


def follow(opt_state: optax.OptState, params: optax.Params) -> optax.OptState:
    """Update the moving average of the parameters, if there is one, after an update (like `optax.ema`)."""
    if not isinstance(opt_state, AveragedState):
        return opt_state
    decay = opt_state.decay
    average = jax.tree.map(lambda mean, x: decay * mean + (1 - decay) * x, opt_state.average, params)
    return opt_state._replace(count=opt_state.count + 1, average=average)


def moving_average(arrays: Mapping[str, Any], decay: float, count: int) -> dict[str, Any]:
    """Correct the bias of `AveragedState.average` towards 0: arrays by name, `count` at least 1."""
    decay = float(np.float32(decay))  # as in the updates: in float32, 1 - 0.99999 is off by a thousandth
    return {name: mean / (1 - decay**count) for name, mean in arrays.items()}


def make_optimizer(config: OptimizerConfig, *after: optax.GradientTransformation) -> optax.GradientTransformation:
    """Make the update rule `config.name`, followed by the transformations `after`.

    bert_adamw        Adam without bias correction, decoupled decay (google-research/bert; the paper's)
    adamw             Adam with bias correction, decoupled decay
    lamb              adamw's update scaled by the trust ratio (MLPerf's and NVIDIA's LAMB)
    lamb_uncorrected  bert_adamw's update scaled by the trust ratio (google-research/albert's LAMB)
    stable_adamw      adamw's update, shortened where the gradient outgrows its second moment (ModernBERT)
    muon              orthogonal updates for the layers' matrices, adamw for everything else

    Biases and LayerNorm parameters do not decay unless `decay_all` is set (fairseq's RoBERTa). The train step itself
    clips and multiplies by the learning rate. With `average_decay` the state also holds a moving average of the
    parameters. Raises ValueError for an unknown name.
    """
    plain = scale_by_bert_adam(config.beta1, config.beta2, config.eps)
    corrected = optax.scale_by_adam(config.beta1, config.beta2, config.eps)
    decay = optax.add_decayed_weights(config.weight_decay, mask=None if config.decay_all else decays)
    rules = {
        "bert_adamw": (plain, decay),
        "adamw": (corrected, decay),
        "lamb": (corrected, decay, scale_by_trust_ratio()),
        "lamb_uncorrected": (plain, decay, scale_by_trust_ratio()),
        "stable_adamw": (stable_adamw(config.beta1, config.beta2, config.eps, decay),),
        "muon": (muon(config.beta1, config.beta2, config.eps, config.muon_momentum), decay),
    }
    if config.name not in rules:
        raise ValueError(f"optimizer.name={config.name!r} is unknown; choose from {', '.join(rules)}")
    rule = optax.chain(*rules[config.name])
    rule = optax.chain(rule, *after) if after else rule
    return with_average(rule, config.average_decay) if config.average_decay else rule
