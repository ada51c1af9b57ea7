"""The artefact behind every tokenizer, a `tokenizer.json`: checks, token surfaces, and where text may be cut.

Everything is derived from the file, so that any tokenizer supports masking by words, spans and n-grams.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import tokenizers

from bertjax.storage.json_documents import parse_json
from bertjax.tokenization.chunks import SEPARATOR
from bertjax.tokenization.letters import SPACES as LETTER_SPACES

FILE = "tokenizer.json"
WORD = "▁"  # SentencePiece's mark for the space before a word
NUCLEOTIDES = "ACGT"
ANY_LETTER = "."  # pattern that splits a sequence into its letters
LETTER_SPACE = f"[{LETTER_SPACES}]+"  # white space that is removed from a sequence

Artefact = dict[str, Any]  # the JSON of a `tokenizers.Tokenizer`


class _AddedToken(TypedDict):
    content: str
    special: bool
    lstrip: bool
    rstrip: bool


class _Model(TypedDict):
    type: NotRequired[str]
    unk_token: NotRequired[str | None]
    continuing_subword_prefix: NotRequired[str | None]
    end_of_word_suffix: NotRequired[str | None]


class _Step(TypedDict):
    """A normalizer, pre-tokenizer or decoder, or a sequence of them."""

    type: NotRequired[str]


class _File(TypedDict):
    """The parts of a `tokenizer.json` that we read ourselves."""

    model: _Model
    added_tokens: NotRequired[list[_AddedToken]]
    normalizer: NotRequired[_Step | None]
    pre_tokenizer: NotRequired[_Step | None]
    decoder: NotRequired[_Step | None]


def read_artefact(content: bytes, origin: str) -> tuple[tokenizers.Tokenizer, Artefact]:
    """Read a `tokenizer.json`: the tokenizer, without truncation and padding, and the file's JSON.

    `origin` is the file's name in messages. Raises ValueError for a file that the library cannot read, or that would
    crash it.
    """
    document: Artefact = parse_json(content, origin, _File, remedy="it cannot be read as a tokenizer.json")
    check_artefact(document, origin)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises its own class for every error
        raise ValueError(f"{origin}: it cannot be read as a tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, document


def check_artefact(document: Artefact, origin: str) -> None:
    """Raise ValueError for content that the library does not check and crashes on."""
    model = document["model"]
    unknown, pieces = model.get("unk_token"), model.get("vocab")
    if unknown is not None and isinstance(pieces, dict) and unknown not in pieces:
        raise ValueError(f"{origin}: model.unk_token {unknown!r} is not in the vocabulary; get the file again")
    if model.get("type") == "BPE":
        for key in ("continuing_subword_prefix", "end_of_word_suffix"):
            if mark := model.get(key):
                raise ValueError(f"{origin}: model.{key} is {mark!r}; BPE with marked pieces is unsupported")
    for step in steps(document, "normalizer"):
        encoded = step.get("precompiled_charsmap")
        if step.get("type") != "Precompiled" or encoded is None:
            continue
        try:
            is_valid = is_valid_charsmap(base64.b64decode(str(encoded), validate=True))
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ValueError(f"{origin}: the character table (precompiled_charsmap) is damaged; get the file again")


def steps(document: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    """The steps of a `normalizer`, `pre_tokenizer` or `decoder`, flattened; empty if the part is missing."""
    inner = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[part]

    def flat(step: Any) -> Iterator[dict[str, Any]]:
        if isinstance(step, dict) and isinstance(step.get(inner), list):
            for inner_step in step[inner]:
                yield from flat(inner_step)
        elif isinstance(step, dict):
            yield step

    return list(flat(document.get(part)))


def is_valid_charsmap(table: bytes) -> bool:
    """Whether all offsets in a double-array trie point into its table; `tokenizers` does not check them.

    A table is the size of the trie, its units (bit 31: a value; bit 8: has a value; bits 10 to 30 and 9: the offset of
    its children), and the texts that its values point into, as written by sentencepiece with darts-clone.
    """
    if not table:
        return True
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or size > len(table) - 4:
        return False
    units, texts = np.frombuffer(table, "<u4", size // 4, 4), np.frombuffer(table, np.uint8, offset=4 + size)
    nodes = np.flatnonzero(units < 1 << 31)
    children = nodes ^ ((units[nodes] >> 10).astype(np.int64) << ((units[nodes] & 1 << 9) >> 6))
    if (children | 255 >= len(units)).any():
        return False
    begins = units[children[units[nodes] >> 8 & 1 == 1]] & (1 << 31) - 1
    return bool((begins < len(texts)).all() and (texts[begins] & 0xC0 != 0x80).all())


def model_kind(document: Artefact) -> str:
    """Classify the model as `wordpiece`, `unigram`, `byte_bpe`, `bpe` or `symbols`; else return its type."""
    model = str(document["model"].get("type", ""))
    if cuts_sequences(document):
        return "symbols"
    if model == "BPE":
        return "byte_bpe" if is_byte_level(document) else "bpe"
    return {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "symbols"}.get(model, model)


def cuts_sequences(document: Artefact) -> bool:
    """Whether text is a sequence without words: the first step removes white space."""
    first = [(step.get("pattern"), step.get("behavior")) for step in steps(document, "pre_tokenizer")[:1]]
    return first == [({"Regex": LETTER_SPACE}, "Removed")]


def overlapping_size(document: Artefact, hidden: Collection[str]) -> int:
    """Return K if the vocabulary is all K-mers of `NUCLEOTIDES`, separated by white space as in DNABERT, else 0.

    `hidden` are tokens that text never encodes to.
    """
    types = [step.get("type") for step in steps(document, "pre_tokenizer")]
    if document["model"].get("type") != "WordLevel" or types != ["WhitespaceSplit"] or document.get("normalizer"):
        return 0
    tokens = [token for token in document["model"]["vocab"] if token not in hidden]
    size = len(tokens[0]) if tokens else 0
    is_whole = len(tokens) == len(NUCLEOTIDES) ** size and all(
        len(token) == size and {*token} <= {*NUCLEOTIDES} for token in tokens
    )
    return size if is_whole else 0


def letter_ids(document: Artefact, hidden: Collection[str]) -> dict[str, int] | None:
    """Map letters to ids if the tokens are a text's letters without white space; None for any other artefact.

    `hidden` are tokens that text never encodes to.
    """
    splits = [(step.get("pattern"), step.get("behavior")) for step in steps(document, "pre_tokenizer")]
    added = [token for token in document.get("added_tokens", ()) if token["content"] not in hidden]
    if document["model"].get("type") != "WordLevel" or document.get("normalizer") or added:
        return None
    if splits != [({"Regex": LETTER_SPACE}, "Removed"), ({"Regex": ANY_LETTER}, "Isolated")]:
        return None
    return {token: number for token, number in document["model"]["vocab"].items() if len(token) == 1}


def unknown_token(document: Artefact) -> str | None:
    """The token for text that the model cannot encode; None if it encodes everything."""
    model = document["model"]
    if isinstance(model.get("vocab"), list):  # Unigram; old files lack the type
        number = model.get("unk_id")
        return None if number is None else str(model["vocab"][number][0])
    return model.get("unk_token")


def is_byte_level(document: Artefact) -> bool:
    """Whether text is converted to bytes before the model."""
    return any(
        step.get("type") == "ByteLevel" for part in ("pre_tokenizer", "normalizer") for step in steps(document, part)
    )


def byte_letters() -> list[str]:
    """The character for each byte: itself if printable in Latin-1, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(0x100)]


