"""The files of a tokenizer in a folder of Hugging Face's layout, in both directions.

An exported folder has `tokenizer.json`, which transformers reads; the vocabulary's own files, which everything else
reads; and for XLM-R, CamemBERT and DeBERTa the SentencePiece model in the order that their own tokenizers read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import processors

from bertjax.convert.folder import as_json, read_object
from bertjax.input.layout import Template
from bertjax.model.families.family import Family, HuggingFace
from bertjax.model.families.registry import FAMILIES, family_of
from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import Count, checked
from bertjax.tokenization.byte_level import VOCABULARY_FILE as BYTE_LEVEL_FILE
from bertjax.tokenization.byte_level import ByteLevelBPE, WholeFile
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.piece_order import ends_in_number_and_comma, with_commas_apart
from bertjax.tokenization.sentencepiece import SentencePiece, read_model
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import WordPiece

_WHOLE, _CONFIG, _ADDED = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
_BY_FILE_ALONE = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take all from tokenizer.json
_CUT, _INSIDE = "BertPreTokenizer", "##"
# Of BertTokenizer and BertJapaneseTokenizer: the values by which text is cut as BERT cuts it.
_OF_BERT = {"tokenize_chinese_chars": True, "word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
_NUMBERED = {known.pieces.file for family in FAMILIES.values() if (known := family.huggingface) and known.pieces}
TOKENIZER_FILES = (_WHOLE, _CONFIG, _ADDED, *VOCABULARY_FILES, *COMPANIONS, *sorted(_NUMBERED))


def tokenizer_texts(tokenizer: Tokenizer, max_length: int, family: str) -> dict[str, str | bytes]:
    """The files of a folder from which AutoTokenizer makes the tokenizer: name -> content."""
    known = family_of(family)
    # Positions beyond the trained length exist in the table but have seen no text, so the tokenizer stops before them.
    return _vocabulary_files(tokenizer, known) | {
        _WHOLE: with_template(tokenizer, known.template).to_str(pretty=True) + "\n",
        _CONFIG: as_json(_tokenizer_config(tokenizer, max_length, known.template)),
    }


def with_template(tokenizer: Tokenizer, template: Template) -> tokenizers.Tokenizer:
    """The tokenizer to export, with a family's special tokens around a text or a pair."""
    made = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    first, last = tokenizer.tokens[tokenizer.cls_id], tokenizer.tokens[tokenizer.sep_id]
    between = [f"{last}:0"] * template.separators
    kind = int(template.token_types)
    made.post_processor = processors.TemplateProcessing(
        single=[f"{first}:0", "$A:0", f"{last}:0"],
        pair=[f"{first}:0", "$A:0", *between, f"$B:{kind}", f"{last}:{kind}"],
        special_tokens=[(first, tokenizer.cls_id), (last, tokenizer.sep_id)],
    )
    return made


def _vocabulary_files(tokenizer: Tokenizer, family: Family) -> dict[str, str | bytes]:
    """The vocabulary's own files, and the model in the library's order where the family's tokenizer has another."""
    files: dict[str, str | bytes] = dict(tokenizer.files)
    order = family.huggingface and family.huggingface.pieces
    if order is None or not isinstance(tokenizer, SentencePiece):
        return files
    original = order.original(tokenizer.files[tokenizer.main_file], tokenizer.main_file)
    # A folder with both files would leave open which ids are meant.
    return files if original is None else {order.file: original}


