"""Formats that a runtime executes: ONNX, a web page, StableHLO, SavedModel and LiteRT."""
