"""Tokenizer folders in every shape that Hugging Face's libraries write, and how transformers reads them.

A folder is described by a row of choices: which files it has, which class it names, where its special tokens are,
which tokens it adds, and the keys of its kind. Rows cover every combination of two choices (of three where choices are
known to interact), so that hundreds of folders stand for the hundred thousands of the product.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import tokenizer_vocabularies as vocabularies
from covering import covering_rows
from tokenizer_vocabularies import (
    ALBERT_ROLES,
    BERT_ROLES,
    GEMMA_ROLES,
    JAPANESE_ROLES,
    LLAMA_ROLES,
    MPNET_ROLES,
    ROBERTA_ROLES,
    UNUSED,
)
from tokenizers import Tokenizer, normalizers, pre_tokenizers

MARKER, WORD = "[E1]", "covid"  # tokens that folders add: an entity marker and a word
LONG, LONGER = "museum" * 17, "x" * 101


# 1. Texts


def hard_texts() -> list[str]:
    """Texts on which tokenizers have differed. None spells a special token or an added one."""
    return [
        "", " ", "   ", "a", " a", "  a", "a ", "a  b", "  The museum  opened in 1877.  ",
        "The museum opened in 1877.", "The\tmuseum\nopened\r\nin\r1877.", "\nThe\n\n\nmuseum\n",
        "a\u00a0b", "a\u2009b\u3000c", "a\u200bb", "a\u2028b\u2029c", "2012, 3,000 and 1,2,3", "3,000",
        "12,50 %", "10,000,000", "``quoted'' text", "it's don't WE'VE I'm", "e.g. i.e. U.S.A.",
        "(round)[square]{curly}<angle>", "a_b x-y @user #tag", "naïve café Zürich", "NAÏVE CAFÉ ZÜRICH",
        "naı\u0308ve cafe\u0301 Zu\u0308rich", "że wysoką izbę", "Straße ẞ ﬁne ſ", "İstanbul ışık IĞDIR",
        "ΟΔΥΣΣΕΥΣ σοφός ἄνθρωπος", "Москва Ёлка йод", "и\u0306од е\u0308лка", "القاهرة عاصمة مصر",
        "وَهِيَ مَدِينَةٌ", "ירושלים שָׁלוֹם", "नई दिल्ली क्षत्रिय हिन्दी",
        "กรุงเทพมหานคร น้ำใจ", "東京は日本の首都である。", "がぎ か\u3099き\u3099 ﾊﾟﾋﾟ ｶﾞ",
        "서울은 대한민국의 수도", "\u1109\u1165\u110b\u116e\u11af", "한국어를 배우고",
        "北京是中国的首都。我们", "龘㐀\U00020000", "Thành phố Hồ Chí Minh", "Tha\u0300nh pho\u0302\u0301",
        "ＡＢＣ　ｄｅｆ １２３", "① ㍿ ½ x² ™ Å Ω \u212b \u2126", "smile 😀 😀😀",
        "👨\u200d👩\u200d👧 family", "🇫🇷🇩🇪", "👍🏽 ❤️ 1️⃣", "☃ ☃\ufe0f",
        "a\u0001b\u001fc\u007fd\u0085e", "\u0007bell", "bad\ufffdbyte \ufffd", "\ufeffBOM",
        "soft\u00adhyphen", "\u202eright\u202c", "a\u0300\u0301\u0302 \u0301", "\u0301 alone",
        "def f(x):\n    return  x + 1\n\n\tif a <= b:", "        eight", "a     b", "▁under ▁ a▁b", "Ġg Ċ",
        "##hash ##s", "<0x41> <0xE2>", "https://example.org/a?b=c&d=%20", "x" * 99, "x" * 100, LONGER,
        LONG, "x" * 200, "x" * 201, "x" * 250, f"a {LONGER} b", "é" * 101, "東" * 120, "ab", "abc", "abcd",
        "1234567890", "12345 67", "zzyzx BRCA1", "…“”‘’–—", "$5 £6 €7", "a,b;c:d!e?f", "...", "?!",
        "A" * 20, "İ", "ǅ ŉ ß", "ａ\u3099", "\U0001f1e6",
    ]  # fmt: skip


def composed_texts() -> list[str]:
    """The hard texts on which `tokenizers` can follow sentencepiece: composed, and without names of bytes."""
    return [text for text in hard_texts() if normalizers.NFC().normalize_str(text) == text and "<0x" not in text]


def added_texts() -> list[str]:
    """Texts with the tokens that folders add, and none of the special tokens."""
    return [
        MARKER, f"{MARKER} a", f"a {MARKER} b", f"a{MARKER}b", f"the {MARKER}museum {MARKER}", MARKER.lower(), "[e 1]",
        WORD, f"the {WORD} museum", f"the {WORD}-19 {WORD}s", WORD.upper(), f"a{WORD}b", f"{WORD}{MARKER}", UNUSED[0],
        f"a {UNUSED[1]} b",
    ]  # fmt: skip


def forged_texts(roles: Mapping[str, str]) -> list[str]:
    """Texts that spell special tokens, which are plain text in a corpus."""
    names = [*dict.fromkeys(roles.values())]
    return [f"a {name} b" for name in names] + [f"{name}a" for name in names] + [" ".join(names), f"a{roles['mask']}"]


# 2. A folder


@dataclass
class Draft:
    """The future content of a folder; choices change it one after another."""

    roles: dict[str, str]
    model: dict[str, Any]
    whole: dict[str, Any] | None
    legacy: dict[str, bytes]
    config: dict[str, Any] | None
    more: dict[str, Any] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)  # reasons why it may be refused

    def write(self, folder: Path) -> None:
        """Write its files."""
        folder.mkdir(parents=True, exist_ok=True)
        objects = {"config.json": self.model, "tokenizer.json": self.whole, "tokenizer_config.json": self.config}
        for name, value in (objects | self.more).items():
            if value is not None:
                (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        for name, content in self.legacy.items():
            (folder / name).write_bytes(content)


Choice = Callable[[Draft], None]


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer with the choices that its folders have."""

    name: str
    family: str
    start: Callable[[], Draft]
    choices: Mapping[str, Mapping[str, Choice]]
    triples: tuple[str, ...] = ()  # choices whose combinations of three are all covered

    def folders(self) -> list[FolderSpec]:
        """The folders of this kind, in an order that never changes."""
        values = {key: tuple(choices) for key, choices in self.choices.items()}
        return [FolderSpec(self, tuple(row.items())) for row in covering_rows(values, self.triples, _excluded)]


