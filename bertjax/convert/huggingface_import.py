"""A BERT from a folder in Hugging Face's layout. Neither torch nor transformers is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.convert.foreign import ForeignModel, foreign_model, model_config, read_json
from bertjax.convert.safetensors_reader import read_safetensors
from bertjax.convert.torch_reader import read_torch_tensors
from bertjax.tokenization.loading import VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import WordPiece

# "gelu_new" and "gelu_pytorch_tanh" compute the same.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}

_TOKENIZER_FILES = ("tokenizer", "tokenizer_config")

# Their tensors that say nothing of their own: buffers, and the projection that is tied to the word embeddings.
_REDUNDANT = re.compile(r"bert\.embeddings\.(position_ids|token_type_ids)|cls\.predictions\.decoder\.(weight|bias)")
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# Heads of tasks that a fine-tuned model has on top.
_OTHER_HEADS = ("classifier.", "qa_outputs.", "dropout.")


def read_huggingface(directory: str | Path) -> ForeignModel:
    """Read `config.json`, the vocabulary, and `model.safetensors` or `pytorch_model.bin`; nothing in them is executed.

    Loads `BertForPreTraining` and whatever has its encoder: `BertModel`, `BertForMaskedLM`, a fine-tuned model (whose
    own head is left out). Raises ValueError naming the file and what is wrong with it.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"hf:{folder}: no such folder; download the model first, as with `hf download NAME`")
    config = model_config(read_json(folder / "config.json"), ACTIVATIONS, folder / "config.json")
    tokenizer = read_tokenizer(folder)
    tensors, left_out = canonical_names(_read_weights(folder))
    notes = [f"left out, not of a BERT for pretraining: {', '.join(left_out[:5])}"] if left_out else []
    return foreign_model(f"hf:{folder}", config, tokenizer, tensors, notes)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The vocabulary of a folder (its own files, else a WordPiece's `tokenizer.json`) with its rules.

    Raises ValueError if there is none.
    """
    rules = _rules(folder)
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        return load_tokenizer(folder, rules)
    path = folder / "tokenizer.json"
    model = read_json(path).get("model") if path.is_file() else None
    if not isinstance(model, dict) or model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise ValueError(
            f"hf:{folder}: no {', '.join(VOCABULARY_FILES)} and no tokenizer.json of a WordPiece; bertjax needs one"
        )
    ids: Mapping[str, Any] = model["vocab"]
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"{path}: its vocabulary is not numbered from 0 without gaps")
    return WordPiece(tokens, rules, origin=f"vocabulary {path}")


def _rules(folder: Path) -> TextRules:
    """Those of tokenizer.json, else of tokenizer_config.json; for accents null means "as for case"."""
    whole, config = (read_json(p) if (p := folder / f"{name}.json").is_file() else {} for name in _TOKENIZER_FILES)
    normalizer = whole.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        lowercase, strip_accents = normalizer.get("lowercase", True), normalizer.get("strip_accents")
    else:
        lowercase, strip_accents = config.get("do_lower_case", True), config.get("strip_accents")
    cut = whole.get("pre_tokenizer")
    steps = cut.get("pretokenizers") if isinstance(cut, dict) else None
    kinds = [step.get("type") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return TextRules(
        bool(lowercase),
        bool(lowercase if strip_accents is None else strip_accents),
        "characters" if kinds == ["BertPreTokenizer", "Split"] else "words",
    )


def canonical_names(tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """(tensors under BertForPreTraining's names, names left out).

    Knows a bare `BertModel` (no `bert.` in front), and `gamma` and `beta`, as LayerNorm's were called until 2019.
    """
    _require_tied(tensors)
    bare = not any(name.startswith("bert.") for name in tensors)
    found, left_out = {}, []
    for name, array in tensors.items():
        canonical = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", name))
        if bare and canonical.startswith(("embeddings.", "encoder.", "pooler.")):
            canonical = f"bert.{canonical}"
        if _REDUNDANT.fullmatch(canonical):
            continue
        if canonical.startswith(_OTHER_HEADS):
            left_out.append(name)
        else:
            found[canonical] = array
    return found, left_out


def _require_tied(tensors: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if the output weights are stored and are not the word embeddings and the bias."""
    for copy, of in _TIED.items():
        if copy in tensors and of in tensors and not np.array_equal(tensors[copy], tensors[of]):
            raise ValueError(f"{copy} differs from {of}: BERT has one table for both, and so has bertjax")


def _read_weights(folder: Path) -> dict[str, np.ndarray]:
    readers = {"model.safetensors": read_safetensors, "pytorch_model.bin": read_torch_tensors}
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder / name)
    if any((folder / f"{name}.index.json").is_file() for name in readers):
        raise ValueError(
            f"hf:{folder}: its weights are split over several files; save the model in one (max_shard_size)"
        )
    raise ValueError(f"hf:{folder}: no {' and no '.join(readers)} there")
