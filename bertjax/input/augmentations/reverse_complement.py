"""The `reverse_complement` augmentation: read half of the DNA or RNA texts from the other strand."""

from __future__ import annotations

import numpy as np

from bertjax.input.augmentations.augmentation import Augmentation, Change, Texts
from bertjax.input.randomness import fold_in
from bertjax.tokenization.tokenizer import Tokenizer

_LETTERS, _COMPLEMENTS = "ACGTNRYKMBDHVSW-.", "TGCANYRMKVHDBSW-."  # IUPAC's, and gaps


def prepare(tokenizer: Tokenizer) -> Change:
    """Raise ValueError if the vocabulary lacks the reverse complement of one of its tokens."""
    complements = complement_ids(tokenizer)

    def change(keys: np.ndarray, room: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> Texts:
        is_changed = np.repeat(fold_in(keys, "reverse complement") >> 63 == 1, lengths)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(tokens))
        first = (np.cumsum(lengths) - lengths)[owner]
        mirrored = 2 * first + lengths[owner] - 1 - place
        return np.where(is_changed, complements[tokens[np.where(is_changed, mirrored, 0)]], tokens), lengths

    return change


def complement_ids(tokenizer: Tokenizer) -> np.ndarray:
    """The id of each token's reverse complement, int64 [vocab_size]; special tokens map to themselves.

    Raises ValueError like `prepare`.
    """
    special = {*tokenizer.special.values()}
    texts = [surface.decode(errors="replace").upper() for surface in tokenizer.surfaces]
    numbers = {text: number for number, text in enumerate(texts) if number not in special}
    letters, complements = _LETTERS, _COMPLEMENTS
    if "U" in numbers and "T" not in numbers:
        letters, complements = letters.replace("T", "U"), complements.replace("T", "U")
    table = str.maketrans(letters, complements)
    ids = np.arange(tokenizer.vocab_size)
    for text, number in numbers.items():
        other = numbers.get(text.translate(table)[::-1])
        if other is None or not {*text} <= {*letters}:
            raise ValueError(
                f"data.augment='reverse_complement': the vocabulary lacks the reverse complement of its token "
                f"{tokenizer.tokens[number]!r}; use a nucleotide vocabulary of single letters or all k-mers, such as "
                "data.tokenizer='characters:dna' or 'kmers:6'"
            )
        ids[number] = other
    return ids


AUGMENTATION = Augmentation("reverse_complement", prepare)
