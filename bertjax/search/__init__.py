"""An index of vectors and words, and what is found with it."""
