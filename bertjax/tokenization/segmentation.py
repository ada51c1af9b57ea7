"""Word segmentation for whole-word masking of Chinese, as in Chinese BERT-wwm (Cui et al. 2019).

WordPiece makes each Chinese character a token. A segmenter determines which characters form a word; ids do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from bertjax.tokenization.artefact import is_chinese
from bertjax.tokenization.chunks import SEPARATOR
from bertjax.tokenization.tokenizer import Tokenizer

Segmenter = Callable[[str], Iterable[str]]  # sentence -> its words, whose concatenation is the sentence


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
    # jieba's own initialisation would cache the dictionary as a marshal file in a world-writable folder.
    words.FREQ, words.total = words.gen_pfdict(words.get_dict_file())
    words.initialized = True
    return words.cut


def encode_words(
    tokenizer: Tokenizer, sentences: Sequence[str], segment: Segmenter
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like `tokenizer.encode`, but also returns whether each token continues a word, bool [tokens].

    A Chinese character does if the segmenter joins it to the Chinese character before it, any other token if
    `tokenizer.is_continuation`.
    """
    sentences = [sentence.replace(SEPARATOR, "") for sentence in sentences]  # the tokenizer drops it
    ids, lengths = tokenizer.encode(sentences)
    continues = tokenizer.is_continuation[ids]
    ends = np.cumsum(lengths)
    for sentence, begin, end in zip(sentences, ends - lengths, ends, strict=True):
        joined = _joined_characters(tokenizer, sentence, segment)
        assert len(joined) == end - begin
        continues[begin:end] |= joined
    return ids, lengths, continues


def _joined_characters(tokenizer: Tokenizer, sentence: str, segment: Segmenter) -> np.ndarray:
    """Whether each token is a Chinese character that the segmenter joins to the previous one: bool [tokens]."""
    starts, offset = set(), 0
    for word in segment(sentence):
        starts.add(offset)
        offset += len(word)
    assert offset == len(sentence), "the segmenter changed the text"
    joined: list[bool] = []
    last = -2  # offset of the last Chinese character
    for chunk, offset, size in tokenizer.chunks(sentence):
        if is_chinese(chunk):
            joined += [last == offset - 1 and offset not in starts] * size
            last = offset
        else:
            joined += [False] * size
    return np.array(joined, bool)
