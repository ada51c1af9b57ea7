"""A trained model as an object: what `bertjax.load` gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Unpack, overload

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, EncodingOptions, TextEncoder, require_trained
from bertjax.embed.parts import LengthCounts
from bertjax.finetune.predict import Input, Output, TaskModel
from bertjax.interpret import fill_mask as masks
from bertjax.interpret.fill_mask import Guess, Text
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.run_directory import TrainedModel


class LoadedModel:
    """A model that turns texts into vectors, fills masks, and does what it was fine-tuned for.

    `counts` tells of the texts of the last `encode`: how many were long, and what became of them.
    """

    def __init__(self, model: TrainedModel, untrained: Sequence[str] = ()) -> None:
        """Take a model that was read, whose `untrained` modules are random and so refused."""
        self._model, self._untrained = model, tuple(untrained)
        self._encoder: TextEncoder | None = None
        self._task: TaskModel | None = None
        self.counts = LengthCounts()

    def __repr__(self) -> str:
        net = self.config
        return f"<BERT of {net.num_hidden_layers} layers, width {net.hidden_size}, from {self._model.directory}>"

    @property
    def config(self) -> ModelConfig:
        """The network's sizes."""
        return self._model.config.model

    @property
    def tokenizer(self) -> Tokenizer:
        """How text is cut into tokens."""
        return self._model.tokenizer

    @property
    def max_length(self) -> int:
        """Tokens, special ones included, of the longest rows that it was trained on."""
        return self._model.max_length

    @overload
    def encode(self, texts: str, **options: Unpack[EncodingOptions]) -> np.ndarray: ...

    @overload
    def encode(self, texts: Sequence[str], **options: Unpack[EncodingOptions]) -> np.ndarray | list[np.ndarray]: ...

    def encode(self, texts: str | Sequence[str], **options: Unpack[EncodingOptions]) -> np.ndarray | list[np.ndarray]:
        """Vectors of texts, float32 [texts, D]; of one text that is no list, [D].

        The options are the fields of `bertjax.embed.encoder.Encoding`: `pooling` mean, cls, pooler, max; `layer` last,
        a number (0 is the embeddings), sum4, concat4; `normalize`; `long` truncate, split; `max_length`; `dtype`;
        `batch_tokens`. With `pooling="none"` a text is a matrix, a row for each token of [CLS] text [SEP]; the result
        is then a list. Warns of texts that were truncated. Raises ValueError for options that the model does not have,
        and for a text with a lone surrogate.
        """
        encoding = Encoding(**options)
        require_trained(encoding, self._untrained, str(self._model.directory))
        if self._encoder is None or self._encoder.encoding != encoding:
            self._encoder = TextEncoder(self._model, encoding)
        encoder, self.counts = self._encoder, LengthCounts()
        encoder.counts = self.counts
        found = [embedding.vectors for embedding in encoder.encode([texts] if isinstance(texts, str) else texts)]
        if self.counts.truncated:
            warnings.warn(self.counts.told(encoder.max_length)[0], stacklevel=2)
        if isinstance(texts, str):
            return found[0]
        if encoding.pooling == "none":
            return found
        return np.stack(found) if found else np.empty((0, encoder.width), np.float32)

    @overload
    def fill_mask(self, texts: str, top: int = 5) -> list[list[Guess]]: ...

    @overload
    def fill_mask(self, texts: Sequence[Text], top: int = 5) -> list[list[list[Guess]]]: ...

    def fill_mask(self, texts: str | Sequence[Text], top: int = 5) -> list[list[Guess]] | list[list[list[Guess]]]:
        """The `top` likeliest entries, (token, probability) best first, for each [MASK] of a text.

        Of a list, whose items are texts or pairs of texts, a list. Raises ValueError for a text without [MASK] or one
        that is longer than `max_length`, and for a model that never learned to fill masks.
        """
        if "MLM head" in self._untrained:
            raise ValueError(f"{self._model.directory}: it has no MLM head, so that it cannot fill masks")
        found = masks.fill_mask(self._model, [texts] if isinstance(texts, str) else texts, top)
        return found[0] if isinstance(texts, str) else found

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its outputs; empty if it predicts numbers or answers, or was not fine-tuned."""
        return self._model.labels

    @overload
    def predict(self, inputs: str | tuple, null_threshold: float | None = None) -> Output: ...

    @overload
    def predict(self, inputs: list, null_threshold: float | None = None) -> list[Output]: ...

    def predict(self, inputs: Input | list[Input], null_threshold: float | None = None) -> Output | list[Output]:
        """What a fine-tuned model says of an input, which is a text or a tuple; of a list of inputs, a list.

        By what it was fine-tuned for (the results are named tuples of `bertjax.finetune.kinds`):

            classification      a text or a pair of texts    Prediction(label, probability, probabilities)
            regression          a text or a pair of texts    the number
            relevance           (query, passage)             the probability that the passage is relevant
            multiple choice     (start, [end, end, ...])     Choice(place, end, probability, probabilities)
            tagging             a text or a list of words    a list of Tag(word, tag, probability), one for each word
            question answering  (question, text)             Answer(text, probability)

        A list of words is one of the inputs in a list, never all of it: `predict([["Ada", "wrote"]])`. Of a text for
        tagging the words are what stands between spaces, signs apart. A model fine-tuned for `squad2` may find no
        answer, which is ""; with `null_threshold` any may: it is how much better that has to score than the best
        answer. Long texts for tagging and question answering are read in windows; others are truncated, with a warning.
        Raises ValueError for a model that was not fine-tuned, or to vectors, and for an input of another form, naming
        its number.
        """
        task, one = self._fine_tuned(), isinstance(inputs, str | tuple)
        found = task.predict([inputs] if one else inputs, null_threshold)
        for line in task.told():
            warnings.warn(line, stacklevel=2)
        return found[0] if one else found

    def describe(self, texts: Sequence[str], null_threshold: float | None = None) -> list[str]:
        """`predict` for the one input that these texts form, as lines of text."""
        task = self._fine_tuned()
        return task.kind.lines(self.predict([task.kind.input_of(texts)], null_threshold)[0])

    def _fine_tuned(self) -> TaskModel:
        if self._task is None:
            self._task = TaskModel(self._model)
        return self._task


def open_model(source: str) -> LoadedModel:
    """Read a run, `hf:DIR` or `tf1:DIR`. Raises ValueError naming what is missing or damaged."""
    return LoadedModel(*open_source(source))
