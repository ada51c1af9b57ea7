"""At the sizes of published models every family computes what transformers computes, beyond windows and blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from their_families import IN_TRANSFORMERS, our_forward, our_params, relative, rows, their_forward, their_model

from bertjax.config import ModelConfig
from bertjax.model.families.registry import FAMILIES

_LENGTH = 720  # tokens: beyond windows of 256, and beyond 11 blocks of 64, up to which BigBird sees everything
# Whole, since nothing else compares them at the base size.
_WHOLE = ("modernbert", "longformer", "bigbird", "deberta", "deberta-v3")
_CASES = [(family, 3) for family in IN_TRANSFORMERS] + [(family, 0) for family in _WHOLE]


def published(family: str, layers: int) -> ModelConfig:
    """The base size of a family with so many layers, 0 for all, and few tokens; BigBird's blocks as in evaluation."""
    presets = FAMILIES[family].presets
    config = presets.get("base", next(iter(presets.values())))
    config = replace(config, vocab_size=4096, num_hidden_layers=layers or config.num_hidden_layers)
    return replace(config, random_blocks_seed=-1) if config.attention_block else config


@pytest.mark.long
@pytest.mark.parametrize(("family", "layers"), _CASES, ids=lambda value: str(value or "all"))
def test_states_and_logits_are_as_near_to_float64_as_those_of_transformers(family: str, layers: int) -> None:
    torch = pytest.importorskip("torch")
    config = published(family, layers)
    network = their_model(config, std=0.05)
    batch = rows(config, min(_LENGTH, config.max_position_embeddings))
    ours = our_forward(config, our_params(network, config), batch)
    with torch.no_grad():
        theirs = their_forward(network, config, batch)
        exact = their_forward(network.double(), config, batch)
    assert len(ours["states"]) == config.num_hidden_layers + 1
    for name, right in exact.items():
        found, other, right = (_of_tokens(x, batch["attention_mask"]) for x in (ours[name], theirs[name], right))
        for number, layer in enumerate(right) if name == "states" else [(..., right)]:
            ours_off, theirs_off = relative(found[number], layer), relative(other[number], layer)
            assert ours_off <= max(1e-5, 2 * theirs_off), f"{name} {number}: {ours_off:.1e}, {theirs_off:.1e}"


def _of_tokens(x: object, mask: np.ndarray) -> np.ndarray:
    """Without what stands at padding, of which no value is defined: [..., tokens, D]; figures of rows as they are."""
    x = np.asarray(x)
    return x[..., mask.astype(bool), :] if x.shape[-3:-1] == mask.shape else x
