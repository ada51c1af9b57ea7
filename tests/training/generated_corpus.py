"""Write a corpus by rules that a model can learn.

Every document has a topic with its own words, so that the next sentence can be told from a random one; within a
sentence a noun decides its adjective and its verb, so that a masked word can be guessed from the rest.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

TOPICS = 12
SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu", "ve", "za"]


def write_corpus(path: Path, documents: int, seed: int = 0) -> Path:
    """Write `documents` documents in the `lines` format: a sentence a line, a blank line between documents."""
    words = ["".join(parts) for parts in itertools.product(SYLLABLES, repeat=3)]
    rng = random.Random(seed)
    random.Random(1).shuffle(words)
    nouns = [[words.pop() for _ in range(8)] for _ in range(TOPICS)]
    companions = {noun: (words.pop(), words.pop()) for noun in itertools.chain(*nouns)}  # adjective, verb
    texts = []
    for _ in range(documents):
        topic = nouns[rng.randrange(TOPICS)]
        texts.append("\n".join(_sentence(rng, topic, companions) for _ in range(rng.randint(4, 12))))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def _sentence(rng: random.Random, topic: list[str], companions: dict[str, tuple[str, str]]) -> str:
    subject, other = rng.choice(topic), rng.choice(topic)
    adjective, verb = companions[subject]
    return f"the {adjective} {subject} {verb} the {companions[other][0]} {other} ."
