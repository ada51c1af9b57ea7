"""Folders of widely used encoders: their real class at a tiny size, and their real kind of tokenizer.

The Japanese encoders here have ModernBERT's class and a Unigram with byte fallback in `tokenizer.json`.
BertJapaneseTokenizer splits words by MeCab, which no `tokenizer.json` can express; such a folder is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from their_families import small
from tokenizer_folders import Draft, kinds, reference_tokenizer
from tokenizers import AddedToken, Tokenizer

from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.names import architecture
from bertjax.families.registry import FAMILIES


@dataclass(frozen=True)
class Encoder:
    """A published encoder.

    Attributes:
        kind: The kind of its tokenizer in the matrix of tokenizers.
        family: Its family in bertjax.
        files: "json" for only `tokenizer.json`, "legacy" for only the files of the vocabulary.
        text: A text with one [MASK].
    """

    name: str
    kind: str
    family: str
    files: str
    text: str

    def __str__(self) -> str:
        return self.name


_SIZE = 1024  # of vocabularies in `tokenizer.json`
ENCODERS = (
    Encoder("ModernBERT", "modernbert", "modernbert", "json", "The museum [MASK] in 1877, don't it?"),
    Encoder("mmBERT", "gemma", "modernbert", "json", "東京は[MASK]の首都である。"),
    Encoder("EuroBERT", "llama", "eurobert", "json", "Die größte [MASK] ist 12345 Euro."),
    Encoder("DeBERTa-v3", "deberta-v3", "deberta-v2", "legacy", "The museum [MASK] in 1877."),
    Encoder("XLM-R", "xlm-roberta", "xlm-roberta", "legacy", "Москва [MASK] России."),
    Encoder("XLM-R-saved", "xlm-roberta", "xlm-roberta", "json", "서울은 [MASK] 수도이다."),
    Encoder("ModernBERT-ja", "japanese", "modernbert", "json", "東京は[MASK]の首都である。"),
)


def make_encoder(encoder: Encoder, folder: Path) -> Path:
    """Write a folder with random weights, by transformers' own classes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    draft = _tokenizer(encoder)
    draft.write(folder)
    tokenizer = reference_tokenizer(folder)
    special = {
        "pad": tokenizer.pad_token_id,
        "cls": tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id,
        "sep": tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id,
    }
    config = small(encoder.family, vocab_size=len(tokenizer), max_position_embeddings=64)
    torch.manual_seed(0)
    values = to_config_json(config, special)
    network = getattr(transformers, architecture(config))(transformers.AutoConfig.for_model(**values))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    network.eval().save_pretrained(folder)
    # As published, the config does not name the tokenizer's class.
    saved = json.loads((folder / "config.json").read_text())
    assert saved["model_type"] == draft.model["model_type"] and saved["vocab_size"] == len(tokenizer)
    return folder


def _tokenizer(encoder: Encoder) -> Draft:
    kind = next(kind for kind in kinds() if kind.name == encoder.kind)
    draft = kind.start()
    draft.model["model_type"] = FAMILIES[encoder.family].huggingface.model_type  # a kind of tokenizer serves several
    for choice in ("class", "roles"):
        next(iter(kind.choices[choice].values()))(draft)
    if encoder.files == "json":
        draft.legacy, draft.more = {}, {}
        draft.whole = _with_reserved_tokens(draft.whole)
    else:
        draft.whole = None
    return draft


def _with_reserved_tokens(whole: dict[str, Any]) -> dict[str, Any]:
    """Fill up the vocabulary with reserved tokens, as in Llama's and Gemma's; equal sizes also compile once."""
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    missing = _SIZE - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(f"<|reserved_{number}|>", normalized=False) for number in range(missing)])
    return json.loads(tokenizer.to_str())
