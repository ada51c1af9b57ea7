"""StableHLO: the network as `jax.export` writes it, for any batch and length."""
