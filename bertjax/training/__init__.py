"""Floor 5: objectives, optimizer, the train step, checkpoints, telemetry, and the loop over them."""
