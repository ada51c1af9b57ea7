"""StableHLO: a folder with the network as `jax.export` writes it, for any batch and length, and its weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.convert.executable.network import input_names
from bertjax.convert.executable.runtime import (
    HIDDEN,
    VECTOR,
    Arrays,
    Precision,
    Run,
    Runtime,
    gives_logits,
    longest,
    output_names,
)
from bertjax.convert.folder import as_json, write_texts
from bertjax.convert.formats import Vectors
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.model.network import bind, network_class
from bertjax.model.parameters import named_arrays
from bertjax.model.pooling import pool
from bertjax.run.run_directory import TrainedModel

MODEL_FILE, WEIGHTS_FILE, SIGNATURE_FILE = "model.stablehlo", "model.safetensors", "signature.json"
_VERSION = 1  # of the folder: the function's arguments, and the content of `signature.json`
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# (weights by name, inputs by name) -> outputs by name
Function = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, jax.Array]]


def write_stablehlo(model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision) -> Path:
    """Write the function, its weights and `signature.json`, reproducibly; returns the path of the weights.

    The function takes the weights by our names and int32 inputs. Batch and length are symbols; it runs on every
    platform of jax. `signature.json` has the versions of the folder, of jax's calling convention and of StableHLO.
    """
    exported, config = exported_function(model, vectors), model.config.model
    (folder / MODEL_FILE).write_bytes(exported.serialize())
    save_file({name: np.asarray(x) for name, x in _weights(model, vectors).items()}, folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod((folder / MODEL_FILE).stat().st_mode)
    signature = {
        "version": _VERSION,
        "bertjax": bertjax.__version__,
        "jax": jax.__version__,
        "calling_convention_version": exported.calling_convention_version,
        "platforms": list(exported.platforms),
        "inputs": {name: {"dtype": "int32", "shape": ["batch", "length"]} for name in input_names(config)},
        "outputs": list(output_names(model, vectors)),
        "longest": longest(config) or None,
    }
    write_texts(folder, {SIGNATURE_FILE: as_json(signature)})
    return folder / WEIGHTS_FILE


def exported_function(model: TrainedModel, vectors: Vectors) -> jax.export.Exported:
    """The network as a `Function` for any batch and length. Products are float32 even on devices with a faster mode."""
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in _weights(model, vectors).items()}
    names, most = input_names(model.config.model), longest(model.config.model)
    rows = jax.export.symbolic_args_specs(
        {name: jax.ShapeDtypeStruct((1, 1), jnp.int32) for name in names},
        "batch, length",
        constraints=[f"length <= {most}"] if most else [],
    )
    # Local paths and line numbers do not belong in a model.
    with jax.default_matmul_precision("highest"), _without_locations():
        return jax.export.export(jax.jit(_function(model, vectors)), platforms=_PLATFORMS)(shapes, rows)


@contextlib.contextmanager
def _without_locations() -> Iterator[None]:
    """Lower without the source locations of operations."""
    setting = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, setting)
    jax.config.update(setting, 0)
    try:
        yield
    finally:
        jax.config.update(setting, before)


def _weights(model: TrainedModel, vectors: Vectors) -> dict[str, jax.Array]:
    """The parameters that the outputs depend on: vectors need no head."""
    arrays = named_arrays(model.params)
    if gives_logits(model, vectors):
        return arrays
    prefixes = ("encoder/", "pooler/") if vectors.pooling == "pooler" else ("encoder/",)
    return {name: x for name, x in arrays.items() if name.startswith(prefixes)}


def _function(model: TrainedModel, vectors: Vectors) -> Function:
    config = model.config.model
    graphdef, shapes, _ = abstract_network(config)
    treedef, shapes_by_name = jax.tree.structure(shapes), named_arrays(shapes)
    has_logits, outputs = gives_logits(model, vectors), network_class(config).outputs
    hf = get_family(config.family).huggingface
    # Positions of packed sequences are counted from their first token, wherever the padding is.
    packed = hf is not None and hf.positions_from_padding

    def function(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        # The network needs all parameters, but reads only those in `weights`.
        leaves = [weights[name] if name in weights else jnp.zeros(leaf.shape) for name, leaf in shapes_by_name.items()]
        bert = bind(graphdef, jax.tree.unflatten(treedef, leaves))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        types = inputs.get("token_type_ids", jnp.zeros_like(ids))
        hidden = bert.encode(ids, types, mask, packed=packed)
        if has_logits:
            logits = bert.row_logits(hidden, mask)
            return {name: logits[..., n] if len(outputs) > 1 else logits for n, name in enumerate(outputs)}
        if vectors.pooling == "none":
            return {HIDDEN: hidden}
        vector = pool(bert, hidden, mask > 0, vectors.pooling)
        if vectors.normalize:
            vector /= jnp.linalg.norm(vector, axis=-1, keepdims=True)
        return {HIDDEN: hidden, VECTOR: vector}

    return function


def load(folder: Path) -> Run:
    """Load the function of a folder with its weights. Raises ValueError for a folder of another version."""
    version = json.loads((folder / SIGNATURE_FILE).read_text(encoding="utf-8")).get("version")
    if version != _VERSION:
        raise ValueError(f"{folder / SIGNATURE_FILE}: version {version!r}, not {_VERSION}; export the model again")
    exported = jax.export.deserialize(bytearray((folder / MODEL_FILE).read_bytes()))
    weights = load_file(folder / WEIGHTS_FILE)

    def run(inputs: Arrays) -> Arrays:
        return jax.device_get(exported.call(weights, {name: x.astype(np.int32) for name, x in inputs.items()}))

    return run


RUNTIME = Runtime(
    name="stablehlo",
    reference="jax.export",
    write=write_stablehlo,
    load=load,
    library="jax",
    weights=(WEIGHTS_FILE,),
    others=(MODEL_FILE, SIGNATURE_FILE),
    imports="from jax import export\nfrom safetensors.numpy import load_file",
    call='with open(f"{{folder}}/model.stablehlo", "rb") as file:\n'
    "    function = export.deserialize(bytearray(file.read()))\n"
    'outputs = function.call(load_file(f"{{folder}}/model.safetensors"), inputs)\n'
    "{results} = (outputs[name] for name in [{names}])",
    dtype="int32",
    takes_graph=False,
)
FORMAT = RUNTIME.format()
