"""Text to token ids and back: the kinds of tokenizer, and how each of them is trained."""
