"""Tagged sentences as rows, long ones as several overlapping windows, and the tags of words from the rows' logits.

Each word is tokenized alone, as after a space, like in transformers with `is_split_into_words` (RoBERTa's tokenizer
needs `add_prefix_space=True` there). Label and prediction of a word are at its first piece, in the window where that
piece has the most context. A word without pieces, such as a lone control character, is in no row and gets a fixed tag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.encoding.rows import TaskRows, join_segments, too_long
from bertjax.finetune.metrics.classification import require_finite
from bertjax.input.lengths import LengthCounts
from bertjax.text.ragged import range_indices
from bertjax.tokenization.tokenizer import Tokenizer

_SPECIAL = 2  # [CLS] pieces [SEP]


@dataclass
class TagCounts(LengthCounts):
    """Numbers of long sentences, and of words without a token."""

    words: int = 0
    without_pieces: int = 0
    clause: str = "they get no prediction"  # ends the notice about words without a token

    def notices(self, max_length: int) -> list[str]:
        """Notices, a line each; none if every sentence fits and every word has a piece."""
        lines = super().notices(max_length)
        if self.without_pieces:
            lines.append(f"{self.without_pieces:,} of {self.words:,} words have no token; {self.clause}")
        return lines


@dataclass(frozen=True)
class TagWindows:
    """Rows [CLS] pieces [SEP] in the order of sentences; each sentence has at least one row."""

    sentences: Sequence[TaggedSentence]
    rows: TaskRows
    word: np.ndarray  # int64 [tokens]: which of all words a token predicts, or -1

    def labelled(self, labels: np.ndarray, weights: np.ndarray) -> TagWindows:
        """Add the labels and weights of words, [words] each, at the tokens that predict them; 0 at other tokens."""
        predicts = self.word >= 0
        arrays = {
            "labels": np.where(predicts, labels[self.word], 0).astype(labels.dtype),
            "label_weights": np.where(predicts, weights[self.word], 0).astype(np.float32),
        }
        return replace(self, rows=self.rows.extended(tokens=arrays))


@dataclass(frozen=True)
class _Windows:
    """Windows: each has the pieces [begins, begins + sizes)."""

    sentence: np.ndarray  # int64 [n]
    begins: np.ndarray  # int64 [n]
    sizes: np.ndarray  # int64 [n]
    cut: np.ndarray  # int64 [sentences]: number of pieces that are in no window


def tag_windows(
    sentences: Sequence[TaggedSentence],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    counts: TagCounts,
    *,
    strict: bool = False,
    label_weights: Sequence[float] | None = None,
) -> TagWindows:
    """Encode sentences with their tags; see `word_windows` for other arguments and errors.

    `tokens` of the rows have `labels` int32, indices in `labels`, and `label_weights` float32: the weight of the label,
    1 by default, at the first piece of each word, and 0 elsewhere. Raises ValueError naming the line of an unknown tag.
    """
    numbers = tag_numbers(sentences, labels)
    by_label = np.ones(len(labels), np.float32) if label_weights is None else np.asarray(label_weights, np.float32)
    weights = np.where(numbers < 0, 0, by_label[numbers])
    windows = word_windows(sentences, tokenizer, max_length, counts, strict=strict)
    return windows.labelled(numbers.clip(0).astype(np.int32), weights)


def word_windows(
    sentences: Sequence[TaggedSentence], tokenizer: Tokenizer, max_length: int, counts: TagCounts, *, strict: bool
) -> TagWindows:
    """Encode sentences, and add to `counts`. A row has at most `max_length` tokens, special ones included.

    Windows begin and end with whole words, about half a row apart; a word that does not fit in a row is truncated.
    Raises ValueError with `strict`, naming the line of the first sentence that is too long.
    """
    if max_length <= _SPECIAL:
        raise ValueError(f"max length {max_length}: it must leave room for a word and {_SPECIAL} special tokens")
    space = "" if tokenizer.rules.prefix_space else " "
    ids, pieces = tokenizer.encode(
        [space + word.removeprefix(space) for sentence in sentences for word in sentence.words]
    )
    words = np.array([len(sentence.words) for sentence in sentences], np.int64)
    windows = _windows(pieces, words, max_length - _SPECIAL)
    several = np.bincount(windows.sentence, minlength=len(sentences))
    lengths = np.bincount(np.repeat(np.arange(len(words)), words), pieces, len(words)).astype(np.int64)
    long = (several > 1) | (windows.cut > 0)
    if strict and long.any():
        first = int(np.argmax(long))
        raise too_long(sentences[first].where, int(lengths[first]) + _SPECIAL, max_length)
    counts.add(lengths, windows.cut, several)
    counts.empty += int((lengths == 0).sum())
    counts.words += len(pieces)
    counts.without_pieces += int((pieces == 0).sum())

    one = np.array([True])
    rows = join_segments(ids, windows.begins[:, None], windows.sizes[:, None], one, tokenizer)
    inside, source = range_indices(rows.offsets[:-1] + 1, windows.sizes), range_indices(windows.begins, windows.sizes)
    word = np.full(rows.offsets[-1], -1, np.int64)
    word[inside] = _predicted_words(windows, pieces, source)
    return TagWindows(sentences, rows, word)


def decode_tags(windows: TagWindows, logits: np.ndarray, labels: Sequence[str], otherwise: str) -> list[list[str]]:
    """Choose the likeliest tag of each word, by sentence, from logits float32 [tokens, labels] of the windows.

    Words without pieces get the tag `otherwise`. Raises ValueError if a logit is not finite.
    """
    assert logits.shape == (len(windows.word), len(labels)), "a logit for each token and label"
    require_finite(logits)
    lengths = [len(sentence.words) for sentence in windows.sentences]
    tags = [otherwise] * sum(lengths)
    predicts = windows.word >= 0
    for word, best in zip(windows.word[predicts].tolist(), logits[predicts].argmax(-1).tolist(), strict=True):
        tags[word] = labels[best]
    ends = np.cumsum(lengths).tolist()
    return [tags[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def most_frequent_tag(sentences: Sequence[TaggedSentence]) -> str:
    """Find the most frequent tag of a training set; ties go to the first in the alphabet."""
    tags = Counter(tag for sentence in sentences for tag in sentence.tags or ())
    return min(tags, key=lambda tag: (-tags[tag], tag))


def tag_numbers(sentences: Sequence[TaggedSentence], labels: Sequence[str]) -> np.ndarray:
    """Map each word's tag to its index in `labels`: int64 [words], -1 without a tag.

    Raises ValueError naming the line of the first unknown tag.
    """
    numbers_by_label = {label: number for number, label in enumerate(labels)}
    numbers: list[int] = []
    for sentence in sentences:
        assert sentence.tags is None or len(sentence.tags) == len(sentence.words), "a tag for each word"
        for index, tag in enumerate(sentence.tags or ()):
            if tag not in numbers_by_label:
                raise ValueError(
                    f"{sentence.locate_word(index)}: tag {tag!r} of {sentence.words[index]!r} is not one of "
                    f"{', '.join(labels)}; correct it, or train with it"
                )
            numbers.append(numbers_by_label[tag])
        if sentence.tags is None:
            numbers += [-1] * len(sentence.words)
    return np.array(numbers, np.int64)


def _windows(pieces: np.ndarray, words: np.ndarray, room: int) -> _Windows:
    """Split sentences into windows, given the number of words per sentence and of pieces per word."""
    ends = np.concatenate([[0], np.cumsum(pieces)])
    last = np.cumsum(words)
    sentence, begins, sizes, cut = [], [], [], np.zeros(len(words), np.int64)
    for number, (first, after) in enumerate(zip((last - words).tolist(), last.tolist(), strict=True)):
        size = int(ends[after] - ends[first])
        if size <= room:
            parts = [(int(ends[first]), size)]
        else:
            parts = _split_long_sentence(ends[first : after + 1], room)
            cut[number] = size - len(np.unique(range_indices(*np.array(parts).T)))
        for begin, size in parts:
            sentence.append(number)
            begins.append(begin)
            sizes.append(size)
    return _Windows(np.array(sentence, np.int64), np.array(begins, np.int64), np.array(sizes, np.int64), cut)


def _split_long_sentence(ends: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Split a sentence, whose word n has the pieces [ends[n], ends[n + 1]), into windows (first piece, pieces)."""

    def behind(word: int, pieces: int) -> int:
        """Find the end of a window of `pieces` pieces that begins at `word`, which always fits."""
        return max(int(np.searchsorted(ends, ends[word] + pieces, side="right")) - 1, word + 1)

    windows, word = [], 0
    while True:
        end = behind(word, room)
        windows.append((int(ends[word]), min(int(ends[end] - ends[word]), room)))
        if end == len(ends) - 1:
            return windows
        half = min(behind(word, room // 2), end)
        word = half if behind(half, room) > end else end  # a window that reaches no further is useless


def _predicted_words(windows: _Windows, pieces: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Find the word that each piece of the windows predicts, int64, or -1; `source` is its index among all pieces.

    A word is predicted at its first piece, in the window where that piece has the most context.
    """
    row = np.repeat(np.arange(len(windows.sizes)), windows.sizes)
    left = source - windows.begins[row]
    context = np.minimum(left, windows.sizes[row] - 1 - left)
    first_piece_words = np.full(int(pieces.sum()), -1, np.int64)
    words = np.flatnonzero(pieces)
    first_piece_words[(np.cumsum(pieces) - pieces)[words]] = words
    candidates = np.flatnonzero(first_piece_words[source] >= 0)
    order = candidates[np.lexsort((-context[candidates], source[candidates]))]
    best = order[np.unique(source[order], return_index=True)[1]]
    predicted = np.full(len(source), -1, np.int64)
    predicted[best] = first_piece_words[source[best]]
    return predicted
