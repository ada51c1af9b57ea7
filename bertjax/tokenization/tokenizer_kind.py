"""The interface of vocabulary kinds: how to count text, and how to train on the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bertjax.tokenization.tokenizer import TextRules, Tokenizer


@dataclass(frozen=True)
class TokenizerKind:
    """A kind of vocabulary, `NAME[:ARGUMENT]` in `data.tokenizer`.

    To add one, define such an object in its own file and list it in the registry.
    """

    name: str
    count: Callable[[str, Iterable[str], TextRules], Counter[str]] | None = None
    """(argument, texts, rules) -> counts to train on."""
    train: Callable[[str, Mapping[str, int], int, TextRules, Callable[[int, int], None]], Tokenizer] | None = None
    """(argument, counts, vocab_size, rules, progress) -> tokenizer. The same counts give the same bytes. Raises
    ValueError if there is nothing to train on, or if `vocab_size` is too small."""
    build: Callable[[str], Tokenizer | None] = lambda argument: None
    """argument -> tokenizer, or None if it must be trained. A kind that returns a tokenizer for every argument needs
    neither `count` nor `train`. Raises ValueError for an invalid argument."""
    form: str = ""  # syntax with the argument, for messages; empty if there is none
    recomposes: bool = False  # its tokenizers compose the text again after accents are stripped, so Hangul stays whole
    is_prose: bool = True  # False: text is a sequence, and keeps its case and accents
    most_bytes: int = 1 << 24  # distinct words to train on, in bytes: limits memory to about 2 GB, and time to minutes
    text_bytes: int = 1 << 28  # of more text than this, only a share of the documents is counted
