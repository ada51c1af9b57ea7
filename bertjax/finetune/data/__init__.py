"""Files of tasks: examples read from them, predictions written to them."""
