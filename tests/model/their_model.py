"""transformers' BERT with weights of its own, and what it computes for a batch of ours."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.convert.huggingface.exporter import huggingface_config
from bertjax.convert.huggingface.names import from_huggingface_tensors


def relative(ours, reference):
    return float(np.linalg.norm(np.asarray(ours) - reference) / np.linalg.norm(reference))


def assert_same_gradients(found, wanted):
    """Each by the norm of the difference over its own, or over all of them where its own is next to nothing."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    whole = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in jax.tree.leaves(wanted)))
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        off = np.linalg.norm(ours - theirs)
        assert off <= 1e-5 * np.linalg.norm(theirs) or off <= 1e-6 * whole, (jax.tree_util.keystr(path), off, whole)


def their_model(config, seed=0):
    """transformers' model with every parameter random, those included that start as zeros or ones."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(seed)
    values = huggingface_config(config, pad_token_id=0)
    network = getattr(transformers, values["architectures"][0])(transformers.BertConfig(**values))
    for name, parameter in network.named_parameters():
        around = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        torch.nn.init.normal_(parameter, around, 0.08)
    return network.eval()


def load_tensors(network, tensors):
    import torch

    missing, left_over = network.load_state_dict({k: torch.from_numpy(np.array(x)) for k, x in tensors.items()}, False)
    assert not left_over and all("decoder" in name or "position_ids" in name for name in missing)


def our_params(network, config):
    return from_huggingface_tensors({name: p.detach().numpy() for name, p in network.named_parameters()}, config)


def their_outputs(network, batch):
    import torch

    inputs = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    inputs["attention_mask"] = (batch["sequence_ids"] > 0).astype(np.int32)
    return network(**{k: torch.from_numpy(x).long() for k, x in inputs.items()}, output_hidden_states=True)
