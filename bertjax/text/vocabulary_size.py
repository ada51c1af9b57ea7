"""How many entries the vocabulary of a recipe has, for what makes no text of it."""

from __future__ import annotations

from bertjax.config import DataConfig
from bertjax.text.remote import place_of
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization.tokenizer import TextRules


def vocabulary_size(data: DataConfig) -> tuple[int, str]:
    """The number of entries, from the file of `data.vocab` if that can be read, and where it is from."""
    reason = ""
    if data.vocab:
        try:
            size = load_vocabulary(place_of(data.vocab), TextRules.of(data)).vocab_size
            return size, f"vocabulary of {size:,} entries, as {data.vocab} has them"
        except (ValueError, OSError, ImportError) as error:
            reason = f" ({str(error).splitlines()[0]})"
    return data.vocab_size, f"vocabulary of {data.vocab_size:,} entries, as data.vocab_size says{reason}"