def token_surfaces(document: Artefact, tokens: Sequence[str], hidden: Collection[int]) -> list[bytes]:
    """The text of each token in UTF-8, without marks for a word's beginning or continuation; empty for `hidden`."""
    added = {token["content"] for token in document.get("added_tokens", ())}
    prefix = document["model"].get("continuing_subword_prefix") or ""
    byte = {letter: number for number, letter in enumerate(byte_letters())} if is_byte_level(document) else None
    falls_back = bool(document["model"].get("byte_fallback"))

    def surface(token: str) -> bytes:
        if token in added:
            return token.replace(WORD, " ").strip().encode()
        if byte is not None:
            return bytes(map(byte.__getitem__, token)).lstrip(b" ") if byte.keys() >= {*token} else b""
        if falls_back and (match := re.fullmatch("<0x([0-9A-F]{2})>", token)):
            return bytes.fromhex(match[1])
        return (token.removeprefix(prefix) if prefix else token.replace(WORD, "")).encode()

    return [b"" if number in hidden else surface(token) for number, token in enumerate(tokens)]


def word_mark(document: Artefact) -> str:
    """The prefix of tokens that begin a word: `Ġ` or `▁`."""
    return byte_letters()[ord(" ")] if is_byte_level(document) else WORD


def hidden_name(number: int) -> str:
    """A token name that cannot occur in text, for `without_tokens`."""
    return f"{SEPARATOR}{number}"


