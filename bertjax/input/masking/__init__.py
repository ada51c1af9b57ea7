"""Masked language modelling: which tokens of a row are masked (unit and count), and what replaces them."""
