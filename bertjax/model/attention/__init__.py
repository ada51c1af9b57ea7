"""Attention: the layer, the back ends that compute it, and which one is chosen."""
