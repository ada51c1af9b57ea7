"""ONNX: the encoder as a graph that onnxruntime executes."""