@dataclass(frozen=True)
class FolderSpec:
    """A folder, given by its kind and its row of choices."""

    kind: Kind
    row: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "-".join([self.kind.name, *(value for _, value in self.row if value != "plain")])

    def draft(self) -> Draft:
        """Build its content."""
        draft = self.kind.start()
        for key, value in self.row:
            self.kind.choices[key][value](draft)
        return draft


_IN_CONFIG = {"usual-keys", "not-legacy", "marker-additional", "marker-decoder", "role-objects", "config-3", "punct"}


def _excluded(row: Mapping[str, str]) -> bool:
    """Exclude classes that read only `tokenizer.json` without it or without special tokens, and keys without a file.

    transformers does not read `special_tokens_map.json` if the config has `added_tokens_decoder`.
    """
    if row.get("class") == "no-config":
        return any("=" in value or value in _IN_CONFIG for value in row.values())
    if row.get("roles") == "role-map" and row.get("added") == "marker-decoder":
        return "class" not in row or row["class"] in (*_FILE_CLASSES, "GemmaTokenizer", "GemmaTokenizerFast")
    return row.get("class") in _FILE_CLASSES and (row.get("files") == "legacy" or row.get("roles") == "role-class")


# 3. Choices that all kinds have


def no_change(draft: Draft) -> None:
    """Leave it as it is."""


def key(name: str, value: Any) -> Choice:
    """Set a key of `tokenizer_config.json`."""

    def choose(draft: Draft) -> None:
        if draft.config is not None:
            draft.config[name] = value

    return choose


def key_values(name: str, *values: Any) -> dict[str, Choice]:
    """Choose a key's value; "plain" leaves the key out."""
    names = {value: f"{name}={json.dumps(value)}" for value in values}
    return {"plain": no_change} | {names[value]: key(name, value) for value in values}


def class_choice(name: str | None) -> Choice:
    """Set the class in `tokenizer_config.json`; None removes the file."""

    def choose(draft: Draft) -> None:
        if name is None:
            draft.config = None
        elif draft.config is not None:
            draft.config["tokenizer_class"] = name

    return choose


