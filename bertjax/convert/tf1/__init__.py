"""google-research/bert's TensorFlow 1 checkpoints in both directions."""
