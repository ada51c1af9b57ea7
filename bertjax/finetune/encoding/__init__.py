"""Examples as rows of tokens, and the answers that a network's outputs for rows give."""