def classes(*names: str | None) -> dict[str, Choice]:
    """Choose among classes."""
    return {name or "no-config": class_choice(name) for name in names}


def json_only(draft: Draft) -> None:
    draft.legacy = {}


def legacy_only(draft: Draft) -> None:
    draft.whole = None


def stale(draft: Draft) -> None:
    """Add legacy files of an older vocabulary beside `tokenizer.json`."""
    changed = {}
    for name, content in draft.legacy.items():
        if name == "vocab.txt":
            first, *rest = content.decode().splitlines()
            changed[name] = "\n".join([first, "[stale]", *reversed(rest)]).encode()
        elif name == "vocab.json":
            ids = json.loads(content)
            changed[name] = json.dumps({token: len(ids) - 1 - n for token, n in ids.items()}).encode()
        elif name.endswith(".model"):
            kind = {"spiece.model": "albert", "spm.model": "deberta-v2"}.get(name, "xlm-roberta")
            changed[name] = vocabularies.sentencepiece_model(kind, texts=vocabularies.LINES[:6])
        else:
            changed[name] = content
    draft.legacy = changed


FILES: dict[str, Choice] = {"json": json_only, "legacy": legacy_only, "both": no_change, "stale": stale}
JSON_FILES: dict[str, Choice] = {"json": json_only}


def roles_as_text(draft: Draft) -> None:
    """Name special tokens in `tokenizer_config.json`: `"cls_token": "[CLS]"` and so on."""
    if draft.config is not None:
        draft.config |= {f"{role}_token": token for role, token in draft.roles.items()}


def roles_as_objects(draft: Draft) -> None:
    """Name special tokens as objects, as `save_pretrained` of 4.x writes tokens with options."""
    if draft.config is not None:
        for role, token in draft.roles.items():
            options = {"lstrip": role == "mask", "normalized": False, "rstrip": False, "single_word": False}
            draft.config[f"{role}_token"] = {"__type": "AddedToken", "content": token} | options


