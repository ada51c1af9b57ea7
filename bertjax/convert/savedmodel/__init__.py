"""SavedModel: the network as TensorFlow Serving runs it."""
