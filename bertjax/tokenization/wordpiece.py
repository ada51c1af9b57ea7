"""WordPiece: a vocabulary with BERT's normalisation, encoding exactly like `tokenizers`.

`tokenizers` is the reference because exports run on it. google-research/bert and transformers' pure-Python
`BertTokenizerLegacy` give the same ids except in these cases (verified by tests/tokenization/check_wordpiece.py):

    rule                                google-research/bert   BertTokenizerLegacy    here
    longest word that is not [UNK]      200 characters         100                    200
    private use (Co)                    in words               deleted                deleted
    unassigned code points (Cn)         in words               deleted                in words
    NFC, after cleaning                 no                     yes                    no
    U+2B820 to U+2B91F (Chinese)        a word each            a word each            in words
    capital sigma, last in a word       ς                      ς                      σ
    marks, punctuation, format (Cf)     Python's Unicode       Python's Unicode       Unicode 8.0
    canonical decompositions            Python's Unicode       Python's Unicode       Unicode 9.0
    lower case                          Python's Unicode       Python's Unicode       Unicode 17.0
    a special token's name in text      plain text             the special token      plain; special in `backend`
    a lone surrogate                    in words               deleted                ValueError
    lowercase without strip_accents     impossible             possible               possible
    white space in a line of vocab.txt  stripped               kept                   kept

A vocabulary imported from a folder in Hugging Face's layout is an artefact with its own rules, such as a longest word
of 100 characters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax.storage.files import read_whole
from bertjax.tokenization import artefact, entity_map
from bertjax.tokenization.tokenizer import ROLES, TextRules, Tokenizer, refuse_bare_start, row_template

VOCABULARY_FILE = "vocab.txt"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 200  # a longer word is [UNK]: max_input_chars_per_word of google-research/bert


class WordPiece(Tokenizer):
    """The tokenizer of a `vocab.txt` with BERT's rules; special tokens are looked up by name."""

    def __init__(
        self, tokens: Sequence[str], rules: TextRules, origin: str = "vocabulary", entities: bytes = b""
    ) -> None:
        """Check the tokens and look up the special ones; `origin` names the vocabulary in messages.

        `entities` is the content of an entity map. Raises ValueError if a special token is missing or a token is empty
        or repeated, and like `entity_map.map_words`.
        """
        refuse_bare_start(rules, origin)
        ids = require_ids(tokens, origin)
        special = {role: ids[f"[{role.upper()}]"] for role in ROLES}
        files = {VOCABULARY_FILE: "".join(f"{token}\n" for token in tokens).encode()}
        super().__init__(_backend(ids, special, rules), special, files, rules, origin=origin, entities=entities)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> WordPiece:
        """Read a `vocab.txt`, a token per line. Raises ValueError like `read_tokens` and the constructor."""
        map_file = path.with_name(entity_map.FILE)
        entities = read_whole(map_file) if map_file.is_file() else b""
        return cls(read_tokens(path), rules, origin=f"vocabulary {path}", entities=entities)


def with_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Make a WordPiece tokenizer with other tokens and the same rules; special tokens must keep their ids."""
    if artefact.FILE not in tokenizer.files:
        return WordPiece(tokens, tokenizer.rules)
    document = artefact.to_document(tokenizer.backend)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    document["model"]["vocab"] = vocabulary
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in vocabulary]
    if tokenizer.rules.unknown == "characters":
        document["pre_tokenizer"]["pretokenizers"][-1]["pattern"] = {"Regex": _outside(tokens)}
    content = json.dumps(document, ensure_ascii=False).encode()
    files = tokenizer.files | {artefact.FILE: content}
    backend, _ = artefact.read_artefact(content, "extended vocabulary")
    return Tokenizer(backend, tokenizer.special, files)


def read_tokens(path: Path) -> list[str]:
    """Read the tokens of a `vocab.txt`, a token per line; a byte order mark is dropped.

    Raises ValueError if the file is empty, or not UTF-8.
    """
    try:
        text = read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"vocabulary {path}: not UTF-8 at byte {error.start}; is it a vocab.txt, with a token per line?"
        ) from None
    # Not str.splitlines: the published Chinese vocabulary has a token U+2028.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    tokens = lines[:-1] if not lines[-1] else lines
    if not tokens:
        raise ValueError(f"vocabulary {path}: the file is empty; write a token per line")
    return tokens


def transformers_backend(tokens: Sequence[str], rules: TextRules, origin: str) -> tokenizers.Tokenizer:
    """Make the artefact that transformers' BertTokenizer has for a `vocab.txt`. Raises ValueError like `WordPiece`."""
    ids = require_ids(tokens, origin)
    return _backend(ids, {role: ids[f"[{role.upper()}]"] for role in ROLES}, rules, longest_word=100)


def _backend(
    ids: dict[str, int], special: dict[str, int], rules: TextRules, longest_word: int = MAX_WORD_CHARACTERS
) -> tokenizers.Tokenizer:
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest_word)  # noqa: S106
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizer(rules.lowercase, rules.strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if rules.unknown == "characters":
        alone = pre_tokenizers.Split(tokenizers.Regex(_outside(ids)), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, alone])
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = row_template(("[CLS]", special["cls"]), ("[SEP]", special["sep"]))
    return tokenizer


def _outside(tokens: Sequence[str] | dict[str, int]) -> str:
    """A regular expression for characters that are not in any token.

    Splitting them off as words makes only these characters [UNK]; the rest of the word is encoded as usual.
    """
    words = [t.removeprefix("##") for t in tokens if t not in SPECIAL_TOKENS and not t.startswith("[unused")]
    points = sorted(set(map(ord, "".join(words))))
    spans: list[list[int]] = []
    for point in points:
        if spans and point == spans[-1][1] + 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return "[^" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in spans) + "]"


def normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """BERT's text cleaning, with separate switches (google-research/bert has only do_lower_case for both)."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )


def require_ids(tokens: Sequence[str], origin: str) -> dict[str, int]:
    """Map tokens to ids. Raises ValueError for a repeated or empty token, or a missing special token."""
    ids = require_distinct(tokens, origin)
    if "" in ids:
        raise ValueError(
            f"{origin}: line {ids[''] + 1} is empty; write a token there, for example [unused{ids['']}], because "
            "removing the line would shift every later id"
        )
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(
            f"{origin}: {', '.join(missing)} missing; BERT needs {' '.join(SPECIAL_TOKENS)}, each on a line"
        )
    return ids


def require_distinct(tokens: Sequence[str], origin: str) -> dict[str, int]:
    """Map tokens to ids. Raises ValueError for a repeated token."""
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        number = next(number for number, token in enumerate(tokens) if ids[token] != number)
        token = tokens[number]
        raise ValueError(
            f"{origin}: token {token!r} is on lines {number + 1} and {ids[token] + 1}; rename one of them, for example "
            f"to [unused{ids[token]}], because removing it would shift every later id"
        )
    return ids
