"""ONNX: a folder with `model.onnx`, in float32 or fewer bits, which onnxruntime executes."""

from __future__ import annotations

import tempfile
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bertjax
from bertjax.convert.executable.graph import Graph
from bertjax.convert.executable.runtime import PRECISIONS, Arrays, Precision, Run, Runtime, network_graph
from bertjax.convert.formats import Vectors
from bertjax.run.run_directory import TrainedModel

if TYPE_CHECKING:
    import onnx

MODEL_FILE, DATA_FILE = "model.onnx", "model.onnx.data"
_OPSET = 17  # the first with LayerNormalization; onnxruntime has it since 1.12
_IR_VERSION = 8  # from the release of that opset
# A protobuf message ends at 2 GiB; weights of a larger model are in a file next to it.
_LARGEST_MESSAGE = (2 << 30) - (16 << 20)


def write_onnx(model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision) -> Path:
    """Write the graph, checked by onnx; returns the file that holds the weights."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ModuleNotFoundError("ONNX needs its package: pip install 'bertjax[onnx]'") from None
    proto = _proto(network_graph(model, vectors))
    size = sum(len(weight.raw_data) for weight in proto.graph.initializer)
    large = size > _LARGEST_MESSAGE
    if large and precision != "float32":
        raise ValueError(
            f"--precision {precision}: weights of {size:,} bytes are too large for onnxruntime's converters"
        )
    proto = lowered(proto, precision)
    path = folder / MODEL_FILE
    onnx.save_model(proto, path, save_as_external_data=large, location=DATA_FILE if large else None)
    onnx.checker.check_model(str(path), full_check=True)
    return folder / DATA_FILE if large else path


def load(folder: Path) -> Run:
    """Load the graph of a folder with onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / MODEL_FILE, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))

    return run


def _proto(graph: Graph) -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    dtypes = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "integer": TensorProto.INT64}
    nodes = []
    for kind, inputs, output, attributes in graph.nodes:
        onnx_attributes: dict[str, Any] = {"to": dtypes[attributes["to"]]} if kind == "Cast" else attributes
        nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **onnx_attributes))
    inputs = [helper.make_tensor_value_info(x, TensorProto.INT64, ("batch", "length")) for x in graph.inputs]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x, shape in graph.outputs.items()]
    constants = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    return helper.make_model(
        helper.make_graph(nodes, "bert", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="bertjax",
        producer_version=bertjax.__version__,
    )


def lowered(model: onnx.ModelProto, precision: Precision) -> onnx.ModelProto:
    """Convert a network to another precision; inputs and outputs stay the same.

    float16: weights and arithmetic, except the angles of positions and the roots of mean squares. int8: matrix products
    and the tables of the embeddings have weights of 7 bits with a scale for each column (a table: one scale), and the
    other factor is rounded to 8 bits at run time (onnxruntime's dynamic quantisation). An eighth bit would overflow the
    sums of x86 processors without VNNI.

    Raises ModuleNotFoundError if onnxruntime, which has both conversions, is not installed.
    """
    if precision == "float32":
        return model
    try:
        import onnxruntime  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"--precision {precision} needs onnxruntime: pip install 'bertjax[onnx]'") from None
    return _in_float16(model) if precision == "float16" else _in_int8(model)


def _in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    result = convert_float_to_float16(model, keep_io_types=True, node_block_list=_beyond_float16(model))
    nodes = list(result.graph.node)
    makers = {name: node for node in nodes for name in node.output}
    # The converter rounds values between two nodes in float32; connect them directly.
    for node in nodes:
        for index, name in enumerate(node.input):
            if _casts(makers.get(name), "FLOAT") and _casts(makers.get(makers[name].input[0]), "FLOAT16"):
                node.input[index] = makers[makers[name].input[0]].input[0]
    # The converter appends casts at the end, but a graph must be in topological order; unused nodes are dropped.
    numbers = {name: number for number, node in enumerate(nodes) for name in node.output}
    needs: dict[int, list[int]] = {}
    waiting = [numbers[output.name] for output in result.graph.output]
    while waiting:
        if (number := waiting.pop()) not in needs:
            needs[number] = [numbers[name] for name in nodes[number].input if name in numbers]
            waiting += needs[number]
    del result.graph.node[:]
    result.graph.node.extend(nodes[number] for number in TopologicalSorter(needs).static_order())
    return result


def _casts(node: onnx.NodeProto | None, dtype: str) -> bool:
    import onnx

    if node is None or node.op_type != "Cast":
        return False
    return node.attribute[0].i == onnx.TensorProto.DataType.Value(dtype)


def _beyond_float16(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes that stay in float32.

    Near 8,000 float16 has only every fourth integer, too few for angles of positions; the square of 256 is infinite.
    """
    makers = {name: node for node in model.graph.node for name in node.output}

    def with_makers(node: onnx.NodeProto, depth: int) -> set[str]:
        before = [makers[name] for name in node.input if depth > 1 and name in makers]
        return {node.name}.union(*(with_makers(maker, depth - 1) for maker in before))

    groups = [with_makers(node, _DEPTHS[node.op_type]) for node in model.graph.node if node.op_type in _DEPTHS]
    return sorted(set().union(*groups))


# Length of the chain of nodes to keep in float32: cast, product and angle; square, mean, sum and root.
_DEPTHS = {"Cos": 3, "Sin": 3, "Sqrt": 4}


def _in_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Without this property onnxruntime warns about missing preprocessing; this graph has nothing to fuse or infer.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        result = onnx.load(path)
    del result.metadata_props[:]
    return result


RUNTIME = Runtime(
    name="onnx",
    reference="onnxruntime",
    write=write_onnx,
    load=load,
    library="onnx",
    weights=(DATA_FILE, MODEL_FILE),
    package="onnxruntime",
    imports="import onnxruntime",
    call='session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx")\n{results} = session.run([{names}], inputs)',
    precisions=PRECISIONS,
)
FORMAT = RUNTIME.format()