def roles_in_map(draft: Draft) -> None:
    """Name special tokens in `special_tokens_map.json`, with the mask as an object."""
    mask = {"content": draft.roles["mask"], "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
    draft.more["special_tokens_map.json"] = {
        f"{role}_token": mask if role == "mask" else token for role, token in draft.roles.items()
    }


def roles_nowhere(draft: Draft) -> None:
    """Name special tokens in no file; the class has no names either."""
    draft.refusals.append("no file names its special tokens")


_FILE_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
NAMED_ROLES: dict[str, Choice] = {"plain": roles_as_text, "role-objects": roles_as_objects, "role-map": roles_in_map}
ROLES = NAMED_ROLES | {"role-class": no_change}


def _added(content: str, special: bool) -> dict[str, Any]:
    return {
        "content": content, "lstrip": False, "normalized": not special, "rstrip": False, "single_word": False,
        "special": special,
    }  # fmt: skip


def _rename_unused(draft: Draft) -> int:
    """Replace the first unused token by the marker in every file; returns its id."""
    old, new = json.dumps(UNUSED[0]), json.dumps(MARKER)
    if draft.whole is not None:
        draft.whole = json.loads(json.dumps(draft.whole, ensure_ascii=False).replace(old, new))
    for name, content in draft.legacy.items():
        if name == "vocab.txt":
            draft.legacy[name] = content.replace(f"{UNUSED[0]}\n".encode(), f"{MARKER}\n".encode())
        elif name == "vocab.json":
            draft.legacy[name] = content.replace(old.encode(), new.encode())
    if draft.whole is not None and isinstance(draft.whole["model"]["vocab"], dict):
        listed = {token["content"]: token["id"] for token in draft.whole["added_tokens"]}
        return (draft.whole["model"]["vocab"] | listed)[MARKER]
    if "vocab.txt" in draft.legacy:
        return draft.legacy["vocab.txt"].decode().split("\n").index(MARKER)
    return json.loads(draft.legacy["vocab.json"])[MARKER]


def marker_in_added_tokens(draft: Draft) -> None:
    """Put the marker in place of an unused token, and in `added_tokens.json`."""
    draft.more["added_tokens.json"] = {MARKER: _rename_unused(draft)}


def marker_as_additional(draft: Draft) -> None:
    """Put the marker in place of an unused token, and in `additional_special_tokens`."""
    _rename_unused(draft)
    if draft.config is not None:
        draft.config["additional_special_tokens"] = [MARKER]


def marker_in_decoder(draft: Draft) -> None:
    """Put the marker in place of an unused token, and in `added_tokens_decoder`."""
    number = _rename_unused(draft)
    if draft.config is not None:
        draft.config["added_tokens_decoder"] = {str(number): _added(MARKER, special=False)}


def _size(draft: Draft) -> int:
    if draft.whole is not None:
        return Tokenizer.from_str(json.dumps(draft.whole)).get_vocab_size()
    if "vocab.txt" in draft.legacy:
        return len(draft.legacy["vocab.txt"].decode().splitlines())
    if "vocab.json" in draft.legacy:
        return len(json.loads(draft.legacy["vocab.json"]))
    raise ValueError("the size of a SentencePiece vocabulary depends on its class")


def word_in_json(draft: Draft) -> None:
    """Add a word after the vocabulary, in `tokenizer.json` or in `added_tokens.json` beside legacy files."""
    number = _size(draft)
    if draft.whole is not None:
        draft.whole["added_tokens"].append({"id": number} | _added(WORD, special=False))
    else:
        draft.more["added_tokens.json"] = {WORD: number}
    draft.refusals.append("it adds tokens after its vocabulary")


def word_in_decoder(draft: Draft) -> None:
    """Add a word and a marker after the vocabulary, only in `added_tokens_decoder`."""
    number = _size(draft)
    if draft.config is not None:
        draft.config["added_tokens_decoder"] = {
            str(number): _added(WORD, special=False), str(number + 1): _added(MARKER, special=True),
        }  # fmt: skip
        draft.refusals.append("it adds tokens after its vocabulary")


ADDED: dict[str, Choice] = {
    "plain": no_change, "marker-added": marker_in_added_tokens, "marker-additional": marker_as_additional,
    "marker-decoder": marker_in_decoder,
}  # fmt: skip
# Few folders of each kind, since they may be refused.
ADDED_BEHIND: dict[str, Choice] = {"word-json": word_in_json, "word-decoder": word_in_decoder}


def cut_and_padded(draft: Draft) -> None:
    """Change `tokenizer.json` as if saved after a training that truncated and padded rows."""
    if draft.whole is None:
        return
    whole = Tokenizer.from_str(json.dumps(draft.whole))
    whole.enable_truncation(max_length=6)
    pad = draft.roles["pad"]
    whole.enable_padding(length=12, pad_id=whole.token_to_id(pad), pad_token=pad)
    draft.whole |= {name: json.loads(whole.to_str())[name] for name in ("truncation", "padding")}


def usual_keys(draft: Draft) -> None:
    """Add keys that most published folders have."""
    if draft.config is not None:
        draft.config |= {
            "model_max_length": 16, "clean_up_tokenization_spaces": True, "padding_side": "right", "use_fast": True,
            "name_or_path": "someone/model", "special_tokens_map_file": None, "model_input_names": ["input_ids"],
        }  # fmt: skip


def not_legacy(draft: Draft) -> None:
    """Add the key by which T5's and Llama's classes of 4.x chose how to split text after special tokens."""
    if draft.config is not None:
        draft.config |= {"legacy": False, "from_slow": True, "sp_model_kwargs": {}}


OTHER: dict[str, Choice] = {
    "plain": no_change, "cut-and-padded": cut_and_padded, "usual-keys": usual_keys, "not-legacy": not_legacy,
}  # fmt: skip


def part(name: str, value: Any) -> Choice:
    """Replace a part of `tokenizer.json`."""

    def choose(draft: Draft) -> None:
        if draft.whole is not None:
            draft.whole[name] = json.loads(value.__getstate__()) if value is not None else None

    return choose


def model_part(name: str, value: Any) -> Choice:
    """Replace a value in the model of `tokenizer.json`."""

    def choose(draft: Draft) -> None:
        if draft.whole is not None:
            draft.whole["model"][name] = value

    return choose


# 4. Kinds


def _wordpiece(model_type: str, kind: str = "bert") -> Callable[[], Draft]:
    def start() -> Draft:
        legacy = {"vocab.txt": ("\n".join(vocabularies.wordpiece_vocabulary(kind)) + "\n").encode()}
        roles = MPNET_ROLES if kind == "mpnet" else BERT_ROLES
        return Draft(dict(roles), {"model_type": model_type}, vocabularies.bert_tokenizer_json(kind), legacy, {})

    return start


def _bert_normalizer(**options: Any) -> Choice:
    return part("normalizer", normalizers.BertNormalizer(**({"lowercase": True} | options)))


BERT_TEXT: dict[str, Mapping[str, Choice]] = {
    "lower": key_values("do_lower_case", True, False),
    "accents": key_values("strip_accents", None, True, False),
    "normalizer": {
        "plain": no_change,
        "json-cased": _bert_normalizer(lowercase=False),
        "json-accents": _bert_normalizer(strip_accents=False),
        "json-stripped": _bert_normalizer(lowercase=False, strip_accents=True),
        "json-chinese": _bert_normalizer(handle_chinese_chars=False),
        "json-unclean": _bert_normalizer(clean_text=False),
        "json-nfkc": part("normalizer", normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
        "json-none": part("normalizer", None),
    },
}
_FEW_NORMALIZERS = {name: BERT_TEXT["normalizer"][name] for name in ("plain", "json-cased", "json-accents")}
WORDPIECE_JSON: dict[str, Mapping[str, Choice]] = {
    "words": {
        "plain": no_change,
        "json-3": model_part("max_input_chars_per_word", 3),
        "json-200": model_part("max_input_chars_per_word", 200),
        "config-3": key("max_input_chars_per_word", 3),
    },
    "cut": {
        "plain": no_change,
        "json-whitespace": part("pre_tokenizer", pre_tokenizers.Whitespace()),
        "json-digits": part(
            "pre_tokenizer",
            pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]),
        ),
        "json-characters": part(
            "pre_tokenizer",
            pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Split("", "isolated")]),
        ),
    },
    "chinese": key_values("tokenize_chinese_chars", True, False),
}
_COMMON = {"files": FILES, "roles": ROLES, "added": ADDED, "other": OTHER}


