"""Read how a sentence-transformers folder makes vectors of texts: pooling, normalization, row length, prompt.

`modules.json` lists the steps from text to vector. Unsupported steps are refused by name: vectors that silently differ
from the authors' are worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import jax
import numpy as np

from bertjax.convert.huggingface.exporter import WEIGHTS_FILE
from bertjax.convert.huggingface.safetensors_reader import read_safetensors
from bertjax.convert.huggingface.torch_reader import read_torch_tensors
from bertjax.model.pooling import Pooling
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.json_documents import read_json
from bertjax.storage.remote import AnyPath

MODULES_FILE = "modules.json"
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # the first that exists is read, as sentence-transformers does
_LIBRARY_FILE, _TOKENIZER_FILE = "config_sentence_transformers.json", "tokenizer_config.json"
_STEPS = re.compile("Transformer Pooling( Dense)*( Normalize)?")
_INPUT = "sentence_embedding"
_TASK = "feature-extraction"
_TANH = "torch.nn.modules.activation.Tanh"
_POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "max": "max", "mean": "mean"}
_MODE_KEYS = {  # of configs of sentence-transformers before 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ENCODER_ALONE = "choose the encoder's own vectors with pooling (--pooling), or use sentence-transformers"


class TextVectors(NamedTuple):
    """How a folder makes vectors of texts."""

    pooling: Pooling
    normalize: bool
    max_length: int | None  # None: as long as the model allows
    prompt: str  # put before every text


class _Module(TypedDict):
    type: str
    path: str


class _Pooling(TypedDict):
    pooling_mode: NotRequired[str | list[str]]
    include_prompt: NotRequired[bool]


class _Dense(TypedDict):
    activation_function: NotRequired[str]
    module_input_name: NotRequired[str]
    use_residual: NotRequired[bool]


class _Transformer(TypedDict):
    max_seq_length: NotRequired[int | None]
    do_lower_case: NotRequired[bool | None]
    transformer_task: NotRequired[str]


class _Library(TypedDict):
    prompts: NotRequired[dict[str, str] | None]
    default_prompt_name: NotRequired[str | None]


def vector_options(model: TrainedModel, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an encoder: the settings of the model's sentence-transformers folder, if any, updated by `overrides`.

    Raises ValueError naming a step of the folder that is unsupported, unless a pooling is given.
    """
    return with_overrides(read_text_vectors(model, "pooling" not in overrides), overrides)


def with_overrides(settings: TextVectors | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a folder's settings to options of an encoder, updated by `overrides`."""
    options = {} if settings is None else settings._asdict()
    if overrides.get("pooling") == "none" and options:
        options["normalize"] = False  # the step Normalize applies to vectors of texts
    return options | dict(overrides)


def read_text_vectors(model: TrainedModel, own_pooling: bool = True) -> TextVectors | None:
    """Read the settings of a sentence-transformers folder; None for any other folder.

    Without `own_pooling` the folder's pooling and dense layers are left out, and the pooling is the mean. Raises
    ValueError naming the file and the setting that is unsupported.
    """
    root = _root(model.directory)
    if root is None:
        return None
    file = root / MODULES_FILE
    steps = [(step["type"].rpartition(".")[2], step["path"]) for step in _steps(file)]
    steps = [(kind, path) for kind, path in steps if kind != "Dropout"]  # acts only in training
    if not _STEPS.fullmatch(" ".join(kind for kind, _ in steps)):
        raise ValueError(
            f"{file}: the steps {', '.join(kind for kind, _ in steps)} are unsupported (supported: Transformer, "
            "Pooling, Dense, Normalize, in this order); use sentence-transformers"
        )
    (_, encoder_path), (_, pooling_path), *more = steps
    pooling: Pooling = "mean"
    if own_pooling:
        pooling = _pooling(root / pooling_path)
        if dense := [root / path for kind, path in more if kind == "Dense"]:
            pooling = _pooler(model, pooling, dense)
    encoder = root / encoder_path
    settings = _transformer_settings(encoder)
    if (task := settings.get("transformer_task", _TASK)) != _TASK:
        raise ValueError(
            f"{encoder}: transformer_task={task!r} is unsupported (supported: {_TASK}); use sentence-transformers"
        )
    if settings.get("do_lower_case") and not model.tokenizer.rules.lowercase:
        raise ValueError(
            f"{encoder}: do_lower_case=true is unsupported with a cased tokenizer; use sentence-transformers"
        )
    normalize = any(kind == "Normalize" for kind, _ in more)
    return TextVectors(pooling, normalize, _max_length(encoder, settings, model.max_length), _prompt(root))


def _root(folder: AnyPath) -> Path | None:
    """Find the folder with `modules.json`: the model's own or its parent; None if there is none."""
    if not isinstance(folder, Path):
        return None
    if (folder / MODULES_FILE).is_file():
        return folder
    above = folder.resolve().parent
    if (above / MODULES_FILE).is_file() and _steps(above / MODULES_FILE)[0]["path"] == folder.resolve().name:
        return above
    return None


def _steps(path: Path) -> list[_Module]:
    """Read the steps of a `modules.json`. Raises ValueError if there is none, or a path leaves the folder."""
    steps: list[_Module] = read_json(path, list[_Module])
    if not steps:
        raise ValueError(f"{path}: it lists no steps; download the folder again")
    for step in steps:
        if Path(step["path"]).is_absolute() or ".." in Path(step["path"]).parts:
            raise ValueError(f"{path}: the path {step['path']!r} leaves the folder; correct it")
    return steps


def _pooling(folder: Path) -> Pooling:
    """Read the pooling of a Pooling module. Raises ValueError for an unsupported one, and for several at once."""
    path = folder / "config.json"
    config: dict[str, Any] = read_json(path, _Pooling)
    if config.get("include_prompt") is False:
        raise ValueError(f"{path}: include_prompt=false is unsupported; {_ENCODER_ALONE}")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _MODE_KEYS.items() if config.get(key)] or ["mean"]
    names = [modes] if isinstance(modes, str) else modes
    if len(names) != 1 or names[0] not in _POOLINGS:
        raise ValueError(
            f"{path}: the pooling {' + '.join(names)} is unsupported (supported: {', '.join(_POOLINGS)}); "
            f"{_ENCODER_ALONE}"
        )
    return _POOLINGS[names[0]]


