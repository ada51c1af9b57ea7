"""Small transformers networks of every family with random parameters, and rows of ids for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import ModelConfig
from bertjax.convert.compare import logits_name
from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.names import (
    architecture,
    from_huggingface_tensors,
    hf_class,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES, get_family
from bertjax.model.family_heads import HEADS
from bertjax.model.network import bind

LENGTH = 14
MASK = 3
SPECIAL = {"pad": 1, "cls": 0, "sep": 2}
SIZES = {
    "vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": LENGTH,
}  # fmt: skip


IN_TRANSFORMERS = tuple(name for name, family in FAMILIES.items() if family.huggingface)
SUITE = (
    "bert",
    "albert",
    "modernbert",
    "deberta-v2",
    "esm",
)  # of different structure; the long tests have every family


def members(names: Iterable[str] = IN_TRANSFORMERS) -> list[Any]:
    """Test parameters for every family; families outside the suite are marked `long`."""
    return [pytest.param(name, marks=() if name in SUITE else pytest.mark.long) for name in names]


def small(family: str, **fields) -> ModelConfig:
    """The base size of a family with smaller numbers and the same structure."""
    base = FAMILIES[family].presets["base"]
    narrow = {"relative_max": 9, "relative_buckets": min(base.relative_buckets, 6)} if base.relative_max else {}
    narrow |= {"mask_token_id": MASK} if base.token_dropout else {}
    narrow |= ({"embedding_size": 8} if base.embedding_size else {}) | ({"window": 4} if base.window else {})
    if base.attention_block:
        # Blocks of one token, so that rows exceed full attention; random blocks as in transformers' evaluation.
        narrow |= {"attention_block": 1, "random_blocks": 2, "random_blocks_seed": -1}
    narrow |= {"mlm_inner_size": 10} if base.mlm_inner_size else {}
    return replace(base, **(SIZES | narrow | fields))


SMALL = {
    **{name: small(name) for name in IN_TRANSFORMERS},
    "ernie with tasks": small("ernie", task_type_vocab_size=3),
    "electra narrow": small("electra", embedding_size=8),
    "electra-generator whole": small("electra-generator", embedding_size=0),
    "albert one layer": small("albert", num_hidden_layers=1),
    "albert two groups": small("albert", num_hidden_layers=4, layer_groups=2),
    "albert uneven groups": small("albert", num_hidden_layers=7, layer_groups=3),
    "albert erf": small("albert", hidden_act="gelu"),
    "albert relu": small("albert", hidden_act="relu"),
    "deberta-v2 with a convolution": small(
        "deberta-v2", conv_kernel=3, relative_shared=False, relative_norm=False, relative_buckets=0
    ),
    "deberta-v2 with a table": small(
        "deberta-v2",
        position_embedding="learned",
        **{f"relative_{key}": 0 for key in ("max", "buckets")},
        **{f"relative_{key}": False for key in ("shared", "norm")},
    ),
    # After the first layer, a whole period of layers and one more.
    "modernbert deep": small("modernbert", num_hidden_layers=5),
    "esm-1b": small("esm", position_embedding="learned", embedding_norm="norm_dropout"),
    "eurobert grouped": small("eurobert", num_key_value_heads=1),
    "ultrabert grouped": small("ultrabert", num_hidden_layers=7, num_key_value_heads=1),
    "ultrabert global": small("ultrabert", window=0, global_every=1, first_global=0, rope_theta_local=0.0),
    "modernbert global": small("modernbert", window=0, global_every=1, rope_theta_local=0.0),
}


def their_model(config: ModelConfig, name: str = "", std: float = 0.2, seed: int = 0):
    """transformers' network in float32 with every trained parameter drawn from a normal distribution."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(seed)
    network = getattr(transformers, name or architecture(config))(their_config(config))
    for parameter in network.parameters():
        if parameter.requires_grad:  # the others are tables that the class computes, such as sinusoids
            torch.nn.init.normal_(parameter, 0.0, std)
    return network.eval()


def their_config(config: ModelConfig):
    transformers = pytest.importorskip("transformers")
    values = to_config_json(config, SPECIAL)
    return transformers.AutoConfig.for_model(**values)


def their_tensors(network, config: ModelConfig) -> dict[str, np.ndarray]:
    """Their parameters by name, tied ones once, with the prefix that the encoder's own class leaves out."""
    hf = get_family(config.family).huggingface
    prefix = hf.prefix if hf_class(config).bare else ""
    named = {prefix + name: p.detach().numpy() for name, p in network.named_parameters(remove_duplicate=False)}
    named = {name: x for name, x in named.items() if name not in hf.tied}
    return {name: x for name, x in named.items() if name in their_shapes(config) or not name.startswith(hf.ignored)}