def _byte_bpe(model_type: str, kind: str) -> Callable[[], Draft]:
    def start() -> Draft:
        vocabulary, merges = vocabularies.byte_bpe_files(kind)
        legacy = {"vocab.json": vocabulary.encode(), "merges.txt": merges.encode()}
        roles = ROBERTA_ROLES if kind == "roberta" else BERT_ROLES
        return Draft(dict(roles), {"model_type": model_type}, vocabularies.byte_bpe_tokenizer_json(kind), legacy, {})

    return start


BYTE_BPE_TEXT: dict[str, Mapping[str, Choice]] = {
    "space": key_values("add_prefix_space", True, False),
    "cut": {
        "plain": no_change,
        "json-space": part("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "json-digits": part(
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
        ),
        "json-punctuation": part(
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            ),
        ),
    },
    "lower": key_values("do_lower_case", True, False),
    "normalizer": {
        "plain": no_change,
        "json-nfc": part("normalizer", normalizers.NFC()),
        "json-lower": part("normalizer", normalizers.Lowercase()),
    },
}


def _json_alone(model_type: str, make: Callable[[], dict[str, Any]], roles: dict[str, str]) -> Callable[[], Draft]:
    return lambda: Draft(dict(roles), {"model_type": model_type}, make(), {}, {})


def _pieces(
    model_type: str, class_name: str, kind: str, file: str, roles: dict[str, str], byte_fallback: bool = False
) -> Callable[[], Draft]:
    """A SentencePiece model with the `tokenizer.json` that transformers' own class saves for it."""

    def start() -> Draft:
        content = vocabularies.sentencepiece_model(kind, byte_fallback)
        more = {"added_tokens.json": {"[MASK]": _count_pieces(content)}} if model_type == "deberta-v2" else {}
        whole = copy.deepcopy(_saved_whole(model_type, class_name, kind, file, byte_fallback))
        return Draft(dict(roles), {"model_type": model_type}, whole, {file: content}, {}, more)

    return start


def _count_pieces(content: bytes) -> int:
    return len(vocabularies.protobuf_module().ModelProto.FromString(content).pieces)


_SAVED: dict[tuple[Any, ...], dict[str, Any]] = {}


