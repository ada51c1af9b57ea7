"""Augmentations of records, drawn anew in every epoch: another spelling with the same meaning."""
