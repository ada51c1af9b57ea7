"""Inspection of a token store: counts, lengths, duplicates, overlap with evaluation text."""
