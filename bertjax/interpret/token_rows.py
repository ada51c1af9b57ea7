"""Rows of one or two sentences: ids, segments, and the tokens of each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertjax.input.layout import BERT, Template
from bertjax.input.lengths import row_length
from bertjax.model.attention.block_sparse import length_of_text
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import Tokenizer

_ROUNDED_TO = 16  # tokens
_LENGTH_STEPS = 1  # of widths over 512 tokens; see `row_length`
_EXCERPT = 60  # characters of a text in a message


@dataclass(frozen=True)
class TokenRow:
    """`[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, or the form of another template."""

    ids: np.ndarray  # int32 [n]
    segments: np.ndarray  # int32 [n]: 0, and 1 from B on
    tokenizer: Tokenizer
    template: Template = BERT  # of the model's family

    @classmethod
    def of(cls, tokenizer: Tokenizer, sentences: Sequence[np.ndarray], template: Template = BERT) -> TokenRow:
        """Make the row of one or two sentences, given as ids."""
        ids, segments = [tokenizer.cls_id], [0]
        for number, sentence in enumerate(sentences):
            behind = template.separators if number + 1 < len(sentences) else 1
            ids += [*sentence.tolist(), *[tokenizer.sep_id] * behind]
            segments += [number] * (len(sentence) + behind)
        return cls(np.array(ids, np.int32), np.array(segments, np.int32), tokenizer, template)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def token_types(self) -> np.ndarray:
        """int32 [n]: the token types that the model reads."""
        return self.segments * self.template.token_types

    @cached_property
    def is_special(self) -> np.ndarray:
        """bool [n]: [CLS] and the [SEP]s."""
        return np.isin(self.ids, (self.tokenizer.cls_id, self.tokenizer.sep_id))

    @cached_property
    def word_numbers(self) -> np.ndarray:
        """int64 [n]: the number of each token's word; a special token counts as a word."""
        continues = self.tokenizer.is_continuation[self.ids] & ~self.is_special
        continues[1:] &= ~self.is_special[:-1]
        return np.cumsum(~continues) - 1

    @cached_property
    def word_texts(self) -> list[str]:
        """For each token the text of its whole word, casefolded; "" for special tokens and signs."""
        surfaces = self.tokenizer.surfaces
        whole: dict[int, bytes] = {}
        for number, token, special in zip(self.word_numbers.tolist(), self.ids.tolist(), self.is_special, strict=True):
            whole[number] = whole.get(number, b"") + (b"" if special else surfaces[token])
        texts = {number: text.decode(errors="replace").casefold() for number, text in whole.items()}
        return [texts[n] if any(map(str.isalnum, texts[n])) else "" for n in self.word_numbers.tolist()]

    @cached_property
    def is_word(self) -> np.ndarray:
        """bool [n]: whether a token belongs to a word; special tokens, punctuation and [UNK] do not."""
        return np.array([bool(text) for text in self.word_texts])


def read_row(tokenizer: Tokenizer, texts: Sequence[str], longest: int, template: Template = BERT) -> TokenRow:
    """Make the row of one or two texts. Raises ValueError for an empty text, or more than `longest` tokens."""
    sentences = tokenizer.encode_sentences(list(texts))
    for text, ids in zip(texts, sentences, strict=True):
        if not len(ids):
            raise ValueError(f"sentence {text!r} has no tokens; give a sentence")
    row = TokenRow.of(tokenizer, sentences, template)
    if len(row) > longest:
        raise ValueError(
            f"the sentences have {len(row)} tokens, special ones included; the model was trained on rows of {longest} "
            "(data.sequence_length, stages.*.sequence_length); shorten them"
        )
    return row


def excerpt(text: str) -> str:
    """The beginning of a text, for messages."""
    return text[:_EXCERPT] + ("..." if len(text) > _EXCERPT else "")


def round_up_width(tokens: int) -> int:
    """Round up to a multiple of 16, so that few widths of rows are compiled."""
    return -(-tokens // _ROUNDED_TO) * _ROUNDED_TO


def row_width(model: TrainedModel, tokens: int) -> int:
    """The width to pad a row to: one of few, because each is compiled; with blocks its `length_of_text`."""
    width = min(row_length(tokens, _LENGTH_STEPS), max(model.max_length, tokens))
    return length_of_text(model.config.model, tokens, width)


def pad_rows(rows: Sequence[TokenRow], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pad rows to a batch: input_ids, token_type_ids and sequence_ids, int32 [rows, width]."""
    batch = np.zeros((3, len(rows), width), np.int32)
    for number, row in enumerate(rows):
        batch[0, number] = row.tokenizer.pad_id
        batch[:, number, : len(row)] = row.ids, row.token_types, np.ones_like(row.ids)
    return batch[0], batch[1], batch[2]
