"""Pretraining records of google-research/bert."""
