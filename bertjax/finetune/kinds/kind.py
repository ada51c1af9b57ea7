"""A kind of task: one object that encodes, learns, predicts and measures its examples.

To add a kind, add a file here with a subclass of `Kind`, and a line in the registry in `bertjax.finetune.kinds`. Other
modules use the object and never compare names of kinds.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import optax

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.finetune.data.tables import Notify
from bertjax.finetune.encoding.global_tokens import Part
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.input.layout import Template
from bertjax.input.lengths import LengthCounts
from bertjax.model.encoder import TaskNetwork
from bertjax.storage.remote import AnyPath
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Batch, Forward, Keys, Objective, Sums, classified
from bertjax.training.objectives.objective import MODEL

Figures = dict[str, float]
Measure = Callable[[np.ndarray], float]  # computes a metric over the examples with these numbers, int64 [n]
# Keys of `TaskConfig` that only some kinds support: options for vectors and for questions.
OPTIONS = ("from_text", "positives", "dims", "temperature")
OPTIONS += ("doc_stride", "max_query", "max_answer", "n_best", "null_threshold")
Read = Callable[[Path, str, Notify], list[Any]]  # (data, split, notify); raises MissingSplitError


@dataclass(frozen=True)
class Recipe:
    """The default hyperparameters of a task."""

    learning_rate: float
    batch_size: int = 32
    epochs: int = 3
    max_length: int = 128  # tokens of a sequence, special ones included
    warmup: float = 0.1  # share of the steps
    learning_rates: tuple[float, ...] = (5e-5, 3e-5, 2e-5)  # tried by --grid


@dataclass(frozen=True)
class Task:
    """A task: its kind, its files, its metrics (higher is better for all) and its recipe."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]  # the first decides which model is best
    recipe: Recipe
    read: Read
    labels: tuple[str, ...] = ()  # as in the files; empty: the labels of the training set
    meanings: tuple[str, ...] = ()  # names of the labels, if the files have numbers
    texts: int = 0  # per input; 0: one or two, or the kind decides
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    averaged: bool = False  # the sets are the same set in several languages, over which figures are averaged
    fixed_columns: bool = False  # options cannot name other columns
    submissions: Mapping[str, str] = field(default_factory=dict)  # test split -> the official file of its predictions
    paper: Mapping[str, float] = field(default_factory=dict)  # system -> published figure in per cent
    read_train: Callable[[Notify], list[Any]] | None = None  # makes the training set, if it is not in a file


@dataclass(frozen=True)
class Splits:
    """The examples of a task by split."""

    train: Sequence[Any]
    dev: Mapping[str, Sequence[Any]]
    test: Mapping[str, Sequence[Any]]
    notes: tuple[str, ...]


class Judged(NamedTuple):
    """A prediction for a labelled example and the right answer, as text."""

    texts: tuple[str, ...]
    answer: str
    prediction: str
    right: bool
    certainty: float  # sort key of examples: a probability or cosine, with `judges_by_distance` a distance


@dataclass(frozen=True)
class Split:
    """A development or test set as rows, with functions of the network's outputs for them."""

    rows: TaskRows
    write: Callable[[Path, np.ndarray], Sequence[Path]]  # writes predictions into a folder, returns the files
    figures: Callable[[np.ndarray], Figures] | None = None  # None without labels
    baselines: Figures = field(default_factory=dict)  # figures of a constant answer, if they are defined
    judge: Callable[[np.ndarray], list[Judged]] | None = None  # for the report; None without labels
    numbers: np.ndarray | None = None  # the labels [n], if the figures are correlations with them


