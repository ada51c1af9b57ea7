"""Select the full sentences of SST-2, whose 67,349 training examples include phrases of parse trees."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax.finetune.tasks import TASKS
from bertjax.input.randomness import derive_key, permute

_LEAST_WORDS = 4  # of a phrase


def write_sentences(glue: Path, folder: Path, count: int) -> Path:
    """Write SST-2 in GLUE's layout with `count` training examples, the same for every seed; returns `folder`.

    Takes all full sentences (examples that are not part of a longer one), and random phrases of at least four words;
    the longest phrases would only repeat their sentences. Raises ValueError if `count` is too small for the sentences,
    or larger than both together.
    """
    read = TASKS["sst2"].read
    train = sorted(read(glue, "train", print), key=lambda example: -len(example.texts[0].split()))
    parts: set[str] = set()
    sentences, phrases = [], []
    for example in train:
        words = example.texts[0].split()
        if " ".join(words) in parts:
            if len(words) >= _LEAST_WORDS:
                phrases.append(example)
        else:
            sentences.append(example)
            parts.update(_parts(words))
    if not len(sentences) <= count <= len(sentences) + len(phrases):
        raise ValueError(f"count={count}: SST-2 has {len(sentences)} sentences and {len(phrases)} usable phrases")
    drawn = permute(np.arange(count - len(sentences)), len(phrases), derive_key(0, "which phrases"))
    chosen = [*sentences, *(phrases[number] for number in drawn)]
    target = folder / "SST-2"
    target.mkdir()
    for split, examples in {"train": chosen, "dev": read(glue, "dev", print)}.items():
        with (target / f"{split}.tsv").open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
            writer.writerow(["sentence", "label"])
            writer.writerows([example.texts[0], example.label] for example in examples)
    return folder


def _parts(words: Sequence[str]) -> set[str]:
    ends = range(len(words) + 1)
    return {" ".join(words[begin:end]) for end in ends for begin in range(end)}
