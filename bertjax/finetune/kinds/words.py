"""Base class of kinds that predict something for each word of a sentence, or letter of a sequence."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import TagColumns
from bertjax.finetune.encoding.tag_windows import TagCounts
from bertjax.finetune.kinds.kind import Inference, Kind, refuse_options, shorten
from bertjax.model.task_heads import TokenNetwork
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Batch

_JOINERS = "\u200c\u200d"  # within words of Persian and Indian languages


class WordKind(Kind):
    """Examples are sentences of words; each word is predicted from its first piece."""

    network, column = TokenNetwork, "tags"
    dropped_clause: ClassVar[str]  # ends the notice about words without a token in the data

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """[B, L, num_labels]."""
        return model.token_logits(hidden, batch["sequence_ids"])

    def shared_part(self, example: TaggedSentence) -> Any:
        return example.words

    def expected_answer(self, example: TaggedSentence) -> Any:
        return example.words, example.tags

    def columns(self, config: TaskConfig) -> TagColumns:
        """Choose the columns of the user's own files. Raises ValueError for options that files of words lack."""
        refuse_options(config, ("id",), "names sentences by number")
        if len(config.text) > 1:
            raise ValueError(f"task.text={config.text}: {config.name} has one column of words; name only that (--text)")
        return TagColumns(config.label, "".join(config.text))

    def predict(self, model: Inference, inputs: Sequence[Any]) -> list[Any]:
        words = [input_words(value, number, model.tokenizer) for number, value in enumerate(inputs, 1)]
        sentences = [TaggedSentence(f"input {n}", str(n), some, None) for n, some in enumerate(words, 1)]
        model.counts = counts = TagCounts()
        if not any(words):
            return [[] for _ in words]
        return self.predict_words(model, sentences, counts)

    @abstractmethod
    def predict_words(self, model: Inference, sentences: Sequence[TaggedSentence], counts: TagCounts) -> list[Any]:
        """Predict for each word, one list per sentence. Some sentences may have no words, but not all."""

    def make_input(self, texts: Sequence[str]) -> Any:
        if len(texts) > 1 and any(" " in text.strip() for text in texts):
            raise ValueError(f"{len(texts)} texts: this task takes one text, or one word in each argument")
        return super().make_input(texts)


def input_words(value: Any, number: int, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Split an input into words: a list of words, or a text, whose letters are words if each is a token.

    A text without words gets an empty prediction. Raises ValueError naming the input's number if it is neither.
    """
    words = value
    if isinstance(value, str):
        words = [*"".join(value.split())] if tokenizer.splits_letters else _split_words(value)
    if isinstance(words, tuple | list) and all(isinstance(word, str) for word in words):
        return tuple(words)
    raise ValueError(f"input {number}: {shorten(value)} is neither a text nor a list of words")


def _split_words(text: str) -> tuple[str, ...]:
    """Split into runs of letters and digits, and single signs; combining marks (such as Hindi vowels) stay attached."""
    words: list[str] = []
    last = "space"
    for character in text:
        if character.isspace():
            last = "space"
            continue
        mark = character in _JOINERS or unicodedata.category(character).startswith("M")
        now = "letter" if character.isalnum() or character == "_" else "sign"
        if last != "space" and (mark or now == last == "letter"):
            words[-1] += character
        else:
            words.append(character)
            last = now
    return tuple(words)
