"""A trained model as an object, as `bertjax.load` returns it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np

from bertjax.config import Config, FinetuneConfig, ModelConfig, from_dict
from bertjax.convert.sentence_transformers.reader import read_text_vectors, with_overrides
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, EncodingOptions, TextCounts, TextEncoder, require_trained
from bertjax.embed.mteb import MtebEncoder
from bertjax.families.registry import get_family
from bertjax.finetune.predict import Input, Output, TaskModel
from bertjax.interpret import fill_mask as masks
from bertjax.interpret.correction import Correction, Examined, default_threshold, examine
from bertjax.interpret.fill_mask import Guess, Text
from bertjax.interpret.pseudo_likelihood import Judgement, PairSet, PseudoLikelihood, judge_pairs, pseudo_likelihoods
from bertjax.interpret.substitutions import Marginal, Variant, score_variants
from bertjax.run.checkpoint import containing_run
from bertjax.run.run_directory import CONFIG_FILE, TrainedModel
from bertjax.storage.json_documents import read_json
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import to_path
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives.registry import choose


class LoadedModel:
    """A model that encodes texts as vectors, fills masks, and performs the task of its fine-tuning.

    `counts` describes the texts of the last `encode`: how many were too long, and were truncated or split.
    """

    def __init__(self, model: TrainedModel, untrained: Sequence[str] = ()) -> None:
        """Wrap a model; methods that need one of the `untrained` modules raise ValueError."""
        self._model, self._untrained = model, tuple(untrained)
        self._read_settings = functools.cache(functools.partial(read_text_vectors, model))
        self._encoder: TextEncoder | None = None
        self._task: TaskModel | None = None
        self.counts = TextCounts()

    def __repr__(self) -> str:
        net, title = self.config, get_family(self.config.family).title
        return f"<{title} of {net.num_hidden_layers} layers, width {net.hidden_size}, from {self._model.directory}>"

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        return self._model.config.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._model.tokenizer

    @property
    def max_length(self) -> int:
        """Length of the longest rows in training, in tokens, including special ones."""
        return self._model.max_length

    @overload
    def encode(self, texts: str, **options: Unpack[EncodingOptions]) -> np.ndarray: ...

    @overload
    def encode(self, texts: Sequence[str], **options: Unpack[EncodingOptions]) -> np.ndarray | list[np.ndarray]: ...

    def encode(self, texts: str | Sequence[str], **options: Unpack[EncodingOptions]) -> np.ndarray | list[np.ndarray]:
        """Encode a list of texts as vectors, float32 [texts, D], or one text as [D].

        The options are the fields of `bertjax.embed.encoder.Encoding`: `pooling` mean, cls, pooler, max; `layer` last,
        a number (0 is the embeddings), sum4, concat4; `normalize`; `long` truncate, split; `max_length`; `dtype`;
        `batch_size` and `batch_tokens`, the most texts and tokens of a batch on a device; `prompt`, put before every
        text. The defaults of a sentence-transformers folder are its own settings. With `pooling="none"` the result is a
        list of matrices, each with a row per token of [CLS] text [SEP]. Warns of truncated texts. Raises ValueError for
        options that the model does not have, for an item that is not a text, and for a text with a lone surrogate.
        """
        items = _texts(texts)
        encoding = Encoding(**with_overrides(self._read_settings("pooling" not in options), options))
        require_trained(encoding.pooling, self._untrained, str(self._model.directory))
        if self._encoder is None or self._encoder.encoding != encoding:
            self._encoder = TextEncoder(self._model, encoding)
        encoder, self.counts = self._encoder, TextCounts()
        encoder.counts = self.counts
        vectors = [embedding.vectors for embedding in encoder.encode(items)]
        if self.counts.truncated:
            warnings.warn(self.counts.notices(encoder.max_length)[0], stacklevel=2)
        if isinstance(texts, str):
            return vectors[0]
        if encoding.pooling == "none":
            return vectors
        return np.stack(vectors) if vectors else np.empty((0, encoder.width), np.float32)

    def as_mteb(
        self, name: str = "", prompts: Mapping[str, str] | None = None, **options: Unpack[EncodingOptions]
    ) -> MtebEncoder:
        """Wrap the model for `mteb.evaluate`; `options` as in `encode`.

        `name`, as ORGANISATION/NAME, identifies the model in mteb's results, by default as bertjax/DIRECTORY. `prompts`
        are put before texts by type, "query" or "document". Raises ValueError as `encode` does.
        """

        def encode(texts: Sequence[str]) -> np.ndarray:
            vectors = self.encode(texts, **options)
            assert isinstance(vectors, np.ndarray), "pooling is not none"
            return vectors

        if options.get("pooling") == "none":
            raise ValueError("pooling='none': mteb compares one vector per text; use mean, cls, max or pooler")
        width = encode(["a"]).shape[1]
        name = name or f"bertjax/{self._model.directory.name}"
        return MtebEncoder(encode, name, options.get("max_length") or self.max_length, width, prompts or {})

    @overload
    def fill_mask(self, texts: str, top: int = 5) -> list[list[Guess]]: ...

    @overload
    def fill_mask(self, texts: list[str] | list[Text] | tuple[Text, ...], top: int = 5) -> list[list[list[Guess]]]: ...

    def fill_mask(self, texts: str | Sequence[Text], top: int = 5) -> list[list[Guess]] | list[list[list[Guess]]]:
        """Predict the `top` likeliest tokens, (token, probability) best first, for each [MASK] of a text.

        A list of texts or pairs of texts gives a list of results. Raises ValueError for any other item, for a text
        without [MASK] or longer than `max_length`, and for a model without a trained MLM head.
        """
        items = _texts(texts, pairs=True)
        self._require_mlm_head("fill masks")
        guesses = masks.fill_mask(self._model, items, top)
        return guesses[0] if isinstance(texts, str) else guesses

    @overload
    def correct(self, texts: str, threshold: float | None = None, masked: bool = False, top: int = 5) -> Correction: ...

    @overload
    def correct(
        self, texts: list[str] | tuple[str, ...], threshold: float | None = None, masked: bool = False, top: int = 5
    ) -> list[Correction]: ...

    def correct(
        self, texts: str | Sequence[str], threshold: float | None = None, masked: bool = False, top: int = 5
    ) -> Correction | list[Correction]:
        """Replace unlikely words of a text, and list them with `top` proposals; for a list of texts, a list.

        A word is replaced where log p(proposal) - log p(word) is above the threshold. With `masked` each word is hidden
        in turn: more exact and slower. Only words of one token are examined. Raises ValueError as `fill_mask` does, and
        for a text with a special token in it.
        """
        if threshold is None:
            threshold = default_threshold(masked)
        examined = self.examine(_texts(texts), masked=masked, top=top)
        corrections = [one.correction(threshold) for one in examined]
        return corrections[0] if isinstance(texts, str) else corrections

    def examine(
        self, texts: str | Sequence[str], *, masked: bool = False, top: int = 5, number_from: int = 1
    ) -> list[Examined]:
        """List the words of each text (or of one) that `correct` examines; see `interpret.correction.examine`."""
        self._require_mlm_head("correct texts")
        return examine(self._model, _texts(texts), masked=masked, top=top, number_from=number_from)

    def score(
        self, texts: str | Sequence[str], variant: str = "original", progress: Progress = no_progress
    ) -> list[PseudoLikelihood]:
        """Compute the pseudo-log-likelihood of each text, or of one; see `interpret.pseudo_likelihood`.

        With `variant` "word-l2r" or "whole-word" other pieces of a hidden token's word are hidden too. Raises
        ValueError for a text without tokens or longer than `max_length`, and for a model without a trained MLM head.
        """
        self._require_mlm_head("score texts")
        return pseudo_likelihoods(self._model, _texts(texts), variant, progress)

    def score_variants(
        self, variants: Sequence[Variant], marginal: Marginal = "masked", progress: Progress = no_progress
    ) -> list[float]:
        """Score variants of sequences, such as `parse_variant("A23V", sequence)`; see `interpret.substitutions`.

        Raises ValueError as `interpret.substitutions.score_variants` does.
        """
        self._require_mlm_head("score variants")
        return score_variants(self._model, variants, marginal, progress)

    def judge_pairs(
        self, sets: Sequence[PairSet], variant: str = "original", progress: Progress = no_progress
    ) -> list[Judgement]:
        """Count the minimal pairs of each set whose good sentence has the higher score. Raises as `score` does."""
        self._require_mlm_head("score texts")
        return judge_pairs(self._model, sets, variant, progress)

    def _require_mlm_head(self, use: str) -> None:
        if "MLM head" in self._untrained:
            source = pretrained_source(self._model.config)
            advice = f"; use {source}, which it was fine-tuned from" if source else ""
            raise ValueError(f"{self._model.directory}: it has no MLM head and cannot {use}{advice}")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the fine-tuning task; empty for regression, question answering and pretrained models."""
        return self._model.labels

    @overload
    def predict(self, inputs: str | tuple, null_threshold: float | None = None) -> Output: ...

    @overload
    def predict(self, inputs: list, null_threshold: float | None = None) -> list[Output]: ...

    def predict(self, inputs: Input | list[Input], null_threshold: float | None = None) -> Output | list[Output]:
        """Run a fine-tuned model on an input, which is a text or a tuple, or on a list of inputs.

        Inputs and outputs by kind of task (outputs are named tuples of `bertjax.finetune.kinds`):

            classification      a text or a pair of texts    Prediction(label, probability, probabilities)
            several labels      a text or a pair of texts    LabelSet(labels, probabilities)
            regression          a text or a pair of texts    the number
            relevance           (query, passage)             the probability that the passage is relevant
            multiple choice     (start, [end, end, ...])     Choice(number, end, probability, probabilities)
            tagging             a text or a list of words    a list of Tag(word, tag, probability), one for each word
            question answering  (question, text)             Answer(text, probability)

        A list of words is one item of a list of inputs: `predict([["Ada", "wrote"]])`. A text for tagging is split at
        spaces and around punctuation. A text without words has no tags, and the answer "". A model fine-tuned for
        `squad2` may return no answer, ""; so may any question answering model with `null_threshold`, where the score of
        no answer exceeds the best answer's by more than the threshold. Long texts for tagging and question answering
        are read in windows; others are truncated, with a warning. Raises ValueError for a model that was not
        fine-tuned, or was fine-tuned for vectors, and for an input of another form, naming its number.
        """
        task = self._fine_tuned()
        if not isinstance(inputs, str | tuple | list):
            raise ValueError(f"inputs={_excerpt(inputs)}: give a text, a tuple, or a list of them")
        batch: list[Any] = inputs if isinstance(inputs, list) else [inputs]
        outputs = task.predict(batch, null_threshold)
        for line in task.notices():
            warnings.warn(line, stacklevel=2)
        return outputs if isinstance(inputs, list) else outputs[0]

    def describe(self, texts: str | Sequence[str], null_threshold: float | None = None) -> list[str]:
        """Call `predict` on one input, made of one or more texts, and format its output as lines of text."""
        task = self._fine_tuned()
        return task.kind.lines(self.predict([task.kind.make_input(_texts(texts))], null_threshold)[0])

    def _fine_tuned(self) -> TaskModel:
        if self._task is None:
            self._task = TaskModel(self._model)
        return self._task


