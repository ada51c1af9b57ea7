"""LiteRT (TensorFlow Lite): the network in one file for phones."""
