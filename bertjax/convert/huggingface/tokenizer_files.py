"""The files of a tokenizer in a folder of Hugging Face's layout, in both directions.

An exported folder has the artefact `tokenizer.json`, which transformers reads, and the vocabulary's own files, which
others read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from bertjax.convert.folder import as_json
from bertjax.families.registry import get_family
from bertjax.input.layout import Template
from bertjax.tokenization import artefact, huggingface
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES
from bertjax.tokenization.tokenizer import Tokenizer, row_template
from bertjax.tokenization.wordpiece import VOCABULARY_FILE

TOKENIZER_FILES = (*dict.fromkeys((*huggingface.FILES, *VOCABULARY_FILES, *COMPANIONS)),)


def tokenizer_texts(tokenizer: Tokenizer, max_length: int, family: str) -> dict[str, str | bytes]:
    """The files from which AutoTokenizer builds the tokenizer: name -> content."""
    definition = get_family(family)
    files: dict[str, str | bytes] = dict(tokenizer.files)
    if tokenizer.is_wordpiece:
        files[VOCABULARY_FILE] = "".join(f"{token}\n" for token in tokenizer.tokens)
    return files | {
        artefact.FILE: with_template(tokenizer, definition.template).to_str(pretty=True) + "\n",
        huggingface.CONFIG_FILE: as_json(_tokenizer_config(tokenizer, max_length, definition.template)),
    }


def with_template(tokenizer: Tokenizer, template: Template) -> tokenizers.Tokenizer:
    """The tokenizer to export, with a family's special tokens around a text or a pair."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.post_processor = row_template(
        (tokenizer.tokens[tokenizer.cls_id], tokenizer.cls_id),
        (tokenizer.tokens[tokenizer.sep_id], tokenizer.sep_id),
        separators=template.separators,
        has_types=template.token_types,
    )
    return backend


def _tokenizer_config(tokenizer: Tokenizer, max_length: int, template: Template) -> dict[str, Any]:
    """`tokenizer_config.json`: what AutoTokenizer needs in addition to `tokenizer.json`.

    The class takes everything from `tokenizer.json`. The classes of single models rebuild the tokenizer from the
    vocabulary by their own rules.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.rules.lowercase,
        "strip_accents": tokenizer.rules.strip_accents,
        "model_input_names": ["input_ids", *["token_type_ids"] * template.token_types, "attention_mask"],
        # Later positions exist in the table but were not trained.
        "model_max_length": max_length,
        **tokenizer.role_tokens,
    }


def read_tokenizer(folder: Path, family: str) -> Tokenizer:
    """Read the tokenizer of a folder by transformers' rules. Raises ValueError as `read_folder` does."""
    return huggingface.read_folder(folder, get_family(family).transformers.model_type)
