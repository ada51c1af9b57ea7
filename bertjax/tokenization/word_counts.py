"""Words of a text and how often each occurs: all that a vocabulary is trained on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping


def count_spaced_words(texts: Iterable[str]) -> Counter[str]:
    """Count what stands between white space, as it is."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    return words


def most_frequent(word_counts: Mapping[str, int], most_bytes: int) -> dict[str, int]:
    """The most frequent words that have together at most so many bytes of UTF-8.

    Where words are spaced this leaves out next to nothing. Where they are not, "words" are sentences that occur once;
    of those a hash chooses, so that they are a fair sample of the text.
    """
    sizes = {word: len(word.encode()) for word in word_counts}
    if sum(sizes.values()) <= most_bytes:
        return dict(word_counts)
    kept, left = {}, most_bytes
    for word in sorted(word_counts, key=lambda word: (-word_counts[word], hashlib.sha256(word.encode()).digest())):
        left -= sizes[word]
        if left < 0:
            break
        kept[word] = word_counts[word]
    return kept


def smoothed(of_source: Iterable[Counter[str]], temperature: float) -> Counter[str]:
    """The sources' word counts in one, each scaled so that its share goes by its words to the power `temperature`.

    So a small language keeps pieces beside a large one (multilingual BERT: 0.7). With 1 the counts are as they are;
    with less they are in all about as many as before, and what is scaled below a half is left out.
    """
    counters = [counts for counts in of_source if counts]
    joined: Counter[str] = Counter()
    if temperature == 1 or not counters:
        for counts in counters:
            joined.update(counts)
        return joined
    sizes = [counts.total() for counts in counters]
    powers = [size**temperature for size in sizes]
    for counts, size, power in zip(counters, sizes, powers, strict=True):
        scale = power / sum(powers) * sum(sizes) / size
        joined.update({word: scaled for word, count in counts.items() if (scaled := round(count * scale))})
    return joined
