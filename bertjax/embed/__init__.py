"""Floor 7: text to numbers: vectors of texts and of their tokens, from files to files."""
