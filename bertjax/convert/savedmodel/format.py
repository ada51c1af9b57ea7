"""SavedModel as a format: a folder that TensorFlow Serving takes as a model, with the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.convert.compare import Difference
from bertjax.convert.compare_vectors import compare_outputs
from bertjax.convert.folder import Prove
from bertjax.convert.format import Format, Vectors
from bertjax.convert.graph.export import (
    Layout,
    add_network,
    arrays_of,
    gives,
    inputs_of,
    outputs_of,
    require_graph,
    write_folder,
)
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.lean_import import import_tensorflow
from bertjax.storage.remote import AnyPath

SIGNATURE = "serving_default"  # that TensorFlow Serving uses
VERSION = "1"  # a model's folder has one for each version that is served
_VARIABLES = f"{VERSION}/variables/variables"
_WEIGHTS_FILE = f"{_VARIABLES}.data-00000-of-00001"
LAYOUT = Layout(
    library="tensorflow",
    weights=(_WEIGHTS_FILE,),
    others=(f"{VERSION}/saved_model.pb", f"{VERSION}/fingerprint.pb", f"{_VARIABLES}.index"),
    imports="import tensorflow as tf",
    call='model = tf.saved_model.load(f"{{folder}}/1")\n'
    'outputs = model.signatures["serving_default"](**{{name: tf.constant(x) for name, x in inputs.items()}})\n'
    "{results} = (outputs[name].numpy() for name in [{names}])",
    dtype="int32",
)


def export_savedmodel(
    model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None
) -> AnyPath:
    """Write the model, and return the folder.

    The signature takes the inputs of `inputs_of`, int32, for any batch and length, and returns the outputs of
    `outputs_of`. The operators are TensorFlow's own, for any device. The folder is as `write_folder` says.
    """
    require_graph(model, vectors, "savedmodel")

    def write(folder: Path) -> Path:
        write_savedmodel(model, folder / VERSION, vectors)
        return folder / _WEIGHTS_FILE

    return write_folder(model, directory, vectors, LAYOUT, write, prove)


def write_savedmodel(model: TrainedModel, folder: Path, vectors: Vectors) -> None:
    """Write the network as one SavedModel."""
    tf = import_tensorflow(required=True)
    from bertjax.convert.savedmodel.graph import TensorflowGraph

    module, arrays = tf.Module(), arrays_of(model)
    names = inputs_of(model.config.model)

    def serve(**inputs: Any) -> dict[str, Any]:
        graph = TensorflowGraph(inputs, weights)
        add_network(graph, arrays, model, vectors)
        return graph.outputs

    weights: dict[str, Any] = {}
    serve(**{name: tf.ones((1, 2), tf.int32) for name in names})
    module.weights = weights  # what a module tracks is a copy of the dict
    specs = {name: tf.TensorSpec((None, None), tf.int32, name=name) for name in names}
    served = tf.function(serve, autograph=False).get_concrete_function(**specs)
    assert {*served.structured_outputs} == {*outputs_of(model, vectors)}
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: served})


def loaded(folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The signature of a folder: outputs of inputs, by name."""
    tf = import_tensorflow(required=True)
    model = tf.saved_model.load(str(folder / VERSION))

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = model.signatures[SIGNATURE](**{name: tf.constant(x, tf.int32) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in made.items()}

    return run


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_outputs(model, vectors, f"{folder}: TensorFlow", loaded(folder))


FORMAT = Format(
    reference="TensorFlow",
    compare=_compare,
    export=export_savedmodel,
    pooling="none",
    gives=gives,
)
