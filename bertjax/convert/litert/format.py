"""LiteRT as a format: a folder with `model.tflite`, which phones execute, and the tokenizer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from bertjax.convert.compare import Difference
from bertjax.convert.compare_vectors import LIMITS, compare_outputs
from bertjax.convert.folder import Prove
from bertjax.convert.format import Format, Vectors
from bertjax.convert.graph.export import Layout, gives, require_graph, write_folder
from bertjax.convert.onnx.exporter import Precision
from bertjax.convert.savedmodel.format import SIGNATURE, VERSION, write_savedmodel
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.lean_import import import_tensorflow
from bertjax.storage.remote import AnyPath

MODEL_FILE = "model.tflite"
LAYOUT = Layout(
    library="tflite",
    weights=(MODEL_FILE,),
    imports="from ai_edge_litert.interpreter import Interpreter",
    call='outputs = Interpreter(f"{{folder}}/model.tflite").get_signature_runner()(**inputs)\n'
    "{results} = (outputs[name] for name in [{names}])",
    dtype="int32",
)


def export_litert(
    model: TrainedModel,
    directory: str | AnyPath,
    vectors: Vectors,
    precision: Precision,
    prove: Prove | None = None,
) -> AnyPath:
    """Write the model, and return the folder.

    The one signature is that of `export_savedmodel`; batch and length may be any. int8: weights have 8 bits with a
    scale for each output, and what they are multiplied with is rounded to 8 bits as it comes (dynamic range
    quantisation).
    float16: weights alone. The folder is as `write_folder` says.
    """
    require_graph(model, vectors, "litert")

    def write(folder: Path) -> Path:
        (folder / MODEL_FILE).write_bytes(_converted(model, vectors, precision))
        return folder / MODEL_FILE

    return write_folder(model, directory, vectors, LAYOUT, write, prove)


def _converted(model: TrainedModel, vectors: Vectors, precision: Precision) -> bytes:
    tf = import_tensorflow(required=True)
    with tempfile.TemporaryDirectory() as folder:
        write_savedmodel(model, Path(folder) / VERSION, vectors)
        converter = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/{VERSION}", signature_keys=[SIGNATURE])
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert()


def loaded(folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The signature of a folder: outputs of inputs, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / MODEL_FILE))

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return interpreter.get_signature_runner()(**{name: x.astype(np.int32) for name, x in inputs.items()})

    return run


def _format(precision: Precision) -> Format:
    """The format with weights of this precision."""

    def compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
        return compare_outputs(model, vectors, f"{folder}: LiteRT", loaded(folder), limit=LIMITS[precision])

    def export(model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None) -> AnyPath:
        return export_litert(model, directory, vectors, precision, prove)

    return Format(
        reference="LiteRT",
        compare=compare,
        export=export,
        pooling="none",
        gives=gives,
        precisions={name: lambda name=name: _format(name) for name in ("float32", "float16", "int8")},
    )


FORMAT = _format("int8")
