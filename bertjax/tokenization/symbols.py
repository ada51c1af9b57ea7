"""Tokenizers of sequences that are not prose: a table of symbols, and a pattern that splits text into symbols.

White space in a sequence is dropped. A symbol outside the table is [UNK].
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from bertjax.tokenization import artefact
from bertjax.tokenization.bpe_training import Merger
from bertjax.tokenization.loading import make_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer, with_roles
from bertjax.tokenization.tokenizer_kind import TokenizerKind

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ESM_TOKENS = {"cls": "<cls>", "pad": "<pad>", "sep": "<eos>", "unk": "<unk>", "mask": "<mask>"}
# Name -> (tokens in order of their ids, special token of each role)
ALPHABETS: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "esm2": (("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"), _ESM_TOKENS),
    "dna": ((*SPECIAL_TOKENS.values(), *"ACGTN"), SPECIAL_TOKENS),
    "rna": ((*SPECIAL_TOKENS.values(), *"ACGUN"), SPECIAL_TOKENS),
}


def make_symbols(
    tokens: Sequence[str],
    special: Mapping[str, str],
    pattern: str = artefact.ANY_LETTER,
    origin: str = "vocabulary of symbols",
) -> Tokenizer:
    """Make the tokenizer of a table of symbols; `special` maps roles to tokens.

    `pattern` matches the symbols in a text; the text between two matches is also a symbol.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    assert len(ids) == len(tokens), "a symbol is repeated"
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special["unk"]))
    backend.pre_tokenizer = _pre_tokenizer(pattern)
    backend.decoder = decoders.Fuse()
    return _as_tokenizer(backend, special, ids, origin)


def _pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(artefact.LETTER_SPACE), behavior="removed"),
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
        ]
    )


def _as_tokenizer(
    backend: tokenizers.Tokenizer, special: Mapping[str, str], ids: Mapping[str, int], origin: str
) -> Tokenizer:
    with_roles(backend, {role: ids[name] for role, name in special.items()})
    role_tokens = {f"{role}_token": name for role, name in special.items()}
    return make_tokenizer(backend.to_str().encode(), role_tokens, origin)


def _frequent_symbols(counts: Mapping[str, int], vocab_size: int) -> tuple[str, ...]:
    """The special tokens and the most frequent symbols, ordered by code point.

    Raises ValueError if there are no symbols, or no room for them.
    """
    room = vocab_size - len(SPECIAL_TOKENS)
    if not counts:
        raise ValueError("vocabulary: the text has no symbols to train on; is data.sources right?")
    if room < 1:
        raise ValueError(
            f"data.vocab_size={vocab_size} is too small: there are {len(SPECIAL_TOKENS)} special tokens and "
            f"{len(counts)} symbols; raise it"
        )
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[:room]
    return (*SPECIAL_TOKENS.values(), *sorted(symbols))


def _make_alphabet(argument: str) -> Tokenizer | None:
    if argument in ALPHABETS:
        return make_symbols(*ALPHABETS[argument])
    if argument.islower() and len(argument) > 1:
        raise ValueError(
            f"data.tokenizer='characters:{argument}': unknown alphabet; choose from {', '.join(ALPHABETS)}, or write "
            "its letters, as in characters:ACGTN"
        )
    if len({*argument}) != len(argument) or any(letter.isspace() for letter in argument):
        raise ValueError(f"data.tokenizer='characters:{argument}': a letter is repeated or white space; correct it")
    return make_symbols((*SPECIAL_TOKENS.values(), *argument), SPECIAL_TOKENS) if argument else None


