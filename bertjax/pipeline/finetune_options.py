"""The options of `bertjax.finetune`: the data of a task, settings to try, duration and destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FinetuneOptions:
    """Data, settings to try and limits of a fine-tuning; defaults come from the task's recipe.

    A single string stands for a sequence of one: `text="review"` is one column.
    """

    data: str | Path = ""  # folder of a known task's files
    train: str | Path = ""  # file of training examples: .csv, .tsv, .jsonl or .parquet
    dev: str | Path = ""  # file of development examples; empty: some of the training examples
    test: str | Path = ""  # file of test examples
    from_text: str | Sequence[str] = ()  # sources of plain text for vectors and denoising, as in data.sources
    positives: str | Sequence[str] = ()  # rules that make pairs from it; empty: by task and model
    dims: Sequence[int] = ()  # numbers to which vectors may be cut (Matryoshka)
    text: str | Sequence[str] = ()  # columns of the text: one, two, or a beginning and its endings
    label: str = ""  # column of the label
    labels: str | Sequence[str] = ()  # all labels, in the order of the outputs; empty: the labels in the data
    teacher: str | Path = ""  # a model that was fine-tuned for the task, to learn from
    learning_rates: Sequence[float] = ()  # to try; the best on the development set is exported
    batch_sizes: Sequence[int] = ()  # numbers of examples in a step to try
    epochs: Sequence[float] = ()  # numbers of epochs to try
    seeds: int = 1  # runs of each setting
    max_length: int | None = None  # tokens in a row, special ones included
    run_dir: str | Path = ""  # where the runs go; empty: runs/TASK
    keys: Mapping[str, Any] = field(default_factory=dict)  # other keys of the config: {"optimizer.beta2": 0.98}
