"""The interface of an objective, and the networks with which it encodes batches.

Every figure is a pair (sum, weight) until a single division over the global batch, so that it is the same for any
number of devices and microbatches, however unevenly the masks are distributed.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config import Config, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.dropout import fold
from bertjax.model.layer_states import LayerStates, layer_states
from bertjax.training.objectives.baselines import HeldOutFacts

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]
Keys = jax.Array | None  # a dropout key per row, uint32 [B]; None computes without dropout

MODEL = "model"  # the network that is trained, measured and exported
GLOBAL_POSITIONS = "global_positions"  # key of a batch whose task marks tokens; see `make_pattern`
TEACHER = "teacher"  # a frozen network that the model learns from


class _Encoded(NamedTuple):
    """The output of a network, shared by objectives that read the same arrays."""

    network: str
    decodes: bool
    inputs: tuple[jax.Array, jax.Array, jax.Array]
    vectors: jax.Array


class Forward:
    """The networks of a step for one shard's rows; encodes batches for the objectives, the same inputs only once.

    It hides from the objectives whether rows are packed, and the attention backend.
    """

    def __init__(
        self,
        networks: Mapping[str, Any],
        keys: Keys,
        *,
        packed: bool,
        attention: Backend = "xla",
        trained: Sequence[str] = (MODEL,),
        frozen_attention: Mapping[str, Backend] | None = None,
    ) -> None:
        """Take `networks` by name. Those named in `trained` have dropout; the others are frozen.

        `attention` is the backend of all networks that are not in `frozen_attention`.
        """
        self._networks, self._keys, self._packed = networks, keys, packed
        self._attention: Mapping[str, Backend] = {**dict.fromkeys(networks, attention), **(frozen_attention or {})}
        self._trained = trained
        self._encoded: list[_Encoded] = []

    @property
    def model(self) -> Any:
        """The model, with its heads."""
        return self._networks[MODEL]

    def network(self, name: str) -> Any:
        """Another network of the run, such as a frozen teacher. Raises KeyError for an unknown name."""
        return self._networks[name]

    def with_head(self, head: str) -> tuple[str, Any]:
        """(name, network) of the trained network with this head: the model, or one that is trained with it."""
        name = next(name for name in self._trained if head in self._networks[name].heads)
        return name, self._networks[name]

    def __call__(self, batch: Batch, network: str = MODEL, for_mlm: bool = False) -> jax.Array:
        """Encode `input_ids, token_type_ids, sequence_ids`, int32 [B, L], to a vector per token, [B, L, D].

        `for_mlm` returns the input of the MLM head, which differs if the network has an enhanced decoder.
        """
        module = self._networks[network]
        decodes = for_mlm and module.decodes
        inputs = batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"]
        for entry in self._encoded:
            if (entry.network, entry.decodes) == (network, decodes) and all(map(operator.is_, entry.inputs, inputs)):
                return entry.vectors
        keys, attention = self._dropout_keys(network), self._attention[network]
        if decodes:
            vectors = module.decode(*inputs, keys, packed=self._packed, attention=attention)
        else:
            marked = batch.get(GLOBAL_POSITIONS)  # networks without global tokens ignore them
            vectors = module.encode(*inputs, keys, packed=self._packed, attention=attention, global_positions=marked)
        self._encoded.append(_Encoded(network, decodes, inputs, vectors))
        return vectors

    def layer_states(self, batch: Batch, count: int, network: str = MODEL) -> LayerStates:
        """The states of `count` layers of a network; see `bertjax.model.layer_states`."""
        return layer_states(
            self._networks[network],
            batch["input_ids"],
            batch["token_type_ids"],
            batch["sequence_ids"],
            self._dropout_keys(network),
            count=count,
            packed=self._packed,
            attention=self._attention[network],
        )

    def _dropout_keys(self, network: str) -> Keys:
        """Separate keys for each trained network; None for a frozen one, which runs without dropout."""
        if self._keys is None or network not in self._trained:
            return None
        return self._keys if network == MODEL else fold(self._keys, zlib.crc32(network.encode()))


@dataclass(frozen=True)
class Measure:
    """Display names of a held-out figure and of its context-free baseline."""

    figure: str  # of the objective's `figures`
    name: str  # in tables and charts: "MLM loss"
    unit: str  # after the name in a chart: "nats"; empty for a share
    baseline: str  # name of the baseline in the log, after `baseline/`
    baseline_name: str  # in tables and charts: "unigram"
    meaning: str  # explanation of the baseline: "the held-out text's word frequencies"
    clause: str  # part of the report's first sentence, with {value} and, for a loss, {gain} over the baseline
    brief: str = ""  # label on the progress line; empty: the figure is not shown there

    @property
    def title(self) -> str:
        """Name and unit, the title of a chart."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def is_loss(self) -> bool:
        """Whether the figure is a loss in nats (lower is better) and not a share (higher is better)."""
        return self.unit == "nats"

    @property
    def form(self) -> str:
        """The format specification of a value."""
        return ".3f" if self.is_loss else ".1%"


class Unfit(NamedTuple):
    """Why a teacher cannot be used."""

    reason: str  # "its vectors are 768 wide and the model's 312"
    advice: str  # "set model.hidden_size to 768"


@dataclass(frozen=True)
class TeacherRequirements:
    """Requirements of an objective on its frozen teacher."""

    heads: tuple[str, ...] = ()  # modules of the teacher that it uses
    projected: bool = False  # the student's vectors are projected to `model.teacher_width`, unless it is 0
    # (config of the student, config of the teacher) -> why this teacher cannot be used; None if it can
    unfit: Callable[[ModelConfig, ModelConfig], Unfit | None] = lambda student, teacher: None


@dataclass(frozen=True)
class Objective:
    """A training objective: its part of the loss, its figures, and their baselines.

    `weight_key` names the batch array whose sum is the weight of all its figures; `sums(forward, batch, keys)` returns
    its `figures` as float32 scalars, summed over the weighted predictions of this shard's rows. `options(config)`
    returns further keyword arguments for `sums`.
    """

    name: str
    weight_key: str
    sums: Callable[[Forward, Batch, Keys], Sums]
    epsilon: float = 0.0  # added to the weight when dividing
    scale: float = 1.0  # weight of its loss in the total
    figures: tuple[str, ...] = ("loss", "accuracy")
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # further figures: (numerator, denominator)
    heads: tuple[str, ...] = ()  # modules of the network that it uses
    causal: bool = False  # requires left-to-right attention; must be the only objective of its stage
    measures: tuple[Measure, ...] = ()
    teacher: TeacherRequirements | None = None  # None: needs no teacher
    options: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    about: str = ""  # what its head predicts, in the report: "the next sentence (NSP)"
    baselines: Callable[[HeldOutFacts], dict[str, float]] = lambda facts: {}  # by `Measure.baseline`


def classified(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Cross entropy and hits of [..., classes] against int32 [...], weighted and summed."""
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    hits = (logits.argmax(axis=-1) == labels).astype(jnp.float32)
    return {"loss": jnp.sum(nll * weights), "accuracy": jnp.sum(hits * weights)}
