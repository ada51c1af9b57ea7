"""Masking for masked language modelling: which tokens of a row are masked (unit and count), and their replacement."""
