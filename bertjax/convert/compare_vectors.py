"""Proof of an exported encoder: vectors of the same texts by ours and by what others make of the folder, compared."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.convert.compare import INPUTS, LIMIT, LOGITS, PAIRS, Difference, our_outputs, pair_batch, within_limit
from bertjax.convert.format import Vectors
from bertjax.convert.graph.export import HIDDEN, VECTOR, gives_logits, inputs_of
from bertjax.convert.onnx.exporter import loaded
from bertjax.convert.sentence_transformers.exporter import MODULES_FILE
from bertjax.families.networks import abstract_network
from bertjax.model.network import Params, bind, head_of
from bertjax.model.pooling import Pooling, pool, token_vectors
from bertjax.run.run_directory import TrainedModel

_STATES, _VECTORS = "hidden states", "vectors"
Rows = Mapping[str, np.ndarray]  # inputs or outputs by name
# Of the relative difference, by the precision of weights. Vectors without anything in common are 1.4 apart.
LIMITS = {"float32": LIMIT, "float16": 1e-2, "int8": 0.3}


def compare_with_onnxruntime(
    model: TrainedModel,
    directory: str | Path,
    pooling: Pooling,
    normalize: bool,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    limit: float = LIMIT,
) -> Difference | None:
    """`compare_outputs` with those of onnxruntime from a folder's file; None where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    run = loaded(Path(directory))
    return compare_outputs(model, Vectors(pooling, normalize), f"{directory}: onnxruntime", run, pairs, limit)


def compare_outputs(
    model: TrainedModel,
    vectors: Vectors,
    who: str,
    run: Callable[[Rows], Rows],
    pairs: Sequence[tuple[str, str]] = PAIRS,
    limit: float = LIMIT,
) -> Difference:
    """Compare our float32 outputs with those of an export, which `run` makes of the inputs of `inputs_of`.

    A padded batch of pairs of texts, and the first pair alone. Raises RuntimeError if they differ by more than the
    limit.
    """
    batch = pair_batch(model, pairs)
    alone = {name: x[:1, : int(batch["attention_mask"][0].sum())] for name, x in batch.items()}
    found: dict[str, float] = {}
    for rows in (batch, alone):
        theirs = run({name: rows[name] for name in inputs_of(model.config.model)})
        if gives_logits(model, vectors.pooling):
            ends = [theirs[name] for name in head_of(model.config.model).outputs]
            theirs = {LOGITS: ends[0] if len(ends) == 1 else np.stack(ends, axis=-1)}
            ours = our_outputs(model, rows)
        else:
            names = {_STATES: HIDDEN} | ({_VECTORS: VECTOR} if vectors.pooling != "none" else {})
            theirs = {name: theirs[output] for name, output in names.items()}
            ours = _our_vectors(model, rows, vectors.pooling, vectors.normalize)
        difference = within_limit(ours, theirs, rows["attention_mask"] == 1, who, limit)
        found = {name: max(value, found.get(name, 0)) for name, value in difference.of.items()}
    return Difference(found)


def compare_with_sentence_transformers(
    model: TrainedModel, directory: str | Path, pooling: Pooling, normalize: bool
) -> Difference | None:
    """Compare our float32 vectors with those of a folder's model; None without torch and transformers.

    transformers' forward is pooled as the folder's own files say, which is what sentence-transformers does. Raises
    RuntimeError if token ids or vectors differ.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        return None
    from transformers import AutoModel, AutoTokenizer

    texts = [text for pair in PAIRS for text in pair]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    for row, ids in zip(inputs["input_ids"].tolist(), model.tokenizer.encode_sentences(texts), strict=True):
        kept = [model.tokenizer.cls_id, *ids.tolist()[: model.max_length - 2], model.tokenizer.sep_id]
        if row[: len(kept)] != kept:
            raise RuntimeError(f"{directory}: its tokenizer encodes a text as {row}, ours as {kept}")
    theirs = _by_the_modules(Path(directory), AutoModel.from_pretrained(directory).float().eval(), inputs)
    # A family without token types has no such input.
    batch = {name: inputs[name].numpy() if name in inputs else np.zeros_like(inputs["input_ids"]) for name in INPUTS}
    ours = _our_vectors(model, batch, pooling, normalize)
    return within_limit(ours, {_VECTORS: theirs}, batch["attention_mask"] == 1, f"{directory}: transformers")


def _our_vectors(
    model: TrainedModel, batch: dict[str, np.ndarray], pooling: Pooling, normalize: bool
) -> dict[str, np.ndarray]:
    graphdef = abstract_network(model.config.model)[0]
    ids, types, mask = (jnp.asarray(batch[name], jnp.int32) for name in INPUTS)

    @jax.jit
    def outputs(params: Params) -> tuple[jax.Array, jax.Array]:
        bert = bind(graphdef, params)
        hidden = token_vectors(bert, ids, types, mask, "last")
        return hidden, pool(bert, hidden, mask > 0, pooling)

    with jax.default_matmul_precision("highest"):
        hidden, vectors = jax.device_get(outputs(model.params))
    if normalize:
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return {_STATES: hidden, _VECTORS: vectors}


def _by_the_modules(folder: Path, network: Any, inputs: Any) -> np.ndarray:
    """Vectors by transformers' network and torch, following `modules.json`."""
    import torch
    from safetensors.torch import load_file

    with torch.no_grad():
        hidden = network(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None].bool()
        for module in json.loads((folder / MODULES_FILE).read_text())[1:]:
            module_folder = folder / module["path"]
            kind = module["type"].rpartition(".")[2]
            if kind == "Pooling":
                settings = json.loads((module_folder / "config.json").read_text())
                means = (hidden * real).sum(1) / real.sum(1)
                of = {"cls_token": hidden[:, 0], "mean_tokens": means}
                of["max_tokens"] = hidden.masked_fill(~real, -torch.inf).amax(1)
                x = torch.cat([vector for mode, vector in of.items() if settings[f"pooling_mode_{mode}"]], dim=1)
            elif kind == "Dense":
                linear = load_file(module_folder / "model.safetensors")
                x = torch.tanh(torch.nn.functional.linear(x, linear["linear.weight"], linear["linear.bias"]))
            else:
                x = torch.nn.functional.normalize(x)
    return x.numpy()