def _tokenizer_config(tokenizer: Tokenizer, max_length: int, template: Template) -> dict[str, Any]:
    """`tokenizer_config.json`: what AutoTokenizer needs in addition to `tokenizer.json`.

    The class is the one that takes everything from `tokenizer.json`; those of the models are made again, by rules of
    their own, from the vocabulary alone.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.rules.lowercase,
        "strip_accents": tokenizer.rules.strip_accents,
        "model_input_names": ["input_ids", *["token_type_ids"] * template.token_types, "attention_mask"],
        "model_max_length": max_length,
        **{f"{role}_token": tokenizer.tokens[number] for role, number in tokenizer.special.items()},
    }


def read_tokenizer(folder: Path, family: str) -> Tokenizer:
    """The vocabulary of a folder (its own files, else the `tokenizer.json` of a WordPiece or BPE) with its rules.

    Raises ValueError if there is none, if the folder adds tokens to it, and for a WordPiece of words that are not cut
    as BERT cuts them.
    """
    known = family_of(family).transformers
    whole, config = (read_object(folder / name) if (folder / name).is_file() else {} for name in (_WHOLE, _CONFIG))
    rules = _rules(whole, config, known.rules, byte_level=(folder / BYTE_LEVEL_FILE).is_file())
    tokenizer = _of_own_files(folder, rules, known, whole) or _of_whole_file(folder, rules, known, whole)
    if isinstance(tokenizer, WordPiece):
        _require_words_of_bert(whole, config, folder)
    _require_all_tokens(tokenizer, whole, folder)
    return tokenizer


def _of_own_files(folder: Path, rules: TextRules, known: HuggingFace, whole: Mapping[str, Any]) -> Tokenizer | None:
    """From the files of the vocabulary itself; None without, and where `tokenizer.json` treats text otherwise."""
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        loaded = load_tokenizer(folder, rules)
        if isinstance(loaded, SentencePiece):
            origin = f"SentencePiece model {folder / loaded.main_file}"
            lowered = with_commas_apart(loaded.files[loaded.main_file], origin)
            cuts_commas = _has_scores_of(whole, lowered, origin) if whole else known.commas_apart
            return SentencePiece(lowered, rules, origin) if cuts_commas else loaded
        return None if isinstance(loaded, ByteLevelBPE) and not _treats_text_as(loaded, whole) else loaded
    if known.pieces is not None and (numbered := folder / known.pieces.file).is_file():
        origin = f"SentencePiece model {numbered}"
        return SentencePiece(known.pieces.numbered(read_whole(numbered), origin), rules, origin)
    return None


def _of_whole_file(folder: Path, rules: TextRules, known: HuggingFace, whole: Mapping[str, Any]) -> Tokenizer:
    """From `tokenizer.json`. Raises ValueError if there is none of a WordPiece or BPE."""
    path, model = folder / _WHOLE, _model(whole)
    if model.get("type") == "BPE":
        # The processing of text is in the file itself.
        return WholeFile(read_whole(path), TextRules(lowercase=False, strip_accents=False), f"tokenizer {path}")
    if model.get("type") != "WordPiece" or "vocab" not in model:
        files = (*VOCABULARY_FILES, *([known.pieces.file] if known.pieces else []))
        raise ValueError(f"hf:{folder}: no {', '.join(files)} and no {_WHOLE} of a WordPiece or BPE; bertjax needs one")
    ids: Mapping[str, int] = checked(model["vocab"], dict[str, Count], f"{path}: model.vocab")
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"{path}: its vocabulary is not numbered from 0 without gaps")
    return WordPiece(tokens, rules, origin=f"vocabulary {path}")


def _model(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model of `tokenizer.json`; empty if it has none."""
    model = whole.get("model")
    return model if isinstance(model, dict) else {}


def _has_scores_of(whole: Mapping[str, Any], pieces: bytes, origin: str) -> bool:
    """Whether `tokenizer.json` has a model's scores for the pieces of numbers and commas, and there are any."""
    vocabulary = _model(whole).get("vocab")
    if not isinstance(vocabulary, list):
        return False
    scores = {entry[0]: entry[1] for entry in vocabulary if isinstance(entry, list) and len(entry) == 2}
    wanted = {one.piece: one.score for one in read_model(pieces, origin).pieces if ends_in_number_and_comma(one.piece)}
    return bool(wanted) and all(
        isinstance(found := scores.get(piece), float) and abs(found - score) < 1 for piece, score in wanted.items()
    )


def _treats_text_as(tokenizer: Tokenizer, whole: Mapping[str, Any]) -> bool:
    """Whether a BPE's `tokenizer.json`, if there is one, normalises and cuts text as a tokenizer does."""
    if _model(whole).get("type") != "BPE":
        return True
    ours = json.loads(tokenizer.backend.to_str())
    of_ids = {"trim_offsets": True}  # changes where a token is said to lie, and no id

    def steps(about: Mapping[str, Any], part: str, inner: str) -> list[dict[str, Any]]:
        return [step | of_ids for step in _steps(about.get(part), inner) if step]

    parts = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
    return all(steps(ours, *part) == steps(whole, *part) for part in parts.items())


