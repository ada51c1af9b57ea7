"""Word segmentation for whole-word masking of Chinese, as in Chinese BERT-wwm (Cui et al. 2019).

WordPiece makes each Chinese character a token. A segmenter finds which of them form a word; the ids do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from bertjax.tokenization.artefact import is_chinese
from bertjax.tokenization.chunks import SEPARATOR
from bertjax.tokenization.tokenizer import Tokenizer

Segmenter = Callable[[str], Iterable[str]]  # a sentence -> its words, which join to the sentence


@lru_cache(maxsize=1)
def load_segmenter(name: Literal["jieba"]) -> Segmenter:
    """Load a segmenter. Raises ValueError if its library is not installed."""
    assert name == "jieba"
    try:
        import jieba
    except ModuleNotFoundError:
        raise ValueError(
            "data.segmenter='jieba': the library is not installed; pip install 'bertjax[chinese]'"
        ) from None
    words = jieba.Tokenizer()
    # Its own start caches the dictionary in a marshal file in a world-writable folder.
    words.FREQ, words.total = words.gen_pfdict(words.get_dict_file())
    words.initialized = True
    return words.cut


def encode_words(
    tokenizer: Tokenizer, sentences: Sequence[str], segment: Segmenter
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like `tokenizer.encode`, and whether each token continues the word before it: bool [tokens].

    A Chinese character does if the segmenter joins it to the Chinese character before it, any other token if
    `tokenizer.is_continuation`.
    """
    sentences = [sentence.replace(SEPARATOR, "") for sentence in sentences]  # the tokenizer drops it
    ids, lengths = tokenizer.encode(sentences)
    continues = tokenizer.is_continuation[ids]
    ends = np.cumsum(lengths)
    for sentence, begin, end in zip(sentences, ends - lengths, ends, strict=True):
        marked = _in_words(tokenizer, sentence, segment)
        assert len(marked) == end - begin
        continues[begin:end] |= marked
    return ids, lengths, continues


def _in_words(tokenizer: Tokenizer, sentence: str, segment: Segmenter) -> np.ndarray:
    """Whether each token of a sentence is a Chinese character within a word: bool [tokens]."""
    starts, offset = set(), 0
    for word in segment(sentence):
        starts.add(offset)
        offset += len(word)
    assert offset == len(sentence), "a segmenter does not change the text"
    marked: list[bool] = []
    before = -2  # offset of the last Chinese character
    for chunk, offset, size in tokenizer.chunks(sentence):
        if is_chinese(chunk):
            marked += [before == offset - 1 and offset not in starts] * size
            before = offset
        else:
            marked += [False] * size
    return np.array(marked, bool)
