"""Which model made a vector: a fingerprint of all that decides it."""

from __future__ import annotations

import hashlib
import json

import jax

from bertjax.model.pooling import Pooling
from bertjax.training.digest import digest_arrays
from bertjax.training.run_directory import TrainedModel

_FORWARD = ("num_attention_heads", "hidden_act", "layer_norm_eps", "position_embedding", "causal")


def model_fingerprint(model: TrainedModel, pooling: Pooling) -> str:
    """SHA-256 (hex) over the encoder's weights, the pooler's if it is used, the vocabulary and what no weight shows."""
    used = {"encoder": model.params["encoder"]} | ({"pooler": model.params["pooler"]} if pooling == "pooler" else {})
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(used)}
    content = {
        "weights": {name: digest.hex for name, digest in digest_arrays(named).items()},
        "tokenizer": model.tokenizer.fingerprint,
        "network": {name: getattr(model.config.model, name) for name in _FORWARD},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
