"""Read a model from a folder in Hugging Face's layout, without torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.folder import read_object, require_content
from bertjax.convert.foreign import ForeignModel, foreign_model
from bertjax.convert.huggingface.config import from_config_json, read_pad_id
from bertjax.convert.huggingface.exporter import NULL_THRESHOLD
from bertjax.convert.huggingface.names import architecture, head_named, hf_class, tensor_table, their_shapes
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, read_tokenizer
from bertjax.convert.huggingface.weights_files import read_weights
from bertjax.families.family import HuggingFace
from bertjax.families.hf_config import HfConfig
from bertjax.families.registry import get_family
from bertjax.finetune.kinds import KINDS, get_kind
from bertjax.finetune.kinds.kind import default_labels
from bertjax.model.network import HEADS

_RATES = re.compile(r".*rotary_emb(eddings)?\.inv_freq")  # rotary frequencies, which bertjax computes
_BUFFERS = re.compile(r".*embeddings\.(position_ids|token_type_ids)")
# Prefixes from DataParallel, from Lightning and other modules with a field `model`, and from torch.compile.
_WRAPPERS = re.compile(r"((module|model|_orig_mod)\.)*")
_SENTENCE_TRANSFORMERS = "dropout."
_MOST_LABELS = 1 << 20


def read_huggingface(directory: str | Path) -> ForeignModel:
    """Read `config.json`, the vocabulary and the weights (`WEIGHTS_FILES`) without running code from them.

    A fine-tuned model keeps its head and the names of its labels if bertjax has its class and kind of task. Any other
    model with the encoder (`BertModel`, `BertForMaskedLM`, fine-tuned ones without their head) is read as
    `BertForPreTraining`. Raises ValueError naming the file and what is wrong with it.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"hf:{folder}: no such folder")
    file = folder / "config.json"
    values = read_object(file)
    kind, labels = _task(values, file)
    config = from_config_json(values, file)
    if kind:
        config = replace(config, head=get_kind(kind).network.name, num_labels=len(labels))
        constants = get_family(config.family).transformers.head_constants
        HfConfig(values, file).require(constants.get(get_kind(kind).network.transformers, {}))
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            require_content(folder / name)
    tokenizer = read_tokenizer(folder, config.family)
    tensors, left_out = canonical_names(read_weights(folder), config, f"hf:{folder}")
    notes = (
        [f"left out, since {architecture(config)} has no such tensors: {', '.join(left_out[:5])}"] if left_out else []
    )
    model = foreign_model(f"hf:{folder}", config, tokenizer, tensors, notes, read_pad_id(values, file))
    if not kind:
        return model
    threshold = _null_threshold(values, file) if get_kind(kind).may_abstain else None
    names = labels if get_kind(kind).names_outputs else ()
    return replace(model, kind=kind, labels=names, null_threshold=threshold)


def _task(values: Mapping[str, Any], file: Path) -> tuple[str, tuple[str, ...]]:
    """(the kind of task of a fine-tuned model, the names of its outputs), or ("", ()) for any other model.

    Raises ValueError for labels that are not numbered from 0.
    """
    classes = values.get("architectures")
    head = head_named(str(classes[0])) if isinstance(classes, list) and classes else None
    if head is None:
        return "", ()
    labels = _labels(values, file) if head.labelled else ()
    # Without a problem_type, transformers treats a single label as regression.
    problem = values.get("problem_type") or ("regression" if len(labels) == 1 else "single_label_classification")
    for kind in KINDS.values():
        if kind.network is head and kind.problem_type in ("", problem) and kind.num_labels(len(labels)) == len(labels):
            return kind.name, labels
    return "", ()


def _null_threshold(values: Mapping[str, Any], file: Path) -> float | None:
    """Read the threshold for no answer, which our export writes; None if it is missing."""
    threshold = values.get(NULL_THRESHOLD)
    if threshold is not None and type(threshold) not in (int, float):
        raise ValueError(f"{file}: {NULL_THRESHOLD} is {threshold!r}, which is not a number")
    return threshold


