"""A BERT of another system, read into ours: what every importer returns, and what it may leave to us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.exporter import CONFIG_FIELDS
from bertjax.convert.huggingface.names import from_huggingface_tensors, their_shapes, to_huggingface_tensors
from bertjax.model.network import Params, PretrainingNetwork, head_of, init_params
from bertjax.tokenization.tokenizer import Tokenizer

# What a checkpoint may lack as a whole: an encoder is often published without the heads it was pretrained with.
_PREFIXES = {
    "pooler": "bert.pooler.",
    "MLM head": "cls.predictions.",
    "NSP head": "cls.seq_relationship.",
}
# The same as parameters of ours are named.
MODULES = {"pooler": "pooler", "MLM head": "mlm_head", "NSP head": "nsp_head"}
_BY_TOKEN = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
_LARGEST = 1 << 20  # of any size in a config


@dataclass(frozen=True)
class ForeignModel:
    """Weights, vocabulary and shape of a model that was read."""

    origin: str  # kind:path
    config: ModelConfig
    tokenizer: Tokenizer
    params: Params  # NumPy float32, layers stacked, the vocabulary padded
    drawn: tuple[str, ...]  # modules that the source lacks and that were drawn from seed 0
    notes: tuple[str, ...]
    kind: str = ""  # of the task it was fine-tuned for
    labels: tuple[str, ...] = ()  # of that task
    null_threshold: float | None = None  # of questions that a text may not answer, as TaskConfig has it


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError if it is missing or is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a JSON object")
    return values


def model_config(values: Mapping[str, Any], activations: Mapping[str, str], where: Path) -> ModelConfig:
    """Our ModelConfig from a `config.json` or `bert_config.json`; keys it does not have take BERT's defaults.

    `activations` has their names of the activation and ours. Raises ValueError for what is no BERT of ours.
    """
    wanted = {"model_type": "bert", "position_embedding_type": "absolute", "add_cross_attention": False}
    for key, value in wanted.items():
        if values.get(key, value) != value:
            raise ValueError(f"{where}: {key} is {values[key]!r}; only BERTs with {key} {value!r} can be imported")
    found: dict[str, Any] = {}
    defaults = {key: getattr(ModelConfig(), key) for key in CONFIG_FIELDS if key != "vocab_size"}
    for key, default in defaults.items():
        value = values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
            raise ValueError(f"{where}: {key} is {value!r}, which is not a sensible number")
        found[key] = type(default)(value)
    if min(value for value in found.values() if type(value) is int) < 1:
        raise ValueError(f"{where}: every size must be at least 1")
    if found["hidden_size"] % found["num_attention_heads"]:
        raise ValueError(f"{where}: hidden_size {found['hidden_size']} is not divisible by its heads")
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in activations:
        raise ValueError(f"{where}: hidden_act is {activation!r}; bertjax has {', '.join(activations)}")
    return ModelConfig(**found, hidden_act=activations[activation], causal=bool(values.get("is_decoder", False)))


def foreign_model(
    origin: str,
    config: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, np.ndarray],
    notes: Sequence[str] = (),
) -> ForeignModel:
    """A model from tensors under the names of transformers, and a config that may not know the vocabulary's size yet.

    A whole module that is missing is drawn as for a new model; rows of the tables beyond the vocabulary are left out.
    Raises ValueError for tensors that are missing, of another shape, not of floating point, or not finite.
    """
    rows = _rows_of_the_vocabulary(tensors, tokenizer, origin)
    notes = list(notes)
    if rows > tokenizer.vocab_size:
        notes.append(f"{rows - tokenizer.vocab_size} rows of the word table beyond the vocabulary were left out")
    config = replace(config, vocab_size=tokenizer.vocab_size)
    wanted = their_shapes(config)
    given = {
        name: array[: tokenizer.vocab_size] if name in _BY_TOKEN and array.shape[:1] == (rows,) else array
        for name, array in tensors.items()
    }
    for name, array in given.items():
        _check(name, array, wanted, origin)
    drawn = tuple(
        module
        for module, prefix in _PREFIXES.items()
        if any(name.startswith(prefix) for name in wanted) and not any(name.startswith(prefix) for name in given)
    )
    heads = tuple(_PREFIXES[module] for module in drawn)
    missing = sorted(name for name in wanted.keys() - given.keys() if not name.startswith(heads))
    if missing:
        raise ValueError(f"{origin}: missing {', '.join(missing[:5])}; is the config that of these weights?")
    if drawn:
        fresh = to_huggingface_tensors(jax.jit(lambda: _fresh(config, drawn))(), config)
        given |= {name: x for name, x in fresh.items() if name.startswith(heads)}
    try:
        params = from_huggingface_tensors(given, config)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    return ForeignModel(origin, config, tokenizer, params, drawn, tuple(notes))


def for_pretraining(model: ForeignModel) -> ForeignModel:
    """The model without the head of a task; what it then lacks of a BERT for pretraining is drawn from seed 0."""
    if not head_of(model.config).of_task:
        return model
    config = replace(model.config, head=PretrainingNetwork.name, num_labels=0, features=(), lstm_size=0)
    lacking = tuple(module for module, name in MODULES.items() if name not in model.params)
    fresh = jax.device_get(jax.jit(lambda: _fresh(config, lacking))())
    params = {name: model.params.get(name, part) for name, part in fresh.items()}
    return replace(model, config=config, params=params, drawn=(*model.drawn, *lacking), kind="", labels=())


def _fresh(config: ModelConfig, modules: Sequence[str]) -> Params:
    """Parameters of a new model, of these modules alone; the others are zero, since to draw them takes seconds."""
    names = [MODULES[module] for module in modules]
    params = init_params(config, jax.random.key(0))
    return {name: part if name in names else jax.tree.map(jnp.zeros_like, part) for name, part in params.items()}


def _rows_of_the_vocabulary(tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer, where: str) -> int:
    table = tensors.get(_BY_TOKEN[0])
    if table is None or table.ndim != 2:
        raise ValueError(f"{where}: it has no table of word embeddings; is it a BERT?")
    if len(table) < tokenizer.vocab_size:
        raise ValueError(
            f"{where}: the vocabulary has {tokenizer.vocab_size:,} tokens and the table of word embeddings "
            f"{len(table):,} rows; they are not of one model"
        )
    return len(table)


def _check(name: str, array: np.ndarray, wanted: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Before anything is drawn for a config that the tensors may contradict."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{where}: tensor {name} has dtype {array.dtype}; weights are floating point")
    if name in wanted and array.shape != wanted[name]:
        raise ValueError(f"{where}: tensor {name} has shape {array.shape}; by the config it is {wanted[name]}")
    if not np.isfinite(array.astype(np.float32)).all():
        raise ValueError(f"{where}: tensor {name} has NaN or infinity in it")