def our_params(network, config: ModelConfig):
    """Convert their parameters to ours; parameters that they lack are zero."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_network(config)[1])
    return zeros | from_huggingface_tensors(their_tensors(network, config), config, SPECIAL["pad"])


def rows(config: ModelConfig, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Four rows of ids: full, padded, of one token, and full again with other ids; int64 [4, L]."""
    draw = np.random.default_rng(3)
    lengths = np.array([length, length * 9 // 14, 1, length])
    real = np.arange(length) < lengths[:, None]
    ids = np.where(real, draw.integers(3, config.vocab_size, real.shape), SPECIAL["pad"])
    if config.token_dropout:
        ids[[0, 0, 1], [2, 5, 4]] = config.mask_token_id
    types = np.where(real, draw.integers(0, max(1, config.type_vocab_size), real.shape), 0)
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": real.astype(np.int64)}
    if config.global_tokens == "marked":
        # Global tokens by row: two neighbours and one within other windows; one; the only token; none.
        batch["global_attention_mask"] = np.zeros_like(ids)
        batch["global_attention_mask"][[0, 0, 0, 1, 2], [0, 1, 8, 4, 0]] = 1
    return batch


def global_positions(batch) -> np.ndarray | None:
    """The positions of marked tokens, -1 in unused slots: int32 [B, G]."""
    if "global_attention_mask" not in batch:
        return None
    positions = [np.flatnonzero(row) for row in batch["global_attention_mask"]]
    most = max(map(len, positions))
    return np.array([np.pad(row, (0, most - len(row)), constant_values=-1) for row in positions], np.int32)


def our_forward(config: ModelConfig, params, batch) -> dict[str, jax.Array]:
    """States of every layer, and the logits of the pretraining heads at every token or for every row."""
    bert = bind(abstract_network(config)[0], params)
    ids, types, mask = (
        jnp.asarray(batch[name], jnp.int32) for name in ("input_ids", "token_type_ids", "attention_mask")
    )
    marked = global_positions(batch)
    outputs = {"states": bert.encoder.hidden_states(ids, types, mask, packed=False, global_positions=marked)}
    everywhere = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = outputs["states"][-1]
    for head in hf_class(config).outputs:
        per_row = getattr(HEADS[head], "needs_pooler", False)
        logits = getattr(bert, head.replace("_head", "_logits"))(hidden, everywhere[:, :1] if per_row else everywhere)
        outputs[logits_name(head)] = logits[:, 0] if per_row else logits[..., : config.vocab_size]
    return outputs


def their_forward(network, config: ModelConfig, batch) -> dict:
    import torch

    has_types = config.type_vocab_size > 0
    inputs = {name: torch.from_numpy(x) for name, x in batch.items() if has_types or name != "token_type_ids"}
    out = network(**inputs, output_hidden_states=True)
    # BigBird pads rows to whole blocks, so its first states are longer.
    length = batch["input_ids"].shape[1]
    outputs = {"states": torch.stack([states[:, :length] for states in out.hidden_states])}
    for head, output in hf_class(config).outputs.items():
        per_token = not HEADS[head].needs_pooler
        outputs[logits_name(head)] = out[output].reshape(*batch["input_ids"].shape, -1) if per_token else out[output]
    return outputs


def output_slopes(theirs, batch) -> dict[str, np.ndarray]:
    """A fixed random weight for every logit at real tokens; the weighted sum is a loss that depends on every entry."""
    draw = np.random.default_rng(5)
    real = batch["attention_mask"] == 1
    return {
        key: draw.normal(size=logits.shape).astype(np.float32) * (real[..., None] if logits.ndim > 2 else 1)
        for key, logits in theirs.items()
        if key != "states" or len(theirs) == 1
    }


def their_gradients(network, config: ModelConfig, theirs, slopes) -> dict[str, np.ndarray]:
    """Gradients of the weighted sum of their outputs by each of their parameters, tied ones once."""
    import torch

    network.zero_grad()
    sum((torch.from_numpy(slope).to(theirs[key].dtype) * theirs[key]).sum() for key, slope in slopes.items()).backward()
    hf = get_family(config.family).huggingface
    prefix = hf.prefix if hf_class(config).bare else ""
    named = {prefix + n: p.grad for n, p in network.named_parameters(remove_duplicate=False) if p.grad is not None}
    return {name: gradient.numpy() for name, gradient in named.items() if name not in hf.tied}


def our_gradients(config: ModelConfig, params, batch, slopes) -> dict[str, np.ndarray]:
    """Gradients of the same sum by each of our parameters, under transformers' names."""

    @jax.jit
    @jax.grad
    def gradient(params):
        ours = our_forward(config, params, batch)
        return sum(jnp.sum(slope * ours[key]) for key, slope in slopes.items())

    return to_huggingface_tensors(gradient(params), config, SPECIAL["pad"])


def total_norm(gradients) -> float:
    """Norm of all gradients as one vector."""
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in gradients.values())))


def relative(ours, theirs) -> float:
    """Largest difference over the largest number of theirs."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
