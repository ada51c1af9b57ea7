"""Sentences of SST-2: its training set is sentences and the phrases of their parse trees, 67,349 in all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax.finetune.tasks import TASKS
from bertjax.input.randomness import derive_key, permute

_WORDS = 4  # of a phrase, at least


def write_sentences(glue: Path, folder: Path, count: int) -> Path:
    """SST-2 in GLUE's layout with so many training examples, the same for every seed; returns `folder`.

    They are the sentences, which are what is part of no longer example, and beside them phrases, drawn at random: the
    longest would say what their sentences have said. Phrases of fewer than four words say little, and are left out.
    Raises ValueError for fewer examples than there are sentences, or more than there are of both.
    """
    read = TASKS["sst2"].read
    train = sorted(read(glue, "train", print), key=lambda example: -len(example.texts[0].split()))
    parts: set[str] = set()
    sentences, phrases = [], []
    for example in train:
        words = example.texts[0].split()
        if " ".join(words) in parts:
            if len(words) >= _WORDS:
                phrases.append(example)
        else:
            sentences.append(example)
            parts.update(_parts(words))
    if not len(sentences) <= count <= len(sentences) + len(phrases):
        raise ValueError(f"count={count}: there are {len(sentences)} sentences, and {len(phrases)} phrases beside them")
    drawn = permute(np.arange(count - len(sentences)), len(phrases), derive_key(0, "which phrases"))
    chosen = [*sentences, *(phrases[number] for number in drawn)]
    made = folder / "SST-2"
    made.mkdir()
    for split, examples in {"train": chosen, "dev": read(glue, "dev", print)}.items():
        with (made / f"{split}.tsv").open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
            writer.writerow(["sentence", "label"])
            writer.writerows([example.texts[0], example.label] for example in examples)
    return folder


def _parts(words: Sequence[str]) -> set[str]:
    ends = range(len(words) + 1)
    return {" ".join(words[begin:end]) for end in ends for begin in range(end)}
