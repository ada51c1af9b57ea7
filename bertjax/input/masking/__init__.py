"""Masked language modelling: which tokens of a row are hidden (unit and count), and what is shown there instead."""
