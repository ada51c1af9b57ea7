"""The mesh of devices, and the rules that lay arrays out on it."""