def _require_all_tokens(tokenizer: Tokenizer, whole: Mapping[str, Any], folder: Path) -> None:
    """Refuse tokens that a folder has beyond a vocabulary: text would get other ids, and their vectors be lost."""
    listed = whole.get("added_tokens")
    added = {
        token.get("content"): token.get("id")
        for token in (listed if isinstance(listed, list) else [])
        if isinstance(token, dict)
    }
    if (path := folder / _ADDED).is_file():
        added |= read_object(path)
    known = {*tokenizer.tokens}
    for name, number in added.items():
        if name not in known and isinstance(number, int) and number >= tokenizer.vocab_size:
            raise ValueError(
                f"hf:{folder}: {name!r}, number {number}, was added to its vocabulary, which {tokenizer.main_file} has "
                "not: bertjax would give text other ids than the model has learned; use a model without added tokens"
            )


def _require_words_of_bert(whole: Mapping[str, Any], config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a WordPiece whose text is cut into words in another way, as a Japanese one's: its ids would be others."""
    first, *more = _steps(whole.get("normalizer", {"type": "BertNormalizer"}), "normalizers")
    cut = [step.get("type") for step in _steps(whole.get("pre_tokenizer", {"type": _CUT}), "pretokenizers")]
    found = [(_CONFIG, key, config[key]) for key, usual in _OF_BERT.items() if config.get(key) not in (None, usual)]
    found += [
        (_WHOLE, f"normalizer.{key}", False)
        for key in ("clean_text", "handle_chinese_chars")
        if first.get(key) is False
    ]
    if first.get("type") != "BertNormalizer" or any(step.get("type") != "Replace" for step in more):
        found.append((_WHOLE, "normalizer", [step.get("type") for step in (first, *more)]))
    if (mark := _model(whole).get("continuing_subword_prefix", _INSIDE)) != _INSIDE:
        found.append((_WHOLE, "model.continuing_subword_prefix", mark))
    if cut not in ([_CUT], [_CUT, "Split"]):
        found.append((_WHOLE, "pre_tokenizer", cut))
    if found:
        name, key, value = found[0]
        raise ValueError(
            f"hf:{folder}: {key} is {value!r} in its {name}: it does not cut text into words as BERT does, and bertjax "
            "would give its model ids of other words; use a model with BERT's tokenizer"
        )


def _steps(part: object, steps: str) -> list[dict[str, Any]]:
    """The parts of a normalizer or pre-tokenizer, which a sequence of them has as `steps`; one at least."""
    inner = part.get(steps) if isinstance(part, dict) else None
    return [step if isinstance(step, dict) else {} for step in (inner if isinstance(inner, list) else [part])] or [{}]


def _rules(whole: Mapping[str, Any], config: Mapping[str, Any], usual: TextRules, *, byte_level: bool) -> TextRules:
    """Those of tokenizer.json, else of tokenizer_config.json, else the family's; for accents null means "as for case".

    `keep_accents` is AlbertTokenizer's name of the opposite of `strip_accents`.
    """
    normalizer = whole.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        lowercase, strip_accents = normalizer.get("lowercase", True), normalizer.get("strip_accents")
        if config.get("tokenizer_class") not in _BY_FILE_ALONE:  # BERT's own classes set the file right by the config
            lowercase = config.get("do_lower_case", lowercase)
    else:
        lowercase, strip_accents = config.get("do_lower_case", usual.lowercase), config.get("strip_accents")
        if strip_accents is None and "keep_accents" in config:
            strip_accents = not config["keep_accents"]
    cut = whole.get("pre_tokenizer")
    rules = cut if isinstance(cut, dict) else config
    prefix_space = rules.get("add_prefix_space", config.get("add_prefix_space", usual.prefix_space))
    return TextRules(
        bool(lowercase),
        bool(lowercase if strip_accents is None else strip_accents),
        "characters" if [step.get("type") for step in _steps(cut, "pretokenizers")] == [_CUT, "Split"] else "words",
        # Only this kind has the rule; in others the space is part of how they cut.
        bool(prefix_space) if byte_level else True,
        _names_of_special_tokens(config, usual) if byte_level else "<s>",
    )


def _names_of_special_tokens(config: Mapping[str, Any], usual: TextRules) -> Literal["<s>", "[CLS]"]:
    """By the name of the first token, which may be an object with more about it; else the family's."""
    first = config.get("cls_token")
    name = first.get("content") if isinstance(first, dict) else first
    return name if name in ("<s>", "[CLS]") else usual.special_tokens
