"""Hugging Face's layout: weights, config and tokenizer in both directions."""
