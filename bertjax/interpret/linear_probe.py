"""Linear probes: the accuracy of a linear classifier of tags on the vectors of each layer.

The classifier is ridge regression on one-hot tags, whose exact solution needs no learning rate and no seed. It measures
the linearly readable content of a layer (Alain and Bengio 2016; Tenney et al. 2019 for BERT's layers). The baseline is
the most frequent tag of each word form, which needs no model.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from flax import nnx

from bertjax.finetune.batches import padded
from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import tags_in
from bertjax.finetune.encoding.tag_windows import TagCounts, TagWindows, tag_windows
from bertjax.interpret.attention_maps import exact_graphdef
from bertjax.interpret.token_rows import round_up_width
from bertjax.model.network import Params, bind
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import Tokenizer

_TOKENS = 2048  # of a batch
_TEST_PERIOD = 5  # every fifth sentence is measured, the others are fitted
_RIDGE = 1.0  # for vectors scaled to a variance of 1


@dataclass(frozen=True)
class TagProbe:
    """Tagged sentences as rows, divided into fitted and measured words."""

    windows: TagWindows
    labels: tuple[str, ...]
    tags: np.ndarray  # int64 [words]: index of each word's tag
    measured: np.ndarray  # bool [words]
    baseline: float  # accuracy of the most frequent tag of each word form

    @classmethod
    def of(cls, sentences: Sequence[TaggedSentence], tokenizer: Tokenizer, max_length: int) -> TagProbe:
        """Make a probe of tagged sentences; every fifth is measured. Raises ValueError if there are too few."""
        if len(sentences) < _TEST_PERIOD:
            raise ValueError(
                f"{sentences[0].where if sentences else 'tags'}: {len(sentences)} sentences; give "
                f"{_TEST_PERIOD} or more, because every fifth is measured"
            )
        labels = tags_in(sentences)
        numbers = {label: number for number, label in enumerate(labels)}
        tags = np.array([numbers[tag] for sentence in sentences for tag in sentence.tags or ()], np.int64)
        lengths = [len(sentence.words) for sentence in sentences]
        measured = np.repeat(np.arange(len(sentences)) % _TEST_PERIOD == _TEST_PERIOD - 1, lengths)
        words = [word for sentence in sentences for word in sentence.words]
        windows = tag_windows(sentences, labels, tokenizer, max_length, TagCounts())
        return cls(windows, labels, tags, measured, _by_form(words, tags, measured))

    def accuracies(self, model: TrainedModel) -> np.ndarray:
        """The accuracy from the vectors of the embeddings and of each layer: float64 [layers + 1]."""
        vectors = _word_vectors(model, self.windows)
        has_vector = np.zeros(len(self.tags), bool)
        has_vector[self.windows.word[self.windows.word >= 0]] = True
        fitted, measured = has_vector & ~self.measured, has_vector & self.measured
        accuracies = []
        for layer in vectors:
            predicted = classify(layer[fitted], self.tags[fitted], layer[measured], len(self.labels))
            accuracies.append(np.mean(predicted == self.tags[measured]))
        return np.array(accuracies)


def classify(train: np.ndarray, labels: np.ndarray, test: np.ndarray, classes: int) -> np.ndarray:
    """Classify the vectors of `test` by ridge regression on `train` [n, D] and their labels [n]; int64.

    Vectors are centred and scaled by their standard deviation in `train`; the intercept is not shrunk.
    """
    mean, spread = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    scale = np.where(spread > 0, spread, 1.0)
    x, targets = (train - mean) / scale, np.eye(classes)[labels]
    shares = targets.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ (targets - shares))
    return (((test - mean) / scale) @ weights + shares).argmax(axis=1)


def _by_form(words: Sequence[str], tags: np.ndarray, measured: np.ndarray) -> float:
    """The accuracy of each word form's most frequent tag among fitted words; unseen forms get the overall one."""
    pairs = list(zip(words, tags.tolist(), measured.tolist(), strict=True))
    counts: dict[str, Counter[int]] = {}
    overall = Counter(tag for _, tag, test in pairs if not test)
    for word, tag, test in pairs:
        if not test:
            counts.setdefault(word, Counter())[tag] += 1
    best = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in counts.items()}
    fallback = min(overall, key=lambda tag: (-overall[tag], tag))
    return float(np.mean([best.get(word, fallback) == tag for word, tag, test in pairs if test]))


def _word_vectors(model: TrainedModel, windows: TagWindows) -> np.ndarray:
    """The vector of each word's first piece: float32 [layers + 1, words, D]; zeros for words without pieces."""
    layers, width = model.config.model.num_hidden_layers + 1, model.config.model.hidden_size
    words = sum(len(sentence.words) for sentence in windows.sentences)
    vectors = np.zeros((layers, words, width), np.float32)
    graphdef = exact_graphdef(model)
    rows = windows.rows.extended(tokens={"word": windows.word + 1})  # 0 in padding
    # All batches have the same shape, so that the function compiles once.
    length = round_up_width(int(rows.lengths.max()))
    height = min(max(1, _TOKENS // length), len(rows))
    for first in range(0, len(rows), height):
        numbers = np.arange(first, min(first + height, len(rows)))
        chosen = np.pad(numbers, (0, height - len(numbers)), constant_values=-1)
        batch = padded(rows, chosen, length, model.tokenizer.pad_id)
        arrays = (batch[name] for name in ("input_ids", "token_type_ids", "sequence_ids"))
        with jax.default_matmul_precision("highest"):
            states = np.asarray(_states(graphdef, model.params, *arrays))
        word = batch["word"] - 1
        vectors[:, word[word >= 0]] = states[:, word >= 0]
    return vectors


@functools.partial(jax.jit, static_argnames="graphdef")
def _states(
    graphdef: nnx.GraphDef, params: Params, ids: jax.Array, types: jax.Array, sequence_ids: jax.Array
) -> jax.Array:
    """Hidden states after the embeddings and after each layer: float32 [layers + 1, B, L, D]."""
    return bind(graphdef, params).encoder.hidden_states(ids, types, sequence_ids, packed=False)