def _labels(values: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Read the names of labels in the order of their numbers.

    As in transformers, labels are LABEL_0, LABEL_1, ... if they have no names, or if `num_labels` differs from the
    number of names. Raises ValueError for names that are not numbered from 0.
    """
    value = values.get("id2label")
    names: dict[str, str] = value if isinstance(value, dict) else {}
    numbers = [str(number) for number in range(len(names))]
    is_named = names and {*names} == {*numbers} and all(isinstance(name, str) for name in names.values())
    if value is not None and not is_named:
        raise ValueError(f"{file}: id2label does not give each label, from 0 on, a name")
    count = values.get("num_labels")
    count = (len(numbers) or 2) if count is None else count
    if type(count) is not int or not 1 <= count <= _MOST_LABELS:
        raise ValueError(f"{file}: num_labels is {count!r}, which is not a sensible number")
    return tuple(names[number] for number in numbers) if count == len(numbers) else default_labels(count)


def canonical_names(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, origin: str
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Rename tensors as a model of `config` names them; returns (tensors, names left out).

    Accepts names without the encoder's prefix, as in the encoder's own class, names behind the prefixes of wrappers
    (`_WRAPPERS`), and LayerNorm's `gamma` and `beta`, the names until 2019. Raises ValueError, beginning with `origin`,
    for an encoder behind another prefix.
    """
    hf = get_family(config.family).transformers
    words = next(tensor.theirs for tensor in hf_class(config).tensors if tensor.padded)
    wrapper = _wrapper(tensors, hf.prefix, words.removeprefix(hf.prefix), origin)
    tensors = {name.removeprefix(wrapper): array for name, array in tensors.items()}
    _require_tied(tensors, hf)
    bare = not any(name.startswith(hf.prefix) for name in tensors)
    own = {_part(tensor.theirs, hf) for tensor in tensor_table(config)}
    others = {_part(tensor.theirs, hf) for head in HEADS for tensor in hf_class(replace(config, head=head)).tensors}
    expected_names = {*their_shapes(config)}
    spare = (*(others - own), _SENTENCE_TRANSFORMERS)
    arrays, left_out = {}, []
    for name, array in tensors.items():
        canonical = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", name))
        with_prefix = hf.prefix + canonical
        if bare and (_part(with_prefix, hf) in others or with_prefix.startswith(hf.ignored)):
            canonical = with_prefix
        for old, new in hf.aliases.items():
            canonical = new + canonical.removeprefix(old) if canonical.startswith(old) else canonical
        if _BUFFERS.fullmatch(canonical) or canonical in hf.tied:
            continue
        if (
            canonical.startswith(spare)
            or _RATES.fullmatch(canonical)
            or (canonical.startswith(hf.ignored) and canonical not in expected_names)
        ):
            left_out.append(name)
        else:
            arrays[canonical] = array
    return arrays, left_out


def _wrapper(names: Collection[str], prefix: str, words: str, origin: str) -> str:
    """Find the prefix that a wrapper puts before transformers' names, or "".

    `words` is the name of the word table behind `prefix`.
    """
    tables = [name.removesuffix(words) for name in names if name == words or name.endswith(f".{words}")]
    starts = {start.removesuffix(prefix) for start in tables}
    wrappers = [start for start in starts if _WRAPPERS.fullmatch(start)]
    if "" in starts or not starts:
        return ""
    if len(wrappers) == 1:
        return wrappers[0]
    raise ValueError(
        f"{origin}: the encoder's tensors begin with {min(starts)[:80]!r}, which transformers does not write; "
        f"remove it from their names"
    )


def _part(name: str, hf: HuggingFace) -> str:
    """The part of a network that a tensor belongs to, by the start of its name: `bert.pooler.`, `cls.`."""
    prefix = hf.prefix if name.startswith(hf.prefix) else ""
    return f"{prefix}{name.removeprefix(prefix).partition('.')[0]}."


def _require_tied(tensors: Mapping[str, np.ndarray], hf: HuggingFace) -> None:
    """Raise ValueError if output weights are stored and differ from the word embeddings or the bias."""
    for copy, original in hf.tied.items():
        if copy in tensors and original in tensors and not np.array_equal(tensors[copy], tensors[original]):
            raise ValueError(
                f"{copy} differs from {original}: bertjax has one table for both, as the published models do"
            )
