"""Floor 4: the network, as Flax NNX modules whose parameters carry logical axis names."""