def pretrained_source(config: Config) -> str:
    """Find the model with an MLM head that a run was fine-tuned from, through any runs between; "" if unknown."""
    sources: list[str] = []
    while isinstance(config, FinetuneConfig) and config.init_from and config.init_from not in sources:
        sources.append(config.init_from)
        run = containing_run(to_path(config.init_from))
        try:
            config = from_dict(read_json(run / CONFIG_FILE))
        except (OSError, ValueError):  # moved, or not a run directory
            return ""
    fills_masks = any("mlm_head" in objective.heads for objective in choose(config.training.objectives))
    return sources[-1] if sources and fills_masks else ""


def _texts(value: Any, pairs: bool = False) -> list[Any]:
    """Convert a text or an iterable of texts to a list. Raises ValueError naming the first item that is not a text."""
    expected = "a text, or a list of texts or of pairs of texts" if pairs else "a text or a list of texts"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray | Mapping):
        raise ValueError(f"texts={_excerpt(value)} is {type(value).__name__}; give {expected}")
    texts = list(value)
    for number, text in enumerate(texts, 1):
        is_pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not (pairs and is_pair):
            raise ValueError(f"text {number}: {_excerpt(text)} is {type(text).__name__}; give {expected}")
    return texts


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def open_model(source: str) -> LoadedModel:
    """Read a run, `hf:DIR` or `tf1:DIR`. Raises ValueError naming what is missing or damaged."""
    return LoadedModel(*open_source(source))
