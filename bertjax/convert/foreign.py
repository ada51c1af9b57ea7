"""An imported model in our layout, and the checks that all importers share."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.names import (
    from_huggingface_tensors,
    hf_class,
    left_out,
    tensor_table,
    their_shapes,
    to_huggingface_tensors,
)
from bertjax.families.networks import abstract_network, init_params
from bertjax.families.registry import get_family
from bertjax.model.network import Params
from bertjax.tokenization.tokenizer import Tokenizer


def module_label(module: str) -> str:
    """Readable name of a module: `mlm_head` is MLM head."""
    name, _, kind = module.partition("_")
    return f"{name.upper()} {kind}" if kind else name


@dataclass(frozen=True)
class ForeignModel:
    """Weights, vocabulary and shape of an imported model."""

    origin: str  # kind:path
    config: ModelConfig
    tokenizer: Tokenizer
    params: Params  # NumPy float32, layers stacked, the vocabulary padded
    untrained: tuple[str, ...]  # labels of modules that the source lacks, initialised from seed 0
    notes: tuple[str, ...]
    kind: str = ""  # of the fine-tuning task
    labels: tuple[str, ...] = ()  # of that task
    null_threshold: float | None = None  # for returning no answer, as in TaskConfig

    @property
    def num_parameters(self) -> int:
        """Parameters of the network, without the rows that pad the vocabulary."""
        shapes = abstract_network(replace(self.config, vocab_pad_multiple=1))[1]
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

    @property
    def fills_masks(self) -> bool:
        """Whether it has a trained MLM head and sees both sides of a mask."""
        has_head = "mlm_head" in self.params and module_label("mlm_head") not in self.untrained
        return has_head and not self.config.causal


def foreign_model(
    origin: str,
    config: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, np.ndarray],
    notes: Sequence[str] = (),
    pad_id: int = 0,
) -> ForeignModel:
    """Convert tensors with transformers' names; the config may still lack the size of the vocabulary.

    Initialises modules that are missing as a whole, as for a new model, and drops table rows beyond the vocabulary.
    `pad_id` as in `from_huggingface_tensors`. Raises ValueError for tensors that are missing, have another shape, are
    not floating point, or are not finite.
    """
    # 1. The size of the vocabulary
    notes, size = list(notes), tokenizer.vocab_size
    by_token = [tensor.theirs for tensor in hf_class(config).tensors if tensor.padded]
    words = tensors.get(by_token[0])
    if words is None or words.ndim != 2:
        raise ValueError(f"{origin}: it has no table of word embeddings; is it a BERT?")
    rows = len(words)
    if rows < size:
        raise ValueError(
            f"{origin}: the vocabulary has {size:,} tokens and the table of word embeddings {rows:,} rows; they "
            "belong to different models"
        )
    if rows > size:
        notes.append(f"{rows - size} rows of the word table beyond the vocabulary were left out")
    if config.token_dropout and config.mask_token_id not in (-1, tokenizer.mask_id):
        raise ValueError(
            f"{origin}: mask_token_id is {config.mask_token_id}, and the mask token of the vocabulary is "
            f"{tokenizer.mask_id}; they belong to different models"
        )
    config = tokenizer.fit_model(config)
    tensors = {
        name: array[:size] if name in by_token and array.shape[:1] == (rows,) else array
        for name, array in tensors.items()
    }
    before = get_family(config.family).transformers.rows_before_positions(pad_id)
    if before and config.position_embedding == "learned":
        notes.append(
            f"{before} rows of the position table, up to the padding token's, were left out: no token uses them"
        )

    # 2. Checks, before modules are initialised for a config that the tensors may contradict
    expected_shapes = their_shapes(config, pad_id)
    for name, array in tensors.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{origin}: tensor {name} has dtype {array.dtype}; weights are floating point")
        if array.shape != (shape := expected_shapes.get(name, array.shape)):
            raise ValueError(f"{origin}: tensor {name} has shape {array.shape}; by the config it is {shape}")
        if not np.isfinite(array.astype(np.float32)).all():
            raise ValueError(f"{origin}: tensor {name} contains NaN or infinity")

    # 3. Modules that are missing as a whole: an encoder is often published without the heads of its pretraining
    heads = get_family(config.family).heads
    modules: dict[str, set[str]] = {name: set() for name in left_out(config)}
    for tensor in tensor_table(config):
        if (module := tensor.ours.partition("/")[0]) in heads:
            modules.setdefault(module, set()).add(tensor.theirs)
    untrained = {module: names for module, names in modules.items() if not names & tensors.keys()}
    random = set[str]().union(*untrained.values())
    if missing := sorted(expected_shapes.keys() - tensors.keys() - random):
        raise ValueError(f"{origin}: missing {', '.join(missing[:5])}; does the config belong to these weights?")
    fresh = fresh_modules(config, untrained)
    if random:
        whole = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_network(config)[1]) | fresh
        tensors |= {name: x for name, x in to_huggingface_tensors(whole, config, pad_id).items() if name in random}

    # 4. Our layout
    try:
        params = from_huggingface_tensors(tensors, config, pad_id)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    params |= {module: fresh[module] for module in untrained if module not in params}
    return ForeignModel(origin, config, tokenizer, params, tuple(map(module_label, untrained)), tuple(notes))


def fresh_modules(config: ModelConfig, modules: Collection[str]) -> Params:
    """Initialise these modules from seed 0, as NumPy arrays; initialising the whole network would take seconds."""
    if not modules:
        return {}

    def draw() -> Params:
        return {name: part for name, part in init_params(config, jax.random.key(0)).items() if name in modules}

    return jax.device_get(jax.jit(draw)())