def without_tokens(document: Artefact, hidden: Mapping[str, int]) -> Artefact:
    """Change an artefact, keeping its ids, so that text never encodes to `hidden` tokens or gets tokens around it.

    `hidden` maps token -> id; their new names contain SEPARATOR, which text never does. Other added tokens stay: they
    are recognised in text, and the library numbers those outside the model's vocabulary by their order.
    """
    names = {token: hidden_name(number) for token, number in hidden.items()}
    model = document["model"] | ({"dropout": None} if "dropout" in document["model"] else {})
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        model["vocab"] = {names.get(token, token): number for token, number in pieces.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in pieces]
    if model.get("merges"):
        pairs = ((pair, pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"])
        model["merges"] = [pair for pair, (a, b) in pairs if names.keys().isdisjoint((a, b, a + b))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    exact = dict.fromkeys(("normalized", "lstrip", "rstrip", "single_word"), False)
    added = [
        token | exact | {"content": names[token["content"]]} if token["content"] in names else token
        for token in document.get("added_tokens", ())
    ]
    none = dict.fromkeys(("post_processor", "truncation", "padding"))
    return {**document, **none, "model": model, "added_tokens": added}


def encoding_parts(document: Artefact, roles: Collection[str]) -> Artefact:
    """The parts of an artefact that determine the ids of text; tokens with a role are not recognised in text.

    Omits options that are off, so that options which the library adds later do not change the result.
    """
    tables = {key: document["model"].get(key) for key in ("vocab", "merges")}
    if isinstance(tables["vocab"], list):  # the library changes the last bit of numbers when it reads its own output
        tables["vocab"] = [[token, float(np.float32(score))] for token, score in tables["vocab"]]
    model = {key: value for key, value in document["model"].items() if key not in (*tables, "dropout")}
    added = [token for token in document.get("added_tokens", ()) if token["content"] not in roles]
    parts = {"normalizer": document.get("normalizer"), "pre_tokenizer": document.get("pre_tokenizer")}
    return _without_defaults(parts | {"model": model, "added_tokens": added}) | {"tables": tables}


def _without_defaults(value: Any) -> Any:
    """Remove keys that are null, false or empty from a JSON value."""
    if isinstance(value, dict):
        inner = {key: _without_defaults(item) for key, item in value.items()}
        return {
            key: item
            for key, item in inner.items()
            if item is not None and item is not False and item not in ("", [], {})
        }
    return [_without_defaults(item) for item in value] if isinstance(value, list) else value


class Cut(NamedTuple):
    """Where text may be cut into chunks whose ids do not depend on their neighbours; see `ChunkEncoder`."""

    pattern: re.Pattern[str]  # matches the chunks
    whole: tuple[re.Pattern[str], ...] = ()  # texts that match one of them are not cut
    before: str = ""  # prepended to a text before it is cut
    is_bert: bool = False  # cuts at BERT's word borders


# Only characters that BERT's normaliser replaces by a space. Python's other spaces are control characters, which it
# deletes, joining their neighbours.
_SPACE = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Characters that are always their own token: ASCII and typographic punctuation, and BERT's Chinese characters.
# Canonical ordering does not move them, so NFD of the parts is NFD of the whole. (google-research/bert also counts
# U+2B820 to U+2B91F as Chinese characters; `tokenizers` does not.)
_CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
_ALONE = f"!-/:-@\\[-`{{-~\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09{_CHINESE}"
BERT_CHUNKS = re.compile(f"[^{_SPACE}{_ALONE}{SEPARATOR}]+|[{_ALONE}{SEPARATOR}]")
_IS_CHINESE = re.compile(f"[{_CHINESE}]")

# GPT-2's pattern ends a word before a single space. How it splits longer white space depends on what follows, so a
# sentence with longer white space is not cut.
_BYTE_CHUNKS = re.compile(f" ?[^ {SEPARATOR}]+|{SEPARATOR}")
_UNCOMMON_SPACE = re.compile(rf"\s\s|[^\S ]|[\x1c-\x1f]|\s(?:{SEPARATOR}|$)")
# A combining mark after a space forms a grapheme with it, and character tables are applied to graphemes. Letters,
# digits and the punctuation of common scripts are not such marks.
_NO_MARKS = r"\w!-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u3029\u3030\uff01-\uff65"
_BYTES_BESIDE_MARKS = re.compile(rf"{_UNCOMMON_SPACE.pattern}|(?:^|[ {SEPARATOR}])[^{_NO_MARKS} {SEPARATOR}]")
_SPACED_CHUNKS = re.compile(f"[^ {SEPARATOR}]+|{SEPARATOR}")
# Two patterns, because a combined one is four times as slow.
_OTHER_SPACE = re.compile(r"[\x01-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_MARK_AFTER_SPACE = re.compile(f" [^{_NO_MARKS} {SEPARATOR}]")
_EVERY_TEXT = re.compile("")

_WITHOUT_SPACES = {"NFC", "NFD", "Lowercase", "StripAccents"}  # normalizers that create no spaces
_LOCAL_NORMALIZERS = ("NFC", "NFKC", "NFD", "NFKD", "Lowercase", "StripAccents", "Precompiled")


def is_chinese(chunk: str) -> bool:
    """Whether one of BERT's chunks is a Chinese character, each of which is a separate chunk."""
    return _IS_CHINESE.match(chunk) is not None


def find_cut(document: Artefact, hidden: Collection[str]) -> Cut:
    """Find where text may be cut: nowhere if a step of the artefact may depend on context.

    `hidden` are tokens that text never encodes to.
    """
    normalizer, splits = steps(document, "normalizer"), steps(document, "pre_tokenizer")
    types = [step.get("type") for step in splits]
    added = [token for token in document.get("added_tokens", ()) if token["content"] not in hidden]
    uncut = Cut(_SPACED_CHUNKS, (_EVERY_TEXT,))
    if document["model"].get("type") == "WordPiece" and types[:1] == ["BertPreTokenizer"]:
        cleans = [step.get("clean_text", True) and step.get("handle_chinese_chars", True) for step in normalizer]
        is_bert = [step.get("type") for step in normalizer] == ["BertNormalizer"] and cleans == [True] and not added
        splits_words = all(type_ in ("Split", "Digits", "Punctuation") for type_ in types[1:])
        return Cut(BERT_CHUNKS, is_bert=True) if is_bert and splits_words else uncut
    if not all(step.get("type") in _LOCAL_NORMALIZERS or _keeps_spaces(step) for step in normalizer):
        return uncut
    # A cut could split an added token that contains single spaces.
    spaced = (" " in token["content"] and not re.search(r"\s\s", token["content"]) for token in added)
    if any(spaced) or any(token["lstrip"] or token["rstrip"] for token in added):
        return uncut
    names = {step.get("type") for step in normalizer}
    if types == ["ByteLevel"] and splits[0].get("use_regex", True) and names <= _WITHOUT_SPACES:
        has_prefix = bool(splits[0].get("add_prefix_space", True))
        # Deleting marks next to spaces leaves runs of spaces.
        whole = _BYTES_BESIDE_MARKS if "StripAccents" in names else _UNCOMMON_SPACE
        # The library does not put a space before added tokens.
        return uncut if has_prefix and added else Cut(_BYTE_CHUNKS, (whole,), before=" " * has_prefix)
    if added:
        return uncut
    at_spaces = types[:1] == ["WhitespaceSplit"] or (
        types[:1] == ["Split"] and splits[0]["pattern"] == {"String": " "} and splits[0]["behavior"] == "Removed"
    )
    if at_spaces and types[1:] == ["Metaspace"] and splits[1].get("prepend_scheme") == "always":
        return Cut(_SPACED_CHUNKS, (_OTHER_SPACE, _MARK_AFTER_SPACE) if "Precompiled" in names else ())
    return uncut


def _keeps_spaces(step: Mapping[str, Any]) -> bool:
    """Whether a step only replaces text without spaces, or runs of spaces, which the cut at spaces drops anyway."""
    if step.get("type") != "Replace":
        return False
    pattern = step["pattern"].get("String")
    if pattern is None:
        return step["pattern"].get("Regex") == " {2,}" and step.get("content") in (" ", WORD)
    return " " not in pattern + str(step.get("content"))


def to_document(tokenizer: tokenizers.Tokenizer) -> Artefact:
    """Convert a tokenizer to its artefact's JSON."""
    return json.loads(tokenizer.to_str())
