"""Plain reference implementation of pairs and masks in google-research/bert's create_pretraining_data.py.

Shares no code with the package, and draws with `random.Random`. Like the package, it redraws the random document until
it is another one. `put_back` and `short_sequences` switch rules off, so that tests can verify that they would detect a
missing rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

Tokens = list[int]


@dataclass
class PairRules:
    length: int  # of a row, with [CLS] and two [SEP]
    short_probability: ClassVar[float] = 0.1
    put_back: bool = True
    short_sequences: bool = True


@dataclass
class Pair:
    first: Tokens
    second: Tokens
    is_random: bool


def corpus_pairs(documents: list[list[Tokens]], rules: PairRules, rng: random.Random) -> list[Pair]:
    """The pairs of one pass over all documents."""
    return [pair for number in range(len(documents)) for pair in document_pairs(documents, number, rules, rng)]


def document_pairs(documents: list[list[Tokens]], number: int, rules: PairRules, rng: random.Random) -> list[Pair]:
    room = rules.length - 3
    target = room
    if rules.short_sequences and rng.random() < rules.short_probability:
        target = rng.randint(2, room)
    document = documents[number]
    pairs = []
    start = 0
    while start < len(document):
        stop, tokens = start, 0
        while stop < len(document) and tokens < target:
            tokens += len(document[stop])
            stop += 1
        chunk = document[start:stop]
        split = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        first = [token for sentence in chunk[:split] for token in sentence]
        is_random = len(chunk) == 1 or rng.random() < 0.5
        if is_random:
            other = number
            while other == number:
                other = rng.randrange(len(documents))
            second = []
            for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                second.extend(sentence)
                if len(second) >= target - len(first):
                    break
            start = start + split if rules.put_back else stop
        else:
            second = [token for sentence in chunk[split:] for token in sentence]
            start = stop
        shorten(first, second, room, rng)
        pairs.append(Pair(first, second, is_random))
    return pairs


def shorten(first: Tokens, second: Tokens, room: int, rng: random.Random) -> None:
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)


@dataclass
class MaskRules:
    max_predictions: int
    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    continuation: list[bool]
    whole_words: bool
    probability: ClassVar[float] = 0.15


@dataclass
class Masked:
    tokens: Tokens
    positions: list[int]
    labels: Tokens


def mask(first: Tokens, second: Tokens, rules: MaskRules, rng: random.Random) -> Masked:
    original = [rules.cls_id, *first, rules.sep_id, *second, rules.sep_id]
    words: list[list[int]] = []
    for position in range(1, len(original) - 1):
        if position == len(first) + 1:
            continue
        if rules.whole_words and words and rules.continuation[original[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    budget = min(rules.max_predictions, max(1, round(len(original) * rules.probability)))
    tokens = list(original)
    positions: list[int] = []
    for word in words:
        if len(positions) >= budget:
            break
        if len(positions) + len(word) > budget:
            continue
        for position in word:
            positions.append(position)
            if rng.random() < 0.8:
                tokens[position] = rules.mask_id
            elif rng.random() >= 0.5:
                tokens[position] = rng.randrange(rules.vocab_size)
    positions.sort()
    return Masked(tokens, positions, [original[position] for position in positions])
