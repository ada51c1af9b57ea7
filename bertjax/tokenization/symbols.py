"""Tokenizers of sequences that are not prose, as artefacts: a table of symbols, and a pattern that cuts text into them.

White space in a sequence is left out. A symbol outside the table is [UNK].
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
# Name -> the vocabulary in order, with its special tokens.
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
    """The tokenizer of a table of symbols, with the names of the special tokens in it by role.

    `pattern` matches the symbols in a text; what lies between two matches is a symbol too.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    assert len(ids) == len(tokens), "a symbol is repeated"
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special["unk"]))
    backend.pre_tokenizer = _cut(pattern)
    backend.decoder = decoders.Fuse()
    return _as_tokenizer(backend, special, ids, origin)


def _cut(pattern: str) -> pre_tokenizers.PreTokenizer:
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


def _found_symbols(counts: Mapping[str, int], vocab_size: int) -> tuple[str, ...]:
    """The special tokens and the symbols that occur, by code points: the most frequent ones if there are too many.

    Raises ValueError if there are none, or no room for them.
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


def _given_alphabet(written: str) -> Tokenizer | None:
    if written in ALPHABETS:
        return make_symbols(*ALPHABETS[written])
    if written.islower() and len(written) > 1:
        raise ValueError(
            f"data.tokenizer='characters:{written}': no alphabet has that name; choose from {', '.join(ALPHABETS)}, or "
            "write its letters, as in characters:ACGTN"
        )
    if len({*written}) != len(written) or any(letter.isspace() for letter in written):
        raise ValueError(f"data.tokenizer='characters:{written}': a letter is repeated, or white space; correct it")
    return make_symbols((*SPECIAL_TOKENS.values(), *written), SPECIAL_TOKENS) if written else None


def _count_letters(written: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return Counter({letter: count for letter, count in counts.items() if not letter.isspace()})


CHARACTERS = TokenizerKind(
    "characters",
    _count_letters,
    lambda _, counts, size, *__: make_symbols(_found_symbols(counts, size), SPECIAL_TOKENS),
    _given_alphabet,
    form="characters[:ALPHABET]",
    is_prose=False,
)


_MOST_KMERS = 8  # letters; all 65,536 of them are tokens


def _given_kmers(written: str) -> Tokenizer:
    size, colon, stride = written.partition(":")
    sizes = [str(number) for number in range(2, _MOST_KMERS + 1)]
    if size not in sizes or (colon and stride not in ("1", size)):
        raise ValueError(
            f"data.tokenizer='kmers:{written}': write kmers:K, with K from 2 to {_MOST_KMERS}, or kmers:K:1 for k-mers "
            "that overlap"
        )
    kmers = ["".join(letters) for letters in itertools.product(artefact.NUCLEOTIDES, repeat=int(size))]
    if stride == "1":  # overlapping ones; the artefact takes them separated by spaces, as DNABERT's does
        return _make_spaced(kmers, "vocabulary of k-mers")
    # Letters that fill no k-mer, at the end or beside another letter, are tokens of their own.
    pattern = f"[{artefact.NUCLEOTIDES}]{{{size}}}|{artefact.ANY_LETTER}"
    return make_symbols((*SPECIAL_TOKENS.values(), *kmers, *artefact.NUCLEOTIDES, "N"), SPECIAL_TOKENS, pattern)


def _make_spaced(symbols: Iterable[str], origin: str) -> Tokenizer:
    """The tokenizer of a table of symbols that are separated by spaces."""
    ids = {token: number for number, token in enumerate((*SPECIAL_TOKENS.values(), *symbols))}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _as_tokenizer(backend, SPECIAL_TOKENS, ids, origin)


KMERS = TokenizerKind("kmers", given=_given_kmers, form="kmers:K[:1]", is_prose=False)


class NamedPattern(NamedTuple):
    """A pattern that `data.tokenizer` may give by its name."""

    name: str
    regex: str


# Atoms in brackets, atoms of two letters, chirality and rings of two digits; any other character is a symbol.
SMILES = NamedPattern("smiles", r"\[[^\]]+\]|Br|Cl|@@|%[0-9]{2}|.")
PATTERNS = {one.name: one.regex for one in (SMILES,)}


def _pattern(written: str) -> str:
    if not written:
        raise ValueError(f"data.tokenizer='regex:': write a pattern, or a name: {', '.join(PATTERNS)}")
    return PATTERNS.get(written, written)


def _count_matches(written: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    cut = _cut(_pattern(written))
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(symbol for symbol, _ in cut.pre_tokenize_str(text))
    return counts


def _check_regex(written: str) -> None:
    """Raise ValueError for a pattern that cannot be compiled."""
    try:
        _cut(_pattern(written))
    except ValueError:
        raise
    except Exception as error:  # the library raises its own class
        raise ValueError(
            f"data.tokenizer='regex:{written}': not a pattern of Oniguruma ({error}); correct it"
        ) from None


REGEX = TokenizerKind(
    "regex",
    _count_matches,
    lambda written, counts, size, *_: make_symbols(_found_symbols(counts, size), SPECIAL_TOKENS, _pattern(written)),
    _check_regex,
    form="regex:PATTERN",
    is_prose=False,
)

_MOST_INTEGERS = 1 << 20


def _given_integers(written: str) -> Tokenizer:
    size = int(written) if written.isdecimal() else 0
    if not 1 <= size <= _MOST_INTEGERS:
        raise ValueError(
            f"data.tokenizer='integers:{written}': write the number of ids, from 1 to {_MOST_INTEGERS:,}, as in "
            "integers:1000"
        )
    return _make_spaced(map(str, range(size)), "vocabulary of integers")


INTEGERS = TokenizerKind("integers", given=_given_integers, form="integers:SIZE", is_prose=False)

_STRETCH = 64  # letters; pieces within such stretches are merged, and longer pieces cannot form


def _count_stretches(written: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        letters = "".join(text.split())
        counts.update(letters[at : at + _STRETCH] for at in range(0, len(letters), _STRETCH))
    return counts


def _train_sequence_bpe(
    written: str,
    counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None],
) -> Tokenizer:
    """Byte-pair encoding of letters without word borders, as in DNABERT-2."""
    letter_counts: Counter[str] = Counter()
    for stretch, count in counts.items():
        for letter in stretch:
            letter_counts[letter] += count
    letters = _found_symbols(letter_counts, vocab_size)[len(SPECIAL_TOKENS) :]
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
    """The tokenizer of the `vocab.txt` of transformers' EsmTokenizer, whose [UNK] is a run of unknown letters.

    Raises ValueError for other special tokens than ESM's, and for tokens of several letters.
    """
    wrong = [name for name in _ESM_TOKENS.values() if name not in tokens]
    wrong += [token for token in tokens if len(token) > 1 and not (token[0] == "<" and token[-1] == ">")]
    if wrong:
        raise ValueError(f"{origin}: EsmTokenizer with {wrong[0]!r} missing or of several letters is unsupported")
    listed = "".join(f"\\x{{{ord(token):X}}}" for token in tokens if len(token) == 1)
    return make_symbols(tokens, _ESM_TOKENS, f"[{listed}]|[^{listed}]+", origin)
