"""What a kind of vocabulary is: how text is counted for it, and how it is made of the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bertjax.tokenization.tokenizer import TextRules, Tokenizer


@dataclass(frozen=True)
class TokenizerKind:
    """A kind of vocabulary, `NAME[:ARGUMENT]` in `data.tokenizer`.

    To add one, write such an object in its own file and a line in the registry.
    """

    name: str
    count: Callable[[str, Iterable[str], TextRules], Counter[str]] | None = None
    """(argument, texts, rules) -> counts to train on."""
    train: Callable[[str, Mapping[str, int], int, TextRules, Callable[[int, int], None]], Tokenizer] | None = None
    """(argument, counts, vocab_size, rules, progress) -> the tokenizer. The same counts give the same bytes. Raises
    ValueError if there is nothing to train on, or no room for it."""
    given: Callable[[str], Tokenizer | None] = lambda argument: None
    """The tokenizer that the argument alone determines, if it does; with a result for every argument, a kind needs
    neither `count` nor `train`. Raises ValueError for a wrong argument."""
    form: str = ""  # how it is written with its argument; empty: it has none
    is_prose: bool = True  # False: text is a sequence, whose case and accents stay
    most_bytes: int = 1 << 24  # of distinct words to train on: bounds memory to about 2 GB, and time to minutes
    text_bytes: int = 1 << 28  # of text; beyond it, counts are of a share of the documents
