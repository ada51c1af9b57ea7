"""The graph of executable exports equals the NumPy reference with every option of the architecture."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_encoder import Reference
from test_options import LENGTH, OPTIONS, ROUNDING, draw_params, rows, with_options
from their_model import relative

from bertjax.convert.executable import onnx_format
from bertjax.convert.executable.network import NetworkGraph
from bertjax.model.parameters import named_arrays


@pytest.mark.parametrize("option", OPTIONS)
def test_graph_in_onnxruntime_matches_reference(option: str) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    config = with_options(option)
    params, batch = draw_params(config), rows([[LENGTH], [17], [1]])
    graph = NetworkGraph(config, named_arrays(params), pad_id=0)
    graph.output(graph.hidden, "hidden", "batch", "length", config.hidden_size)
    session = onnxruntime.InferenceSession(onnx_format._proto(graph).SerializeToString())
    real = batch["sequence_ids"] > 0
    inputs = batch | {"attention_mask": real}
    (hidden,) = session.run(None, {name: inputs[name].astype(np.int64) for name in graph.inputs})
    reference = Reference(config, params)
    for row, tokens in enumerate(real):
        states, _ = reference(batch["input_ids"][row, tokens], batch["token_type_ids"][row, tokens])
        assert relative(hidden[row, tokens], states[-1]) < ROUNDING
