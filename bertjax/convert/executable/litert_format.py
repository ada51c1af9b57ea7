"""LiteRT (TensorFlow Lite): a folder with `model.tflite`, which phones execute, and the tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bertjax.convert.executable.runtime import PRECISIONS, Arrays, Precision, Run, Runtime
from bertjax.convert.executable.savedmodel_format import SIGNATURE, VERSION, write_savedmodel
from bertjax.convert.formats import Vectors
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.lean_import import import_tensorflow

MODEL_FILE = "model.tflite"


def write_litert(model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision) -> Path:
    """Write the signature of `write_savedmodel`, and return the file.

    int8: weights have 8 bits with one scale per output, and activations are rounded to 8 bits at run time (dynamic
    range quantisation). float16: only the weights.
    """
    tf = import_tensorflow(required=True)
    with tempfile.TemporaryDirectory() as temporary:
        write_savedmodel(model, Path(temporary), vectors)
        converter = tf.lite.TFLiteConverter.from_saved_model(f"{temporary}/{VERSION}", signature_keys=[SIGNATURE])
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        (folder / MODEL_FILE).write_bytes(converter.convert())
    return folder / MODEL_FILE


def load(folder: Path) -> Run:
    """Load the signature of a folder."""
    from ai_edge_litert.interpreter import Interpreter  # pyright: ignore[reportMissingImports]

    interpreter = Interpreter(str(folder / MODEL_FILE))

    def run(inputs: Arrays) -> Arrays:
        return interpreter.get_signature_runner()(**{name: x.astype(np.int32) for name, x in inputs.items()})

    return run


RUNTIME = Runtime(
    name="litert",
    reference="LiteRT",
    write=write_litert,
    load=load,
    library="tflite",
    weights=(MODEL_FILE,),
    imports="from ai_edge_litert.interpreter import Interpreter",
    call='outputs = Interpreter(f"{{folder}}/model.tflite").get_signature_runner()(**inputs)\n'
    "{results} = (outputs[name] for name in [{names}])",
    dtype="int32",
    precisions=PRECISIONS,
)
FORMAT = RUNTIME.format("int8")
