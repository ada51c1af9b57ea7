"""Export to a folder that Hugging Face's `from_pretrained` loads: config, weights, tokenizer, model card.

Written with NumPy and safetensors alone; neither torch nor transformers is needed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from bertjax.config import FinetuneConfig, ModelConfig
from bertjax.convert.folder import folder_of, refuse_to_lose, written_whole
from bertjax.convert.huggingface.names import architecture, tensors_of, to_huggingface_tensors
from bertjax.convert.model_card import CARD_FILE, model_card, sha256_of_file
from bertjax.finetune.kinds import kind_of
from bertjax.storage.remote import Place, place_of
from bertjax.tokenization.byte_level import MERGES_FILE
from bertjax.tokenization.loading import VOCABULARY_FILES
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.run_directory import TrainedModel

WEIGHTS_FILE = "model.safetensors"
FILES = ("config.json", WEIGHTS_FILE, "tokenizer.json", "tokenizer_config.json", CARD_FILE)

# "gelu_new" is the tanh form under the name that every version of transformers knows.
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
# A key of ours in `config.json`, for transformers has none that says whether a question may be without an answer.
NULL_THRESHOLD = "bertjax_null_threshold"
_MODEL_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
CONFIG_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)


def export_huggingface(model: TrainedModel, directory: str | Place) -> Place:
    """Write the model into `directory` as what it is of transformers', and return it; the same model, the same bytes.

    The folder appears whole or not at all: it is made beside its place and then renamed. In object storage its model
    card, uploaded last, says that it is whole. An earlier export there is replaced. Raises ValueError if anything else
    is there, or an export that was changed since, and for a network that transformers does not have.
    """
    target = folder_of(directory)
    tensors_of(model.config.model)
    refuse_to_lose(target, (*FILES, *VOCABULARY_FILES, MERGES_FILE), WEIGHTS_FILE)
    with written_whole(target, last=CARD_FILE) as partial:
        _write_files(model, partial)
    return place_of(str(directory))


def huggingface_config(
    model: ModelConfig, pad_token_id: int, kind: str = "", labels: Sequence[str] = ()
) -> dict[str, Any]:
    """`config.json`: transformers' BertConfig, with the vocabulary's true size.

    Of a model that was fine-tuned, `kind` is that of its task and `labels` their names; without names they have
    transformers' (LABEL_0, ...).
    """
    return {
        "architectures": [architecture(model)],
        "model_type": "bert",
        **{name: getattr(model, name) for name in CONFIG_FIELDS},
        "hidden_act": _ACTIVATIONS[model.hidden_act],
        **({"is_decoder": True} if model.causal else {}),
        **_task_fields(model, kind, labels),
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def model_config(model: TrainedModel) -> dict[str, Any]:
    """`config.json` of a model as what it is."""
    values = huggingface_config(model.config.model, model.tokenizer.pad_id, model.kind, model.labels)
    threshold = model.config.task.no_answer_threshold if isinstance(model.config, FinetuneConfig) else None
    return values if threshold is None else values | {NULL_THRESHOLD: threshold}


def _task_fields(model: ModelConfig, kind: str, labels: Sequence[str]) -> dict[str, Any]:
    """What transformers is told of a task: which loss is its own, and the names of labels."""
    if not model.num_labels:
        return {}
    # A number has one output whatever its labels are.
    named, problem = (kind_of(kind).names_outputs, kind_of(kind).problem_type) if kind else (False, "")
    names = list(labels if named else ()) or [f"LABEL_{number}" for number in range(model.num_labels)]
    assert len(names) == model.num_labels, "a name for each label"
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": problem} if problem else {}),
    }


def tokenizer_config(tokenizer: Tokenizer, model_max_length: int) -> dict[str, Any]:
    """`tokenizer_config.json`: what AutoTokenizer needs beside `tokenizer.json`.

    The class is the one that takes everything from `tokenizer.json`: transformers' BertTokenizer is made anew from the
    vocabulary alone, and makes words of over 100 characters [UNK], where google-research/bert and we have 200.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.rules.lowercase,
        "strip_accents": tokenizer.rules.strip_accents,
        "model_input_names": list(_MODEL_INPUTS),
        "model_max_length": model_max_length,
        **{f"{role}_token": tokenizer.tokens[number] for role, number in tokenizer.special.items()},
    }


def tokenizer_texts(tokenizer: Tokenizer, max_length: int) -> dict[str, str | bytes]:
    """The files of a folder from which AutoTokenizer makes the tokenizer: name -> content."""
    # Positions beyond the trained length exist in the table but have seen no text, so the tokenizer stops before them.
    return tokenizer.files | {
        "tokenizer.json": tokenizer.backend.to_str(pretty=True) + "\n",
        "tokenizer_config.json": as_json(tokenizer_config(tokenizer, max_length)),
    }


def write_texts(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder and folders in it, text as UTF-8."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _write_files(model: TrainedModel, folder: Path) -> None:
    config, tokenizer = model.config, model.tokenizer
    # "pt" is what transformers insists on; it says how names and layouts are to be read.
    tensors = to_huggingface_tensors(model.params, config.model)
    if architecture(config.model) == "BertModel":
        tensors = {name.removeprefix("bert."): x for name, x in tensors.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    parameters = sum(tensor.size for tensor in tensors.values())
    write_texts(
        folder,
        {
            "config.json": as_json(model_config(model)),
            **tokenizer_texts(tokenizer, model.max_length),
            CARD_FILE: model_card(model, parameters, sha256_of_file(folder / WEIGHTS_FILE)),
        },
    )
    # safetensors makes its file readable by the owner alone.
    shutil.copymode(folder / "config.json", folder / WEIGHTS_FILE)
    assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, *tokenizer.files))


def as_json(values: Any) -> str:
    """A JSON file's text: the same for the same values."""
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
