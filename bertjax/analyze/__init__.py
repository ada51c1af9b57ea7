"""Floor 6: what a trained model says."""
