"""The NumPy half of each training objective: what it adds to a batch. One file and one line of the registry each."""
