"""Examples as rows of tokens, and answers from a network's outputs."""
