"""A BERT of another system, read into ours: what every importer returns, and what it may leave to us."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.names import (
    class_of,
    from_huggingface_tensors,
    tensors_of,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.model.families.registry import family_of
from bertjax.model.network import Params, PretrainingNetwork, abstract_network, head_of, init_params
from bertjax.tokenization.tokenizer import Tokenizer

_MLM_HEAD = "mlm_head"


def module_label(module: str) -> str:
    """A module of the network for people: `mlm_head` is MLM head."""
    name, _, kind = module.partition("_")
    return f"{name.upper()} {kind}" if kind else name


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

    @property
    def num_parameters(self) -> int:
        """Parameters of the network, without the rows that pad the vocabulary."""
        shapes = abstract_network(replace(self.config, vocab_pad_multiple=1))[1]
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

    @property
    def fills_masks(self) -> bool:
        """Whether it has a trained MLM head."""
        has_head = _MLM_HEAD in self.params and module_label(_MLM_HEAD) not in self.drawn
        return has_head and not self.config.causal


def foreign_model(
    origin: str,
    config: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, np.ndarray],
    notes: Sequence[str] = (),
    pad_id: int = 0,
) -> ForeignModel:
    """A model from tensors under the names of transformers, and a config that may not know the vocabulary's size yet.

    A whole module that is missing is drawn as for a new model; rows of the tables beyond the vocabulary are left out.
    `pad_id` as in `from_huggingface_tensors`. Raises ValueError for tensors that are missing, of another shape, not of
    floating point, or not finite.
    """
    by_token = [tensor.theirs for tensor in class_of(config).tensors if tensor.padded]
    rows = _rows_of_the_vocabulary(tensors.get(by_token[0]), tokenizer, origin)
    notes = list(notes)
    if rows > tokenizer.vocab_size:
        notes.append(f"{rows - tokenizer.vocab_size} rows of the word table beyond the vocabulary were left out")
    config = replace(config, vocab_size=tokenizer.vocab_size)
    before = family_of(config.family).huggingface.rows_before_positions(pad_id)
    if before:
        notes.append(
            f"{before} rows of the position table, up to that of the padding token, were left out: no token uses them"
        )
    wanted = their_shapes(config, pad_id)
    given = {
        name: array[: tokenizer.vocab_size] if name in by_token and array.shape[:1] == (rows,) else array
        for name, array in tensors.items()
    }
    for name, array in given.items():
        _check(name, array, wanted, origin)
    modules = _modules(config)
    drawn = {module: names for module, names in modules.items() if not names & given.keys()}
    random = set().union(*drawn.values())
    missing = sorted(wanted.keys() - given.keys() - random)
    if missing:
        raise ValueError(f"{origin}: missing {', '.join(missing[:5])}; is the config that of these weights?")
    if drawn:
        fresh = to_huggingface_tensors(jax.jit(lambda: _fresh(config, drawn))(), config, pad_id)
        given |= {name: x for name, x in fresh.items() if name in random}
    try:
        params = from_huggingface_tensors(given, config, pad_id)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    return ForeignModel(origin, config, tokenizer, params, tuple(map(module_label, drawn)), tuple(notes))


def for_pretraining(model: ForeignModel) -> ForeignModel:
    """The model without the head of a task; the modules of pretraining that it then lacks are drawn from seed 0."""
    if not head_of(model.config).of_task:
        return model
    config = replace(model.config, head=PretrainingNetwork.name, num_labels=0, features=(), lstm_size=0)
    lacking = [name for name in family_of(config.family).heads if name not in model.params]
    fresh = jax.device_get(jax.jit(lambda: _fresh(config, lacking))())
    params = {name: model.params.get(name, part) for name, part in fresh.items()}
    drawn = (*model.drawn, *map(module_label, lacking))
    return replace(model, config=config, params=params, drawn=drawn, kind="", labels=())


def _modules(config: ModelConfig) -> dict[str, set[str]]:
    """Modules of the network that a checkpoint may lack as a whole -> their tensors.

    An encoder is often published without the heads it was pretrained with; the head of a task is what it is for.
    """
    heads = family_of(config.family).heads
    found: dict[str, set[str]] = {}
    for tensor in tensors_of(config):
        module = tensor.ours.partition("/")[0]
        if module in heads:
            found.setdefault(module, set()).add(tensor.theirs)
    return found


def _fresh(config: ModelConfig, modules: Collection[str]) -> Params:
    """Parameters of a new model, of these modules alone; the others are zero, since to draw them takes seconds."""
    params = init_params(config, jax.random.key(0))
    return {name: part if name in modules else jax.tree.map(jnp.zeros_like, part) for name, part in params.items()}


def _rows_of_the_vocabulary(table: np.ndarray | None, tokenizer: Tokenizer, where: str) -> int:
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
