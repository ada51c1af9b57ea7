"""Every family equals transformers at the sizes of published models, beyond windows and blocks."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from their_families import (
    IN_TRANSFORMERS,
    our_forward,
    our_gradients,
    our_params,
    output_slopes,
    relative,
    rows,
    their_forward,
    their_gradients,
    their_model,
    total_norm,
)

from bertjax.config import ModelConfig
from bertjax.families.registry import FAMILIES


def positions(config: ModelConfig) -> int:
    """The most tokens of a row; unlimited without a position table."""
    return config.max_position_embeddings if config.position_embedding == "learned" else sys.maxsize


_LENGTH = 720  # tokens: beyond windows of 256, and beyond 11 blocks of 64, up to which BigBird's attention is full
# The base size of each family, and the size of DeBERTa v2 that has a convolution.
_SHAPES = [*((family, "base") for family in IN_TRANSFORMERS), ("deberta-v2", "xxlarge")]
# Whole, since nothing else compares them at the base size.
_WHOLE = ("modernbert", "longformer", "bigbird", "deberta", "deberta-v3")
_CASES = [
    *((family, preset, 3, _LENGTH) for family, preset in _SHAPES),
    *((family, "base", 0, _LENGTH) for family in _WHOLE),
    *((family, "base", 3, 2048) for family in IN_TRANSFORMERS if positions(FAMILIES[family].presets["base"]) >= 2048),
]


def published(family: str, preset: str, layers: int) -> ModelConfig:
    """A preset with this many layers (0: all) and a small vocabulary; BigBird's blocks as in evaluation."""
    config = FAMILIES[family].presets[preset]
    config = replace(config, vocab_size=4096, num_hidden_layers=layers or config.num_hidden_layers)
    return replace(config, random_blocks_seed=-1) if config.attention_block else config


def make_batch(config: ModelConfig, length: int) -> dict[str, np.ndarray]:
    """Rows of this many tokens, as far as the family has positions; if long, only the full and the padded row."""
    length = min(length, positions(config))
    return {name: x[: 4 if length <= _LENGTH else 2] for name, x in rows(config, length).items()}


@pytest.mark.long
@pytest.mark.parametrize(("family", "preset", "layers", "length"), _CASES, ids=lambda value: str(value or "all"))
def test_outputs_are_as_near_to_float64_as_transformers(family: str, preset: str, layers: int, length: int) -> None:
    torch = pytest.importorskip("torch")
    config = published(family, preset, layers)
    network, batch = their_model(config, std=0.05), make_batch(config, length)
    ours = our_forward(config, our_params(network, config), batch)
    with torch.no_grad():
        theirs = their_forward(network, config, batch)
        exact = their_forward(network.double(), config, batch)
    assert len(ours["states"]) == config.num_hidden_layers + 1
    for name, right in exact.items():
        # The two logits of a pair are sums whose terms can cancel: ERNIE's are a tenth of the terms' norm here.
        least = 5e-5 if name == "NSP logits" else 1e-5
        mine, other, right = (_at_tokens(x, batch["attention_mask"]) for x in (ours[name], theirs[name], right))
        for number, layer in enumerate(right) if name == "states" else [(..., right)]:
            ours_off, theirs_off = relative(mine[number], layer), relative(other[number], layer)
            assert ours_off <= max(least, 2 * theirs_off), f"{name} {number}: {ours_off:.1e}, {theirs_off:.1e}"


@pytest.mark.long
@pytest.mark.parametrize(("family", "preset"), _SHAPES)
def test_gradients_are_as_near_to_float64_as_transformers(family: str, preset: str) -> None:
    pytest.importorskip("torch")
    config = published(family, preset, 3)
    if config.hidden_act == "relu":
        # ReLU's derivative jumps at 0, so that units within rounding of 0 may differ; test_families.py compares its
        # gradients on few units.
        config = replace(config, hidden_act="gelu")
    network, batch = their_model(config, std=0.05), make_batch(config, _LENGTH)
    if config.global_tokens == "marked":
        # transformers' float64 gradients are NaN for rows with padding or different numbers of global tokens.
        batch = {name: x[:1] for name, x in batch.items()}
    params, outputs = our_params(network, config), their_forward(network, config, batch)
    slopes = output_slopes(outputs, batch)
    theirs = their_gradients(network, config, outputs, slopes)
    network.zero_grad()
    exact = their_gradients(network, config, their_forward(network.double(), config, batch), slopes)
    ours = our_gradients(config, params, batch, slopes)
    assert ours.keys() == exact.keys() == theirs.keys()
    whole, worst = total_norm(exact), 0.0
    for name, right in exact.items():
        norm, ours_off, theirs_off = (np.linalg.norm(x) for x in (right, ours[name] - right, theirs[name] - right))
        assert ours_off <= max(1e-5 * norm, 1e-6 * whole, 2 * theirs_off), f"{name}: {ours_off / norm:.1e}"
        worst = max(worst, ours_off / whole)
    print(f"{family} {preset}: largest difference of a gradient over the norm of all {worst:.1e}")


def _at_tokens(x: object, mask: np.ndarray) -> np.ndarray:
    """Select the real tokens, [..., tokens, D], since values at padding are undefined; keep arrays per row."""
    x = np.asarray(x)
    return x[..., mask.astype(bool), :] if x.shape[-3:-1] == mask.shape else x
