"""A network as a graph of ONNX's operators, which ONNX writes down and TensorFlow traces."""
