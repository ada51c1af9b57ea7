"""A fine-tuning: the task, and a run that has one."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertjax.config.resume import may_change
from bertjax.config.run import Config


@dataclass(frozen=True)
class TaskConfig:
    """What a model is fine-tuned for. Recipes of the known tasks are in bertjax/finetune/tasks.py."""

    name: str = may_change("")  # a known task (sst2, squad, ...), or a kind of your own (classification, tagging, ...)
    data: str = may_change("")  # the folder of a known task's files, or tfds:glue/NAME
    train: str = may_change("")  # of one's own task: a file
    dev: str = may_change("")
    test: str = may_change("")
    text: tuple[str, ...] = may_change(())  # columns of that file: a text, two texts, or a beginning and its endings
    label: str = may_change("")
    id: str = may_change("")
    labels: tuple[str, ...] = ()  # in the order of the network's outputs; empty: those of the training data, sorted
    class_weights: tuple[float, ...] = ()  # of the loss, one for each label; empty: all weigh 1
    balanced: bool = False  # weights by which every label counts the same over the training data
    epochs: float = may_change(3.0)
    warmup: float = may_change(0.1)  # share of the steps
    examples: int = may_change(0)  # of the training data that many, drawn by the seed; 0: all
    layer_decay: float = 1.0  # the rate of each layer is that of the one above it times this
    patience: int = 0  # evaluations without a better one that end the training; the best is kept then. 0: no end
    strict_length: bool = may_change(False)  # refuse what is longer than a row, instead of cutting or splitting it
    doc_stride: int = may_change(128)  # tokens from one window of a text to the next
    max_query: int = may_change(64)  # tokens of a question
    max_answer: int = may_change(30)  # tokens of an answer
    n_best: int = may_change(20)  # of a question that many answers are kept, of as many likeliest starts and ends
    null_threshold: float = may_change(0.0)  # how much better no answer has to score than the best one
    temperature: float = 0.05  # of the contrastive loss

    @property
    def no_answer_threshold(self) -> float | None:
        """The null threshold of a task whose questions may have no answer; None where every text has one."""
        return self.null_threshold if self.name == "squad2" else None


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """A run that fine-tunes `init_from` for a task. With training.steps=0 they come from the task's epochs."""

    task: TaskConfig = field(default_factory=TaskConfig)
