"""From the token store to batches: batch k is a pure function of (data, config, seed, k)."""