@dataclass(frozen=True)
class TaskContent:
    """The encoded data of a task, for a run."""

    kind: Kind
    labels: tuple[str, ...]  # in the order of the network's outputs
    train: TaskRows
    dev: Mapping[str, Split]  # by name; runs are evaluated on all, and the first decides which is best
    test: Mapping[str, Split]
    metrics: tuple[str, ...]  # names of figures, higher is better; the first decides which model is best
    notes: tuple[str, ...] = ()  # for the user, for example about truncated texts
    example: tuple[str, ...] = ()  # a development example as arguments of `bertjax predict`
    averaged: bool = False  # `Task.averaged`
    measured_by: str = ""  # SHA-256 (hex) of all that determines figures and predictions, except the weights

    @property
    def baselines(self) -> Figures:
        """The figures of a constant answer for each development and test set, if they are defined."""
        prefixes = {name: f"eval/{name}/" if number else "eval/" for number, name in enumerate(self.dev)}
        return {
            baseline_name(f"{prefixes.get(name, f'{name}/')}{metric}"): value
            for name, split in {**self.test, **self.dev}.items()
            for metric, value in split.baselines.items()
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the rows of the training and development sets and of the labels."""
        digest = hashlib.sha256("\n".join((self.kind.name, *self.labels)).encode())
        for rows in (self.train, *(split.rows for split in self.dev.values())):
            for name, array in [("offsets", rows.offsets), *sorted((rows.tokens | rows.rows).items())]:
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass
class Inference:
    """A fine-tuned model on devices, as `Kind.predict` gets it; the kind sets `counts`."""

    task: TaskConfig
    labels: tuple[str, ...]
    tokenizer: Tokenizer
    max_length: int
    template: Template  # of the model's family
    outputs: Callable[[TaskRows], np.ndarray]  # float32, [rows, ...] or [tokens, ...]
    null_threshold: float | None = None  # for questions that may have no answer
    texts: int = 0  # per input; 0: one or two, or the kind decides
    counts: LengthCounts = field(default_factory=LengthCounts)  # of the inputs of the last call


@dataclass(frozen=True)
class Card:
    """Texts for model cards."""

    pipeline: str  # the Hub's name of the task
    does: str  # continues "A model of ..., which"
    use: str  # Python code with transformers or a library based on it
    onnx_inputs: str = '"a text", "another one"'
    onnx_outputs: str = ""  # the meaning of the graph's outputs; {labels} is replaced by the labels


class Kind(ABC):
    """A kind of task. `objective` and `outputs` define the computation, other methods handle the data."""

    name: ClassVar[str]  # also of the objective, and so in its figures: train/NAME_loss
    network: ClassVar[type[TaskNetwork]]  # the encoder with the head
    metrics: ClassVar[tuple[str, ...]]  # of tasks of the user's own files; the first decides which model is best
    card: ClassVar[Card]
    own_task: ClassVar[str] = ""  # name of the task of the user's own files; "" if there is none
    problem_type: ClassVar[str] = ""  # transformers' name of the loss
    figures: ClassVar[tuple[str, ...]] = ("loss", "accuracy")  # of the objective
    packed: ClassVar[bool] = True  # several examples may share a row in training
    global_tokens: ClassVar[Part | None] = None  # the global tokens of a model with `global_tokens` marked
    names_outputs: ClassVar[bool] = False  # the outputs are labels with names
    may_abstain: ClassVar[bool] = False  # a prediction may be no answer, depending on a null threshold
    ranks: ClassVar[bool] = False  # a prediction is the probability that a passage answers a query
    judges_by_distance: ClassVar[bool] = False  # certainties of `judge` are distances, not probabilities
    pair: ClassVar[str] = ""  # the two texts of a sequence, if it always has two
    column: ClassVar[str] = "value"  # name of the column in tables of predictions without fields
    several_hold: ClassVar[bool] = False  # any number of labels may hold for a text, each with its own probability
    learns_predictions: ClassVar[bool] = False  # `logits` and `soft_loss` support distillation
    judged: ClassVar[tuple[str, str]] = ("Wrong, most certain first", "Right, most certain first")  # report's titles
    no_prediction: ClassVar[str] = ""  # why models of this kind do not predict; "" if they do
    unit: ClassVar[str] = "text"  # name of `shared_part` in messages
    most_held_out: ClassVar[int] = 0  # approximate limit of examples held out for development; 0: no limit
    options: ClassVar[tuple[str, ...]] = ()  # the supported ones among `OPTIONS`

    def objective(self, task: TaskConfig) -> Objective:
        """Make the training objective; its sums are weighted by `label_weights` of the batch."""
        return Objective(self.name, "label_weights", partial(self.sums, task), epsilon=0.0, figures=self.figures)

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """Compute `figures` of a batch, float32 [], each summed over the weighted predictions.

        By default these are cross entropy and accuracy of `logits`.
        """
        return classified(self.logits(forward, batch, keys), batch["labels"], batch["label_weights"])

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """Compute a network's predictions, float32: a vector or number for each element of `label_weights`."""
        raise NotImplementedError(f"{self.name} does not learn a teacher's predictions")

    def soft_loss(self, ours: jax.Array, theirs: jax.Array) -> jax.Array:
        """Compute the loss of `logits` against a teacher's, for each element of `label_weights`.

        By default this is the cross entropy of probabilities at temperature 1 (TinyBERT, section 3.1).
        """
        return optax.softmax_cross_entropy(ours, jax.nn.softmax(theirs))

    @abstractmethod
    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Compute the network's outputs for a batch with an example per row: [B, ...] or per token [B, L, ...]."""

    @abstractmethod
    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        """Encode the examples of all splits; `task` has all labels. Raises ValueError naming file and line."""

    @abstractmethod
    def predict(self, model: Inference, inputs: Sequence[Any]) -> list[Any]:
        """Predict for each input. Raises ValueError naming the number, from 1, of a malformed input."""

    def lines(self, prediction: Any) -> list[str]:
        """Format a prediction as lines of text."""
        return [str(prediction)]

    def make_input(self, texts: Sequence[str]) -> Any:
        """Make an input from the texts of a command line."""
        return texts[0] if len(texts) == 1 else tuple(texts)

    def own(self, config: TaskConfig) -> Task:
        """Make the task of the user's own files. Raises ValueError for options that the kind lacks."""
        raise NotImplementedError(f"{self.name}: no task of the user's own files")

    def configured(self, task: Task, config: TaskConfig) -> Task:
        """Apply the options of a config to a named task. Raises ValueError for unsupported options."""
        is_resolved = config.labels in (task.labels, task.meanings)  # `job.resolved` adds the labels
        keys = ("text", "label", "id") if is_resolved else ("text", "label", "id", "labels")
        refuse_options(config, keys, "has files of a fixed layout")
        return task

    def completed(self, config: FinetuneConfig) -> FinetuneConfig:
        """Fill in the options of the task whose defaults depend on the model."""
        return config

    def labels_in(self, train: Sequence[Any]) -> tuple[str, ...]:
        """List the labels of a training set, in the order of outputs. Raises ValueError if there are too few."""
        return ()

    def check_examples(self, examples: Sequence[Any], labels: Sequence[str]) -> None:  # noqa: B027
        """Raise ValueError naming the line of a label that is not in `labels`, unless `labels` is empty."""

    def check_run(self, config: FinetuneConfig, content: TaskContent) -> None:  # noqa: B027
        """Raise ValueError for a config under which this kind cannot be trained."""

    @abstractmethod
    def shared_part(self, example: Any) -> Any:
        """Return the part of an example that the training and the held-out set must not share."""

    def example_labels(self, example: Any) -> tuple[str, ...]:
        """List the labels of an example that the training set must also have."""
        return ()

    def expected_answer(self, example: Any) -> Any:
        """Return the right answer of an example."""
        return example.label

    def load_measures(self, task: Task, name: str, examples: Sequence[Any], folder: AnyPath) -> dict[str, Measure]:
        """Read a run's predictions for a split from `folder`, as functions that compute the task's metrics.

        Raises ValueError for a missing file, or a file of other examples.
        """
        raise ValueError(f"{folder}: a task of the kind {self.name} has no predictions to measure one by one")

    def num_labels(self, labels: int) -> int:
        """Return `model.num_labels` of a network for tasks with `labels` labels."""
        return labels if self.network.labelled else 0

    @property
    def classifies_texts(self) -> bool:
        """Whether each text (not each token) gets a named label."""
        return self.names_outputs and not self.network.per_token

    def headed(self, model: ModelConfig, labels: int) -> ModelConfig:
        """Make the config of a network with this kind's head on the model's encoder, without a generator."""
        head = {"head": self.network.name, "num_labels": self.num_labels(labels)}
        return replace(model, **head, generator_width=0.0, generator_layers=0, embedding_sharing="tied")


def default_labels(count: int) -> tuple[str, ...]:
    """transformers' names for unnamed labels."""
    return tuple(f"LABEL_{number}" for number in range(count))


def baseline_name(figure: str) -> str:
    """Name the baseline of a figure in a run's results."""
    return f"baseline/{figure.removeprefix('eval/')}"


def read_run_file(path: AnyPath) -> str:
    """Read a file of a finished run. Raises ValueError if it does not exist."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; it is written when fine-tuning ends")
    return path.read_bytes().decode("utf-8")  # a carriage return may be part of a word


def mismatch_error(path: AnyPath) -> ValueError:
    """Make the error for a file with predictions for other examples."""
    return ValueError(f"{path}: not one prediction for each example of the task; fine-tune again")


def refuse_options(config: TaskConfig, keys: Sequence[str], why: str) -> None:
    """Raise ValueError if one of these keys of a task is set. The reason `why` continues the task's name."""
    for key in keys:
        if value := getattr(config, key):
            raise ValueError(f"task.{key}={value!r}: {config.name} {why}; leave it out (--{key})")


def shorten(value: Any) -> str:
    """Shorten an input for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def require_pair(value: Any, number: int, what: str) -> tuple[str, str]:
    """Check that an input is a pair of texts. Raises ValueError naming its number if it is not."""
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return value[0], value[1]
    raise ValueError(f"input {number}: {shorten(value)} is not {what}; give a pair of texts")
