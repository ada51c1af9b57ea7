"""transformers' BERT with random weights, its outputs for our batches, and comparisons with ours."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.convert.huggingface.exporter import huggingface_config
from bertjax.convert.huggingface.names import from_huggingface_tensors


def relative(ours, reference):
    return float(np.linalg.norm(np.asarray(ours) - reference) / np.linalg.norm(reference))


def assert_same_gradients(actual, expected):
    """Compare each gradient by the norm of the difference, relative to its own norm or, if that is tiny, to all."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    whole = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in jax.tree.leaves(expected)))
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        off = np.linalg.norm(ours - theirs)
        assert off <= 1e-5 * np.linalg.norm(theirs) or off <= 1e-6 * whole, (jax.tree_util.keystr(path), off, whole)


def their_model(config):
    """transformers' model with all parameters random, including those that are initialised to zeros or ones."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    values = huggingface_config(config, {"pad": 0})
    network = getattr(transformers, values["architectures"][0])(transformers.BertConfig(**values))
    for name, parameter in network.named_parameters():
        around = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        torch.nn.init.normal_(parameter, around, 0.08)
    return network.eval()


def load_tensors(network, tensors):
    import torch

    missing, unexpected = network.load_state_dict({k: torch.from_numpy(np.array(x)) for k, x in tensors.items()}, False)
    assert not unexpected and all("decoder" in name or "position_ids" in name for name in missing)


def our_params(network, config):
    return from_huggingface_tensors({name: p.detach().numpy() for name, p in network.named_parameters()}, config)


def their_outputs(network, batch):
    import torch

    inputs = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    inputs["attention_mask"] = (batch["sequence_ids"] > 0).astype(np.int32)
    return network(**{k: torch.from_numpy(x).long() for k, x in inputs.items()}, output_hidden_states=True)
