"""The files of a tokenizer in a folder of Hugging Face's layout, in both directions.

An exported folder has `tokenizer.json`, which transformers reads; the vocabulary's own files, which everything else
reads; and for XLM-R, CamemBERT and DeBERTa the SentencePiece model in the order that their own tokenizers read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from bertjax.convert.folder import as_json, read_object
from bertjax.input.layout import Template
from bertjax.model.families.family import Family
from bertjax.model.families.registry import FAMILIES, family_of
from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import Count, checked
from bertjax.tokenization.byte_level import VOCABULARY_FILE as BYTE_LEVEL_FILE
from bertjax.tokenization.byte_level import WholeFile
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.sentencepiece import SentencePiece
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import WordPiece

_WHOLE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_CUT = "BertPreTokenizer"
# Of BertTokenizer and BertJapaneseTokenizer: the values by which text is cut as BERT cuts it.
_OF_BERT = {"tokenize_chinese_chars": True, "word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
_NUMBERED = {known.pieces.file for family in FAMILIES.values() if (known := family.huggingface) and known.pieces}
TOKENIZER_FILES = (_WHOLE, _CONFIG, *VOCABULARY_FILES, *COMPANIONS, *sorted(_NUMBERED))


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

    Raises ValueError if there is none, and for a WordPiece of words that are not cut as BERT cuts them.
    """
    known = family_of(family).transformers
    whole, config = (read_object(folder / name) if (folder / name).is_file() else {} for name in (_WHOLE, _CONFIG))
    rules = _rules(whole, config, known.rules, byte_level=(folder / BYTE_LEVEL_FILE).is_file())
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        loaded = load_tokenizer(folder, rules)
        if isinstance(loaded, WordPiece):
            _require_words_of_bert(whole, config, folder)
        return loaded
    if known.pieces is not None and (numbered := folder / known.pieces.file).is_file():
        origin = f"SentencePiece model {numbered}"
        return SentencePiece(known.pieces.numbered(read_whole(numbered), origin), rules, origin)
    path, model = folder / _WHOLE, whole.get("model")
    if isinstance(model, dict) and model.get("type") == "BPE":
        # The processing of text is in the file itself.
        return WholeFile(read_whole(path), TextRules(lowercase=False, strip_accents=False), f"tokenizer {path}")
    if not isinstance(model, dict) or model.get("type") != "WordPiece" or "vocab" not in model:
        files = (*VOCABULARY_FILES, *([known.pieces.file] if known.pieces else []))
        raise ValueError(f"hf:{folder}: no {', '.join(files)} and no {_WHOLE} of a WordPiece or BPE; bertjax needs one")
    ids: Mapping[str, int] = checked(model["vocab"], dict[str, Count], f"{path}: model.vocab")
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"{path}: its vocabulary is not numbered from 0 without gaps")
    _require_words_of_bert(whole, config, folder)
    return WordPiece(tokens, rules, origin=f"vocabulary {path}")


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
        "[CLS]" if byte_level and config.get("cls_token") == "[CLS]" else "<s>",
    )