def _saved_whole(model_type: str, class_name: str, kind: str, file: str, byte_fallback: bool) -> dict[str, Any]:
    import tempfile

    cache_key = (model_type, class_name, kind, file, byte_fallback)
    if cache_key not in _SAVED:
        with tempfile.TemporaryDirectory() as directory:
            content = vocabularies.sentencepiece_model(kind, byte_fallback)
            more = {"added_tokens.json": {"[MASK]": _count_pieces(content)}} if model_type == "deberta-v2" else {}
            draft = Draft({}, {"model_type": model_type}, None, {file: content}, {"tokenizer_class": class_name}, more)
            draft.write(Path(directory))
            _SAVED[cache_key] = json.loads(reference_tokenizer(Path(directory)).backend_tokenizer.to_str())
    return _SAVED[cache_key]


def split_by_punctuation(draft: Draft) -> None:
    """Set DeBERTa's key, which has no counterpart in sentencepiece."""
    if draft.config is not None:
        draft.config["split_by_punct"] = True
        if reference_pieces(draft) is not None:
            draft.refusals.append("it splits by punctuation what sentencepiece cuts")


PIECES_TEXT: dict[str, Mapping[str, Choice]] = {
    "lower": key_values("do_lower_case", True, False),
    "accents": key_values("keep_accents", True, False) | {"strip_accents=true": key("strip_accents", True)},
    "space": key_values("add_prefix_space", True, False),
    "spaces": key_values("remove_space", True, False) | {"punct": split_by_punctuation},
    "normalizer": {
        "plain": no_change,
        "json-nfc": part("normalizer", normalizers.NFC()),
        "json-lower": part("normalizer", normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    },
}
_PIECES_COMMON = {"files": FILES, "roles": ROLES, "other": OTHER}
_ALONE_COMMON = {"roles": NAMED_ROLES, "added": ADDED, "other": OTHER}
_ALONE_TEXT = {
    "lower": BYTE_BPE_TEXT["lower"],
    "space": BYTE_BPE_TEXT["space"],
    "normalizer": BYTE_BPE_TEXT["normalizer"],
}


def _wordpiece_kinds() -> list[Kind]:
    bert = classes("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", None)
    rows = {"class": bert} | _COMMON | BERT_TEXT | WORDPIECE_JSON
    kinds = [Kind("bert", "bert", _wordpiece("bert"), rows, ("class", "files", "lower", "accents"))]
    for name, family, model_type, own in (
        ("distilbert", "distilbert", "distilbert", ("DistilBertTokenizer", "DistilBertTokenizerFast", None)),
        ("electra", "electra", "electra", ("ElectraTokenizer", "ElectraTokenizerFast", None)),
        ("bigbird-words", "bigbird", "big_bird", ("BertTokenizer", "PreTrainedTokenizerFast")),
    ):
        rows = {"class": classes(*own)} | _COMMON | BERT_TEXT | {"normalizer": _FEW_NORMALIZERS}
        kinds.append(Kind(name, family, _wordpiece(model_type), rows))
    rows = (
        {"class": classes("MPNetTokenizer", "MPNetTokenizerFast", "PreTrainedTokenizerFast", None)}
        | _COMMON
        | BERT_TEXT
    )
    rows["normalizer"] = _FEW_NORMALIZERS
    kinds.append(Kind("mpnet", "bert", _wordpiece("mpnet", "mpnet"), rows))
    return kinds


def _byte_bpe_kinds() -> list[Kind]:
    roberta = classes("RobertaTokenizer", "RobertaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", None)
    deberta = classes("DebertaTokenizer", "DebertaTokenizerFast", "PreTrainedTokenizerFast", None)
    longformer = classes("LongformerTokenizer", "LongformerTokenizerFast", "RobertaTokenizer", None)
    alone = classes("PreTrainedTokenizerFast", "TokenizersBackend")
    gemma = classes("GemmaTokenizer", "GemmaTokenizerFast", "PreTrainedTokenizerFast")
    return [
        Kind(
            "roberta", "roberta", _byte_bpe("roberta", "roberta"), {"class": roberta} | _COMMON | BYTE_BPE_TEXT,
            ("class", "files", "space"),
        ),
        Kind("deberta", "deberta", _byte_bpe("deberta", "deberta"), {"class": deberta} | _COMMON | BYTE_BPE_TEXT),
        Kind(
            "longformer", "longformer", _byte_bpe("longformer", "roberta"),
            {"class": longformer} | _COMMON | BYTE_BPE_TEXT,
        ),
        Kind(
            "modernbert", "modernbert", _json_alone("modernbert", vocabularies.modernbert_tokenizer_json, BERT_ROLES),
            {"class": alone} | _ALONE_COMMON | BYTE_BPE_TEXT,
        ),
        Kind(
            "llama", "modernbert", _json_alone("modernbert", vocabularies.llama_tokenizer_json, LLAMA_ROLES),
            {"class": alone, "roles": NAMED_ROLES, "other": OTHER}
            | {name: BYTE_BPE_TEXT[name] for name in ("space", "cut")},
        ),
        Kind(
            "gemma", "modernbert", _json_alone("modernbert", vocabularies.gemma_tokenizer_json, GEMMA_ROLES),
            {"class": gemma} | _ALONE_COMMON | _ALONE_TEXT,
        ),
    ]  # fmt: skip


def _piece_kinds() -> list[Kind]:
    kinds = []
    for name, family, model_type, class_name, kind, file, roles, byte_fallback in (
        ("albert", "albert", "albert", "AlbertTokenizer", "albert", "spiece.model", ALBERT_ROLES, False),
        ("xlm-roberta", "xlm-roberta", "xlm-roberta", "XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model",
         ROBERTA_ROLES, False),
        ("camembert", "camembert", "camembert", "CamembertTokenizer", "camembert", "sentencepiece.bpe.model",
         ROBERTA_ROLES, False),
        ("bigbird", "bigbird", "big_bird", "BigBirdTokenizer", "bigbird", "spiece.model", ALBERT_ROLES, False),
        ("deberta-v2", "deberta-v2", "deberta-v2", "DebertaV2Tokenizer", "deberta-v2", "spm.model", BERT_ROLES, False),
        ("deberta-v3", "deberta-v3", "deberta-v2", "DebertaV2Tokenizer", "deberta-v2", "spm.model", BERT_ROLES, True),
    ):  # fmt: skip
        own = classes(class_name, f"{class_name}Fast", "PreTrainedTokenizerFast", None)
        rows = {"class": own} | _PIECES_COMMON | PIECES_TEXT
        start = _pieces(model_type, class_name, kind, file, roles, byte_fallback)
        kinds.append(Kind(name, family, start, rows))
    alone = classes("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer")
    start = _json_alone("modernbert", vocabularies.japanese_tokenizer_json, JAPANESE_ROLES)
    rows = {"class": alone, "roles": NAMED_ROLES, "other": OTHER} | _ALONE_TEXT
    kinds.append(Kind("japanese", "modernbert", start, rows))
    return kinds


def _with_added_words(kind: Kind) -> Kind:
    """Four folders of a kind that add tokens after the vocabulary, which may be refused."""
    first, *others = kind.choices["class"]
    own = {name: kind.choices["class"][name] for name in (first, others[-1])}
    rows = {"added": ADDED_BEHIND, "class": own, "roles": {"plain": roles_as_text}}
    if "files" in kind.choices:
        rows["files"] = {name: FILES[name] for name in ("json", "legacy")}
    return Kind(f"{kind.name}-behind", kind.family, kind.start, rows)


def _without_json(draft: Draft) -> None:
    draft.whole = None
    draft.refusals.append("its class reads only tokenizer.json, which it lacks")


def _unusable(kind: Kind) -> list[Kind]:
    """A folder without names of special tokens, and if it has legacy files, one without the file of its class."""
    rows: dict[str, Mapping[str, Choice]] = {"class": classes("TokenizersBackend"), "files": JSON_FILES}
    kinds = [Kind(kind.name, kind.family, kind.start, rows | {"roles": {"nameless": roles_nowhere}})]
    if kind.start().legacy:
        kinds.append(Kind(kind.name, kind.family, kind.start, rows | {"files": {"no-json": _without_json}}))
    return kinds


def _split_by_python() -> Kind:
    """BertJapaneseTokenizer splits words with Python code or MeCab, which no artefact of `tokenizers` can express."""

    def code(**options: Any) -> Choice:
        def choose(draft: Draft) -> None:
            draft.config |= options
            draft.refusals.append("BertJapaneseTokenizer cuts words by Python code")

        return choose

    words = {
        "basic": code(word_tokenizer_type="basic"),
        "mecab": code(word_tokenizer_type="mecab", mecab_kwargs={"mecab_dic": "unidic_lite"}),
        "characters": code(word_tokenizer_type="basic", subword_tokenizer_type="character"),
    }
    rows = {"class": classes("BertJapaneseTokenizer"), "files": {"legacy": legacy_only}, "words": words}
    return Kind("bert-japanese", "bert", _wordpiece("bert"), rows | {"roles": {"plain": roles_as_text}})


def kinds() -> list[Kind]:
    """All kinds, in an order that never changes."""
    main = [*_wordpiece_kinds(), *_byte_bpe_kinds(), *_piece_kinds()]
    behind = [_with_added_words(kind) for kind in main if "added" in kind.choices]
    unusable = [variant for kind in main if kind.name in ("bert", "roberta", "gemma") for variant in _unusable(kind)]
    return [*main, *behind, *unusable, _split_by_python()]


def folder_specs() -> list[FolderSpec]:
    """Every folder of the matrix."""
    return [spec for kind in kinds() for spec in kind.folders()]


# 5. How transformers reads them


@contextlib.contextmanager
def readable_pieces() -> Iterator[None]:
    """Let transformers read SentencePiece models if sentencepiece's own messages need a newer protobuf."""
    with mock.patch("transformers.convert_slow_tokenizer.import_protobuf", lambda *_: vocabularies.protobuf_module()):
        yield


def reference_tokenizer(folder: Path) -> Any:
    """`AutoTokenizer.from_pretrained`."""
    import transformers

    with readable_pieces():
        return transformers.AutoTokenizer.from_pretrained(folder)


def reference_pieces(draft: Draft) -> Callable[[Sequence[str]], list[list[int]]] | None:
    """sentencepiece's encoder for a folder with only a model that falls back to bytes; None for other folders.

    transformers 5.24 builds DebertaV2Tokenizer from such a model without the bytes (an unknown character is [UNK]) and
    without the model's normalisation, while the published models have learned sentencepiece's ids.
    """
    if draft.whole is not None or [*draft.legacy] != ["spm.model"]:
        return None
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=draft.legacy["spm.model"])
    if not vocabularies.protobuf_module().ModelProto.FromString(draft.legacy["spm.model"]).trainer_spec.byte_fallback:
        return None
    lower = normalizers.Lowercase() if (draft.config or {}).get("do_lower_case") else normalizers.Sequence([])
    return lambda texts: model.encode([lower.normalize_str(text) for text in texts])


