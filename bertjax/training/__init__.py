"""Pretraining: objectives, optimizer, step, checkpoints, evaluation, the loop."""
