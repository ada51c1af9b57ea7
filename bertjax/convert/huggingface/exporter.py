"""Export to a folder that Hugging Face's `from_pretrained` loads: config, weights, tokenizer, model card.

Writing needs only NumPy and safetensors, neither torch nor transformers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config import FinetuneConfig, ModelConfig
from bertjax.convert.folder import (
    Prove,
    as_json,
    refuse_to_lose,
    resolve_folder,
    write_tensors,
    write_texts,
    written_whole,
)
from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.names import (
    architecture,
    bare_names,
    class_with,
    tensor_table,
    to_huggingface_tensors,
)
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, tokenizer_texts
from bertjax.convert.model_card import CARD_FILE, model_card
from bertjax.families.family import Class
from bertjax.families.registry import get_family
from bertjax.finetune.kinds import get_kind
from bertjax.finetune.kinds.kind import default_labels
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath, to_path
from bertjax.storage.sums import SUMS_FILE, sha256_of_file, write_sums

WEIGHTS_FILE = "model.safetensors"
FILES = ("config.json", WEIGHTS_FILE, "tokenizer.json", "tokenizer_config.json", CARD_FILE, SUMS_FILE)

# Our own key in `config.json`: transformers has none for the threshold of no answer.
NULL_THRESHOLD = "bertjax_null_threshold"


def export_huggingface(
    model: TrainedModel, directory: str | AnyPath, head: str = "", prove: Prove | None = None
) -> AnyPath:
    """Write the model into `directory`, and return it; the same model gives the same bytes.

    With `head`, a name of `names.hf_classes`, write the class that has only this head. The folder appears as in
    `written_whole`, with its card last; an earlier export is replaced. Raises ValueError if anything else is there, or
    an export that was changed since, and for a network that transformers does not have.
    """
    target = resolve_folder(directory)
    tensor_table(model.config.model)
    their_class = class_with(model.config.model, head)
    refuse_to_lose(target, (*FILES, *TOKENIZER_FILES), WEIGHTS_FILE)
    with written_whole(target, CARD_FILE, prove) as partial:
        _write_files(model, partial, their_class)
        write_sums(partial)
    return to_path(str(directory))


def huggingface_config(
    model: ModelConfig, special: Mapping[str, int], kind: str = "", labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Write `config.json`, with the unpadded vocabulary size; `special` has ids by role.

    For a fine-tuned model, `kind` is the kind of its task, and `labels` are label names (default LABEL_0, ...).
    """
    values = {"architectures": [architecture(model)]} | to_config_json(model, special)
    if not model.num_labels:
        return values
    # Regression has one output whatever its labels are.
    has_names, problem = (get_kind(kind).names_outputs, get_kind(kind).problem_type) if kind else (False, "")
    names = (labels if has_names else ()) or default_labels(model.num_labels)
    assert len(names) == model.num_labels, "a name for each label"
    return values | {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": problem} if problem else {}),
    }


def model_config(model: TrainedModel) -> dict[str, Any]:
    """Write `config.json` for a model with its head."""
    values = huggingface_config(model.config.model, model.tokenizer.special, model.kind, model.labels)
    threshold = model.config.task.no_answer_threshold if isinstance(model.config, FinetuneConfig) else None
    return values if threshold is None else values | {NULL_THRESHOLD: threshold}


def _write_files(model: TrainedModel, folder: Path, their_class: Class) -> None:
    config, tokenizer = model.config, model.tokenizer
    tensors = to_huggingface_tensors(model.params, config.model, tokenizer.pad_id, their_class)
    parameters = sum(tensor.size for tensor in tensors.values())
    tensors |= get_family(config.model.family).transformers.computed_tensors(config.model)
    if their_class.bare:
        tensors = bare_names(tensors, config.model)
    write_tensors(folder / WEIGHTS_FILE, tensors)
    write_texts(
        folder,
        {
            "config.json": as_json(model_config(model) | {"architectures": [their_class.name]}),
            **tokenizer_texts(tokenizer, model.max_length, config.model.family),
            CARD_FILE: model_card(model, parameters, sha256_of_file(folder / WEIGHTS_FILE), their_class),
        },
    )
    # safetensors makes its file readable by the owner alone.
    shutil.copymode(folder / "config.json", folder / WEIGHTS_FILE)
    assert {path.name for path in folder.iterdir()} <= {*FILES, *TOKENIZER_FILES}