def _pooler(model: TrainedModel, pooling: Pooling, folders: list[Path]) -> Pooling:
    """Return the pooling `pooler`, [CLS] through a dense layer. Raises ValueError for any other dense layer."""
    path = folders[0] / "config.json"
    config: dict[str, Any] = read_json(path, _Dense)
    as_pooler = (
        len(folders) == 1
        and pooling == "cls"
        and config.get("activation_function", _TANH) == _TANH
        and config.get("module_input_name", _INPUT) == _INPUT
        and not config.get("use_residual")
    )
    dense = jax.device_get(model.params.get("pooler", {}).get("dense", {}))
    if as_pooler and {*dense} == {"kernel", "bias"}:
        weights = _dense_weights(folders[0])
        ours = {"linear.weight": dense["kernel"].T, "linear.bias": dense["bias"]}
        if ours.keys() == weights.keys() and all(np.array_equal(ours[name], weights[name]) for name in ours):
            return "pooler"
    raise ValueError(
        f"{folders[0]}: a dense layer other than BERT's pooler (Dense, after pooling {pooling}) is unsupported; "
        f"{_ENCODER_ALONE}"
    )


def _dense_weights(folder: Path) -> dict[str, np.ndarray]:
    path = folder / WEIGHTS_FILE
    tensors = read_safetensors(path) if path.is_file() else read_torch_tensors(folder / "pytorch_model.bin")
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def _transformer_settings(folder: Path) -> dict[str, Any]:
    path = next((path for name in _TRANSFORMER_FILES if (path := folder / name).is_file()), None)
    return {} if path is None else read_json(path, _Transformer)


def _max_length(folder: Path, transformer: Mapping[str, Any], longest: int) -> int | None:
    """Tokens per row: `max_seq_length`, or else the tokenizer's, as far as the position table reaches."""
    length = transformer.get("max_seq_length")
    if length is None and (path := folder / _TOKENIZER_FILE).is_file():
        length = read_json(path).get("model_max_length")
    return min(int(length), longest) if isinstance(length, int | float) and length > 0 else None


def _prompt(folder: Path) -> str:
    """Read the default prompt, which is put before every text."""
    path = folder / _LIBRARY_FILE
    config: dict[str, Any] = read_json(path, _Library) if path.is_file() else {}
    name = config.get("default_prompt_name")
    if name is None:
        return ""
    if name not in (prompts := config.get("prompts") or {}):
        raise ValueError(f"{path}: default_prompt_name={name!r} is not one of the prompts; correct it")
    return prompts[name]
