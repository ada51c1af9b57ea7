"""Attention: the layer, the backends that compute it, and the choice among them."""
