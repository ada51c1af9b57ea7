"""StableHLO as a format: a folder with `model.stablehlo`, which `jax.export` writes, with its weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.convert.compare import Difference
from bertjax.convert.compare_vectors import compare_outputs
from bertjax.convert.folder import Prove, as_json, write_texts
from bertjax.convert.format import Format, Vectors
from bertjax.convert.graph.export import (
    HIDDEN,
    VECTOR,
    Layout,
    gives,
    gives_logits,
    inputs_of,
    longest,
    outputs_of,
    require_function,
    write_folder,
)
from bertjax.families.networks import abstract_network
from bertjax.families.registry import family_of
from bertjax.model.network import bind, head_of
from bertjax.model.parameters import named_arrays
from bertjax.model.pooling import pool
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath

MODEL_FILE, WEIGHTS_FILE, SIGNATURE_FILE = "model.stablehlo", "model.safetensors", "signature.json"
LAYOUT = Layout(
    library="jax",
    weights=(WEIGHTS_FILE,),
    others=(MODEL_FILE, SIGNATURE_FILE),
    imports="from jax import export\nfrom safetensors.numpy import load_file",
    call='with open(f"{{folder}}/model.stablehlo", "rb") as file:\n'
    "    function = export.deserialize(bytearray(file.read()))\n"
    'outputs = function.call(load_file(f"{{folder}}/model.safetensors"), inputs)\n'
    "{results} = (outputs[name] for name in [{names}])",
    dtype="int32",
)
_VERSION = 1  # of the folder: the function's arguments, and what `signature.json` says
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# (weights by name, inputs by name) -> outputs by name
Function = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, jax.Array]]


def export_stablehlo(
    model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None
) -> AnyPath:
    """Write the function and its weights, and return the folder; the same model gives the same bytes.

    The function takes the weights by our names and the inputs of `inputs_of`, int32, and returns the outputs of
    `outputs_of`. Batch and length are symbols; it runs on every platform of jax. `signature.json` says which version of
    the folder, of jax's calling convention and of StableHLO it has. The folder is as `write_folder` says.
    """
    require_function(model, vectors, "stablehlo")

    def write(folder: Path) -> Path:
        exported = exported_function(model, vectors)
        (folder / MODEL_FILE).write_bytes(exported.serialize())
        arrays = {name: np.asarray(x) for name, x in jax.device_get(_weights(model, vectors)).items()}
        save_file(arrays, folder / WEIGHTS_FILE)
        (folder / WEIGHTS_FILE).chmod((folder / MODEL_FILE).stat().st_mode)
        write_texts(folder, {SIGNATURE_FILE: as_json(_signature(model, vectors, exported))})
        return folder / WEIGHTS_FILE

    return write_folder(model, directory, vectors, LAYOUT, write, prove)


def exported_function(model: TrainedModel, vectors: Vectors) -> jax.export.Exported:
    """The network as a `Function` for any batch and length. Products are float32, also where a device has faster."""
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in _weights(model, vectors).items()}
    names, most = inputs_of(model.config.model), longest(model.config.model)
    bounds = [f"length <= {most}"] if most else []
    rows = jax.export.symbolic_args_specs(
        {name: jax.ShapeDtypeStruct((1, 1), jnp.int32) for name in names}, "batch, length", constraints=bounds
    )
    function = _function(model, vectors)
    # Paths of this machine and line numbers are no part of a model.
    with jax.default_matmul_precision("highest"), _without_locations():
        return jax.export.export(jax.jit(function), platforms=_PLATFORMS)(shapes, rows)


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
    """The parameters that the outputs depend on: of vectors, those of no head."""
    named = named_arrays(model.params)
    if gives_logits(model, vectors.pooling):
        return named
    read = ("encoder/", "pooler/") if vectors.pooling == "pooler" else ("encoder/",)
    return {name: x for name, x in named.items() if name.startswith(read)}


def _function(model: TrainedModel, vectors: Vectors) -> Function:
    config = model.config.model
    graphdef, shapes, _ = abstract_network(config)
    treedef, named = jax.tree.structure(shapes), named_arrays(shapes)
    headed = gives_logits(model, vectors.pooling)
    known = family_of(config.family).huggingface
    # Positions of packed sequences are counted from their first token, wherever the padding is.
    packed = known is not None and known.positions_from_padding

    def computed(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        # Parameters that are no weights of the function are in the network, but not read.
        leaves = [weights[name] if name in weights else jnp.zeros(leaf.shape) for name, leaf in named.items()]
        bert = bind(graphdef, jax.tree.unflatten(treedef, leaves))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        types = inputs.get("token_type_ids", jnp.zeros_like(ids))
        hidden = bert.encode(ids, types, mask, packed=packed)
        if headed:
            logits, outputs = bert.row_logits(hidden, mask), head_of(config).outputs
            return {name: logits[..., n] if len(outputs) > 1 else logits for n, name in enumerate(outputs)}
        found = {HIDDEN: hidden}
        if vectors.pooling != "none":
            vector = pool(bert, hidden, mask > 0, vectors.pooling)
            found[VECTOR] = vector / jnp.linalg.norm(vector, axis=-1, keepdims=True) if vectors.normalize else vector
        return found

    return computed


def _signature(model: TrainedModel, vectors: Vectors, exported: jax.export.Exported) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "bertjax": bertjax.__version__,
        "jax": jax.__version__,
        "calling_convention_version": exported.calling_convention_version,
        "platforms": list(exported.platforms),
        "inputs": {name: {"dtype": "int32", "shape": ["batch", "length"]} for name in inputs_of(model.config.model)},
        "outputs": list(outputs_of(model, vectors)),
        "longest": longest(model.config.model) or None,
    }


def loaded(folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The function of a folder with its weights: outputs of inputs, by name.

    Raises ValueError for a folder of another version.
    """
    version = json.loads((folder / SIGNATURE_FILE).read_text(encoding="utf-8")).get("version")
    if version != _VERSION:
        raise ValueError(f"{folder / SIGNATURE_FILE}: version {version!r}, not {_VERSION}; export the model again")
    exported = jax.export.deserialize(bytearray((folder / MODEL_FILE).read_bytes()))
    weights = load_file(folder / WEIGHTS_FILE)

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return jax.device_get(exported.call(weights, {name: x.astype(np.int32) for name, x in inputs.items()}))

    return run


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_outputs(model, vectors, f"{folder}: jax.export", loaded(folder))


FORMAT = Format(
    reference="jax.export",
    compare=_compare,
    export=export_stablehlo,
    pooling="none",
    gives=gives,
)
