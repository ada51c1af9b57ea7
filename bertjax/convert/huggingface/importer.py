"""A BERT from a folder in Hugging Face's layout. Neither torch nor transformers is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.foreign import ForeignModel, foreign_model, model_config, read_json
from bertjax.convert.huggingface.exporter import NULL_THRESHOLD
from bertjax.convert.huggingface.names import architecture, head_named, tensors_of
from bertjax.convert.huggingface.safetensors_reader import read_safetensors
from bertjax.convert.huggingface.torch_reader import read_torch_tensors
from bertjax.finetune.kinds import KINDS, kind_of
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
# What a folder may hold beside the network that its config names, and what is then left out.
_PARTS = ("bert.pooler.", "cls.", "classifier.", "qa_outputs.", "dropout.")
_MOST_LABELS = 1 << 20


def read_huggingface(directory: str | Path) -> ForeignModel:
    """Read `config.json`, the vocabulary, and `model.safetensors` or `pytorch_model.bin`; nothing in them is executed.

    Loads a fine-tuned model with its head and the names of its labels, if it is of a class and of a kind that
    bertjax has; else as `BertForPreTraining` whatever has its encoder: `BertModel`, `BertForMaskedLM`, other fine-tuned
    models (whose own head is left out). Raises ValueError naming the file and what is wrong with it.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"hf:{folder}: no such folder; download the model first, as with `hf download NAME`")
    where = folder / "config.json"
    values = read_json(where)
    kind, labels = _task(values, where)
    config = replace(model_config(values, ACTIVATIONS, where), **_head(kind, labels))
    tokenizer = read_tokenizer(folder)
    tensors, left_out = canonical_names(_read_weights(folder), config)
    notes = [f"left out, not of a {architecture(config)}: {', '.join(left_out[:5])}"] if left_out else []
    found = foreign_model(f"hf:{folder}", config, tokenizer, tensors, notes)
    of_task = kind_of(kind) if kind else None
    threshold = _null_threshold(values, where) if of_task and of_task.may_abstain else None
    named = labels if of_task and of_task.names_outputs else ()
    return replace(found, kind=kind, labels=named, null_threshold=threshold)


def _head(kind: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """The fields of ModelConfig that a kind of task sets."""
    if not kind:
        return {}
    return {"head": kind_of(kind).network.name, "num_labels": len(labels)}


def _task(values: Mapping[str, Any], where: Path) -> tuple[str, tuple[str, ...]]:
    """(the kind of task of a fine-tuned model, the names of its outputs); of any other model ("", ()).

    Raises ValueError for labels that are not numbered from 0.
    """
    named = values.get("architectures")
    head = head_named(str(named[0])) if isinstance(named, list) and named else None
    if head is None:
        return "", ()
    labels = _labels(values, where) if head.labelled else ()
    # Without a problem_type transformers takes one label for a number.
    problem = values.get("problem_type") or ("regression" if len(labels) == 1 else "single_label_classification")
    for kind in KINDS.values():
        if kind.network is head and kind.problem_type in ("", problem):
            return (kind.name, labels) if kind.num_labels(len(labels)) == len(labels) else ("", ())
    return "", ()


def _null_threshold(values: Mapping[str, Any], where: Path) -> float | None:
    """Of a model that may find no answer, as our export tells; None where nothing tells."""
    threshold = values.get(NULL_THRESHOLD)
    if threshold is not None and type(threshold) not in (int, float):
        raise ValueError(f"{where}: {NULL_THRESHOLD} is {threshold!r}, which is not a number")
    return threshold


def _labels(values: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """The names of labels in the order of their numbers; transformers' own, LABEL_0 and on, where there are none."""
    names = values.get("id2label")
    if names is None:
        count = values.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= _MOST_LABELS:
            raise ValueError(f"{where}: num_labels is {count!r}, which is not a sensible number")
        return tuple(f"LABEL_{number}" for number in range(count))
    wanted = [str(number) for number in range(len(names))] if isinstance(names, dict) else []
    if not wanted or sorted(names) != sorted(wanted) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{where}: id2label does not give each label, from 0 on, a name")
    return tuple(names[number] for number in wanted)


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


def canonical_names(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> tuple[dict[str, np.ndarray], list[str]]:
    """(tensors under the names that a model of `config` has, names left out).

    Knows a bare `BertModel` (no `bert.` in front), and `gamma` and `beta`, as LayerNorm's were called until 2019.
    """
    _require_tied(tensors)
    bare = not any(name.startswith("bert.") for name in tensors)
    own = [tensor.theirs for tensor in tensors_of(config)]
    spare = tuple(part for part in _PARTS if not any(name.startswith(part) for name in own))
    found, left_out = {}, []
    for name, array in tensors.items():
        canonical = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", name))
        if bare and canonical.startswith(("embeddings.", "encoder.", "pooler.")):
            canonical = f"bert.{canonical}"
        if _REDUNDANT.fullmatch(canonical):
            continue
        if canonical.startswith(spare):
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