def _count_letters(argument: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return Counter({letter: count for letter, count in counts.items() if not letter.isspace()})


CHARACTERS = TokenizerKind(
    "characters",
    _count_letters,
    lambda _, counts, size, *__: make_symbols(_frequent_symbols(counts, size), SPECIAL_TOKENS),
    _make_alphabet,
    form="characters[:ALPHABET]",
    is_prose=False,
)


_LONGEST_KMER = 8  # letters; there are 65,536 such k-mers


def _make_kmers(argument: str) -> Tokenizer:
    size, colon, stride = argument.partition(":")
    sizes = [str(number) for number in range(2, _LONGEST_KMER + 1)]
    if size not in sizes or (colon and stride not in ("1", size)):
        raise ValueError(
            f"data.tokenizer='kmers:{argument}': write kmers:K, with K from 2 to {_LONGEST_KMER}, or kmers:K:1 for "
            "overlapping k-mers"
        )
    kmers = ["".join(letters) for letters in itertools.product(artefact.NUCLEOTIDES, repeat=int(size))]
    if stride == "1":  # overlapping k-mers; the artefact expects them separated by spaces, like DNABERT's
        return _make_spaced(kmers, "vocabulary of k-mers")
    # Letters that do not fill a k-mer, at the end or next to an unknown letter, are tokens too.
    pattern = f"[{artefact.NUCLEOTIDES}]{{{size}}}|{artefact.ANY_LETTER}"
    return make_symbols((*SPECIAL_TOKENS.values(), *kmers, *artefact.NUCLEOTIDES, "N"), SPECIAL_TOKENS, pattern)


def _make_spaced(symbols: Iterable[str], origin: str) -> Tokenizer:
    """Make the tokenizer of a table of symbols that are separated by spaces."""
    ids = {token: number for number, token in enumerate((*SPECIAL_TOKENS.values(), *symbols))}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _as_tokenizer(backend, SPECIAL_TOKENS, ids, origin)


KMERS = TokenizerKind("kmers", build=_make_kmers, form="kmers:K[:1]", is_prose=False)


class NamedPattern(NamedTuple):
    """A pattern with a name that `data.tokenizer` accepts."""

    name: str
    regex: str


# Atoms in brackets, atoms of two letters, chirality and rings of two digits; any other character is a symbol.
SMILES = NamedPattern("smiles", r"\[[^\]]+\]|Br|Cl|@@|%[0-9]{2}|.")
PATTERNS = {one.name: one.regex for one in (SMILES,)}


def _pattern(argument: str) -> str:
    if not argument:
        raise ValueError(f"data.tokenizer='regex:': write a pattern, or a name: {', '.join(PATTERNS)}")
    return PATTERNS.get(argument, argument)


def _count_matches(argument: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    split = _pre_tokenizer(_pattern(argument)).pre_tokenize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(symbol for symbol, _ in split(text))
    return counts


def _check_regex(argument: str) -> None:
    """Raise ValueError for a pattern that cannot be compiled."""
    try:
        _pre_tokenizer(_pattern(argument))
    except ValueError:
        raise
    except Exception as error:  # the library raises its own class
        raise ValueError(
            f"data.tokenizer='regex:{argument}': not a valid Oniguruma pattern ({error}); correct it"
        ) from None


REGEX = TokenizerKind(
    "regex",
    _count_matches,
    lambda argument, counts, size, *_: make_symbols(
        _frequent_symbols(counts, size), SPECIAL_TOKENS, _pattern(argument)
    ),
    _check_regex,
    form="regex:PATTERN",
    is_prose=False,
)

_MOST_INTEGERS = 1 << 20


def _make_integers(argument: str) -> Tokenizer:
    size = int(argument) if argument.isdecimal() else 0
    if not 1 <= size <= _MOST_INTEGERS:
        raise ValueError(
            f"data.tokenizer='integers:{argument}': write the number of ids, from 1 to {_MOST_INTEGERS:,}, as in "
            "integers:1000"
        )
    return _make_spaced(map(str, range(size)), "vocabulary of integers")


INTEGERS = TokenizerKind("integers", build=_make_integers, form="integers:SIZE", is_prose=False)

_STRETCH = 64  # letters; merges are within stretches of this length, which also limits the length of pieces


def _count_stretches(argument: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        letters = "".join(text.split())
        counts.update(letters[at : at + _STRETCH] for at in range(0, len(letters), _STRETCH))
    return counts


def _train_sequence_bpe(
    argument: str,
    counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None],
) -> Tokenizer:
    """Train byte-pair encoding of letters without word borders, as in DNABERT-2."""
    letter_counts: Counter[str] = Counter()
    for stretch, count in counts.items():
        for letter in stretch:
            letter_counts[letter] += count
    letters = _frequent_symbols(letter_counts, vocab_size)[len(SPECIAL_TOKENS) :]
    alphabet = {*letters}
    stretches = [stretch for stretch in counts if alphabet.issuperset(stretch)]
    merger = Merger(
        list(letters),
        [list(stretch) for stretch in stretches],
        [counts[stretch] for stretch in stretches],
        continuing="",
    )
    merger.merge_all(vocab_size - len(SPECIAL_TOKENS), progress)
    tokens = (*SPECIAL_TOKENS.values(), *merger.pieces)
    ids = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(ids, merger.merges, unk_token=SPECIAL_TOKENS["unk"]))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(artefact.LETTER_SPACE), behavior="removed")
    backend.decoder = decoders.Fuse()
    return _as_tokenizer(backend, SPECIAL_TOKENS, ids, "BPE of sequences")


SEQUENCE_BPE = TokenizerKind(
    "sequence_bpe",
    _count_stretches,
    _train_sequence_bpe,
    is_prose=False,
    most_bytes=1 << 21,
    text_bytes=1 << 24,
)


def read_esm_vocabulary(tokens: Sequence[str], origin: str) -> Tokenizer:
    """Make the tokenizer of an EsmTokenizer's `vocab.txt`, in which a run of unknown letters is one [UNK].

    Raises ValueError if one of ESM's special tokens is missing, and for tokens of several letters.
    """
    if missing := [name for name in _ESM_TOKENS.values() if name not in tokens]:
        raise ValueError(f"{origin}: EsmTokenizer without {missing[0]!r} is unsupported")
    if long := [token for token in tokens if len(token) > 1 and not (token[0] == "<" and token[-1] == ">")]:
        raise ValueError(f"{origin}: EsmTokenizer with tokens of several letters, such as {long[0]!r}, is unsupported")
    letters = "".join(f"\\x{{{ord(token):X}}}" for token in tokens if len(token) == 1)
    return make_symbols(tokens, _ESM_TOKENS, f"[{letters}]|[^{letters}]+", origin)
