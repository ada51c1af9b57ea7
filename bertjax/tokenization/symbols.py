"""Tokenizers of sequences that are not prose, as artefacts: a table of symbols, and a pattern that cuts text into them.

White space in a sequence is left out. A symbol outside the table is [UNK].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from bertjax.tokenization import artefact
from bertjax.tokenization.loading import make_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer, with_roles
from bertjax.tokenization.tokenizer_kind import TokenizerKind

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_OF_ESM = {"cls": "<cls>", "pad": "<pad>", "sep": "<eos>", "unk": "<unk>", "mask": "<mask>"}
# Name -> the vocabulary in order, with its special tokens.
ALPHABETS: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "esm2": (("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"), _OF_ESM),
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
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(artefact.LETTER_SPACE), behavior="removed"),
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Fuse()
    with_roles(backend, {role: ids[name] for role, name in special.items()})
    role_tokens = {f"{role}_token": name for role, name in special.items()}
    return make_tokenizer(backend.to_str().encode(), role_tokens, origin)


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


def _train_characters(
    written: str,
    counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None],
) -> Tokenizer:
    """The letters that occur, the most frequent ones if there are too many, in the order of their code points."""
    room = vocab_size - len(SPECIAL_TOKENS)
    if room < 1 or not counts:
        raise ValueError(
            f"data.vocab_size={vocab_size}: {len(counts)} letters and {len(SPECIAL_TOKENS)} special tokens; raise it"
            if counts
            else "vocabulary: the text has no letters; is data.sources right?"
        )
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))[:room]
    return make_symbols((*SPECIAL_TOKENS.values(), *sorted(letters)), SPECIAL_TOKENS)


CHARACTERS = TokenizerKind(
    "characters", _count_letters, _train_characters, _given_alphabet, form="characters[:ALPHABET]", is_prose=False
)


def read_esm_vocabulary(tokens: Sequence[str], origin: str) -> Tokenizer:
    """The tokenizer of the `vocab.txt` of transformers' EsmTokenizer, whose [UNK] is a run of unknown letters.

    Raises ValueError for other special tokens than ESM's, and for tokens of several letters.
    """
    wrong = [name for name in _OF_ESM.values() if name not in tokens]
    wrong += [token for token in tokens if len(token) > 1 and not (token[0] == "<" and token[-1] == ">")]
    if wrong:
        raise ValueError(f"{origin}: EsmTokenizer with {wrong[0]!r} missing or of several letters is unsupported")
    listed = "".join(f"\\x{{{ord(token):X}}}" for token in tokens if len(token) == 1)
    return make_symbols(tokens, _OF_ESM, f"[{listed}]|[^{listed}]+", origin)