def reference_ids(tokenizer: Any, texts: Sequence[str], forged: bool = False) -> list[list[int]]:
    """transformers' ids without special tokens; with `forged`, special tokens in text are plain text.

    With `split_special_tokens=True` a Unigram model still finds the pieces of special tokens in text, so `forged`
    encodes with a copy of the tokenizer whose five tokens with a role have names that no text contains.
    """
    if not forged:
        return tokenizer([*texts], add_special_tokens=False, verbose=False)["input_ids"]
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    keys = ("pad", "unk", "cls", "sep", "mask", *(["bos"] if tokenizer.cls_token is None else []))
    keys += ("eos",) if tokenizer.sep_token is None else ()
    usual = {"pad": ("[PAD]", "<pad>"), "unk": ("[UNK]", "<unk>"), "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>")}
    usual |= {"mask": ("[MASK]", "<mask>"), "bos": ("<s>", "<bos>"), "eos": ("</s>", "<eos>")}
    known = tokenizer.get_vocab()
    tokens = {
        key: getattr(tokenizer, f"{key}_token") or next(filter(known.__contains__, usual[key]), "") for key in keys
    }
    names = {str(token): f"\U0010fffe{key}" for key, token in tokens.items()}
    model, added = document["model"], document["added_tokens"]
    entries = model["vocab"]
    if isinstance(entries, dict):
        model["vocab"] = {names.get(name, name): number for name, number in entries.items()}
        known = {*entries}
    else:
        model["vocab"] = [[names.get(name, name), score] for name, score in entries]
        known = {name for name, _ in entries}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    document["added_tokens"] = [
        token | {"content": names.get(token["content"], token["content"])}
        for token in added
        if not (token["content"] in names and token["content"] in known)
    ]
    backend = Tokenizer.from_str(json.dumps(document))
    backend.no_truncation()
    return [encoding.ids for encoding in backend.encode_batch([*texts], add_special_tokens=False)]
