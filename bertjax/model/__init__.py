"""The networks: layers, attention, the stack, and the heads on it."""
