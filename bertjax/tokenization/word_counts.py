"""Words of a text and how often each occurs: all that a vocabulary is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def count_spaced_words(texts: Iterable[str]) -> Counter[str]:
    """Count what stands between white space, as it is."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    return words


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
