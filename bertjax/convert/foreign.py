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
    left_out,
    tensors_of,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.families.networks import abstract_network, init_params
from bertjax.families.registry import family_of
from bertjax.model.network import Params
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
    before = family_of(config.family).transformers.rows_before_positions(pad_id)
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
    random = set[str]().union(*drawn.values())
    missing = sorted(wanted.keys() - given.keys() - random)
    if missing:
        raise ValueError(f"{origin}: missing {', '.join(missing[:5])}; is the config that of these weights?")
    fresh = fresh_modules(config, drawn)
    if random:
        whole = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_network(config)[1]) | fresh
        given |= {name: x for name, x in to_huggingface_tensors(whole, config, pad_id).items() if name in random}
    try:
        params = from_huggingface_tensors(given, config, pad_id)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    params |= {module: fresh[module] for module in drawn if module not in params}
    return ForeignModel(origin, config, tokenizer, params, tuple(map(module_label, drawn)), tuple(notes))


def _modules(config: ModelConfig) -> dict[str, set[str]]:
    """Modules of the network that a checkpoint may lack as a whole -> their tensors.

    An encoder is often published without the heads it was pretrained with; the head of a task is what it is for.
    """
    heads = family_of(config.family).heads
    found: dict[str, set[str]] = {name: set() for name in left_out(config)}
    for tensor in tensors_of(config):
        module = tensor.ours.partition("/")[0]
        if module in heads:
            found.setdefault(module, set()).add(tensor.theirs)
    return found


def fresh_modules(config: ModelConfig, modules: Collection[str]) -> Params:
    """These modules of a new model, drawn from seed 0, as NumPy arrays; to draw the others too would take seconds."""
    if not modules:
        return {}

    def draw() -> Params:
        return {name: part for name, part in init_params(config, jax.random.key(0)).items() if name in modules}

    return jax.device_get(jax.jit(draw)())


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
