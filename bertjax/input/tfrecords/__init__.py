"""Records made for google-research/bert, read as they are."""
