"""Base class of kinds whose examples are texts with one label: classification, numbers, choices, pairs."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.families.registry import get_family
from bertjax.finetune.data.examples import TextExample, label_numbers, label_set, label_weights
from bertjax.finetune.data.tables import WITHOUT_TABS, Columns, read_split_of_table
from bertjax.finetune.encoding.global_tokens import FIRST_TOKEN
from bertjax.finetune.encoding.rows import Segments, TaskRows
from bertjax.finetune.encoding.texts import SHORTEST, encode_texts
from bertjax.finetune.kinds.kind import (
    Figures,
    Inference,
    Judged,
    Kind,
    Measure,
    Recipe,
    Split,
    Splits,
    Task,
    TaskContent,
    mismatch_error,
    read_run_file,
    refuse_options,
    shorten,
)
from bertjax.finetune.metrics.classification import compute_metrics, require_finite
from bertjax.input.layout import BERT, Template
from bertjax.input.lengths import LengthCounts
from bertjax.storage.files import replace_text
from bertjax.storage.remote import AnyPath
from bertjax.tokenization.tokenizer import Tokenizer


class TextKind(Kind):
    """A kind whose examples are `TextExample`: by default one or two texts in a sequence, with a class as label."""

    global_tokens = FIRST_TOKEN
    numeric: ClassVar[bool] = False  # labels are numbers, not classes
    labelled: ClassVar[bool] = True  # examples have labels
    text_columns: ClassVar[tuple[int, int | None]] = (1, 2)  # least and most columns of text; None: any number
    default_columns: ClassVar[tuple[str, ...]] = ("text",)
    columns_wanted: ClassVar[str] = "one or two columns of text"
    has_baseline: ClassVar[bool] = True  # the metrics are defined for a constant answer

    # -- encoding

    def count_texts(self, examples: Sequence[TextExample], labels: Sequence[str]) -> int:
        """Return the number of texts that every example must have."""
        return min(len(examples[0].texts), 2)

    def segments(self, texts: int) -> Segments:
        """Lay out an example's texts in a row."""
        return Segments.one_sequence(texts)

    def targets(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        """Encode labels as int32 [n], -1 without one; numbers as float32 [n], NaN without one."""
        if self.numeric:
            return np.array([np.nan if one.label is None else one.label for one in examples], np.float32)
        return label_numbers(examples, labels)

    def target_arrays(self, targets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Make the arrays of `TaskRows.rows`, [n, 1] each, from targets and weights [n]."""
        return {"labels": targets[:, None], "label_weights": weights[:, None]}

    def more_arrays(self, examples: Sequence[TextExample]) -> dict[str, np.ndarray]:
        """Make further arrays of `TaskRows.rows`."""
        return {}

    def encode(
        self,
        examples: Sequence[TextExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        max_length: int,
        counts: LengthCounts,
        *,
        template: Template = BERT,
        strict: bool = False,
        label_weights: Sequence[float] | None = None,
    ) -> TaskRows:
        """Encode examples, and add to `counts`. A sequence has at most `max_length` tokens, special ones included.

        `rows` have `cls_positions`, `labels` int32 (numbers: float32) and `label_weights` float32, [n, 1] each. Labels
        are indices in `labels`; weights are 1 or from `label_weights`, and 0 without a label. Raises ValueError naming
        the line of an unknown label, of an example with a wrong number of texts, and with `strict` of the first example
        that is too long.
        """
        if max_length < SHORTEST:
            raise ValueError(f"max length {max_length}: it must be at least {SHORTEST} tokens")
        if not examples:
            raise ValueError("no examples to encode")
        texts = self.count_texts(examples, labels)
        self.check_texts(examples, texts)
        targets = self.targets(examples, labels)  # before the costly part
        segments = self.segments(texts)
        rows = encode_texts(examples, segments, tokenizer, max_length, counts, template=template, strict=strict)
        has_label = ~np.isnan(targets) if self.numeric else targets >= 0
        targets, weights = np.where(has_label, targets, 0).astype(targets.dtype), has_label.astype(np.float32)
        if label_weights is not None:
            assert not self.numeric, "only classes have weights"
            weights *= np.asarray(label_weights, np.float32)[targets]
        return rows.extended(rows=self.target_arrays(targets, weights) | self.more_arrays(examples))

    def check_texts(self, examples: Sequence[TextExample], texts: int) -> None:
        """Raise ValueError naming the first example with another number of texts."""
        for example in examples:
            if len(example.texts) != texts:
                raise wrong_number(example, len(example.texts), "texts", texts)

    # -- a task's data

    def load_measures(
        self, task: Task, name: str, examples: Sequence[TextExample], folder: AnyPath
    ) -> dict[str, Measure]:
        if self.no_prediction:
            return super().load_measures(task, name, examples, folder)
        path = folder / f"{name}.tsv"
        head, *lines = [line.split("\t") for line in read_run_file(path).removesuffix("\n").split("\n")]
        ids = [one.id.translate(WITHOUT_TABS) for one in examples]
        if head[:2] != ["id", "prediction"] or [line[0] for line in lines] != ids:
            raise mismatch_error(path)
        words, answers = [line[1] for line in lines], self.targets(examples, task.labels)
        try:
            if self.numeric:
                predicted = self.predictions(np.array(words, np.float32)[:, None])
            else:
                numbers = {label.translate(WITHOUT_TABS): number for number, label in enumerate(task.labels)}
                predicted = np.array([numbers[word] for word in words], np.int32)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: a prediction is not a label of the task ({error}); fine-tune again") from None
        return {
            metric: lambda drawn, metric=metric: compute_metrics([metric], predicted[drawn], answers[drawn])[metric]
            for metric in task.metrics
        }

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        length, counts = config.data.sequence_length, LengthCounts()
        labels = task.labels
        encode = partial(
            self.encode,
            labels=labels,
            tokenizer=tokenizer,
            max_length=length,
            counts=counts,
            template=get_family(config.model.family).template,
            strict=config.task.strict_length,
        )

        notes: list[str] = []

        def split(name: str, examples: Sequence[TextExample]) -> Split:
            rows, ids = encode(examples), [example.id for example in examples]
            write = partial(self.write, task, name, labels, ids)
            measured = [n for n, example in enumerate(examples) if not self.labelled or example.label is not None]
            if not measured:
                return Split(rows, write)
            if missing := len(examples) - len(measured):
                notes.append(f"{name}: {missing:,} of {len(examples):,} rows have no label; figures leave them out")
            answers, labelled = self.answers(examples, labels, rows)[measured], [examples[n] for n in measured]
            return Split(
                rows,
                write,
                lambda outputs: self.measure(task.metrics, answers, outputs[measured]),
                self.constant_figures(task.metrics, answers),
                lambda outputs: self.judge(labelled, task.meanings or labels, answers, outputs[measured]),
                None if self.has_baseline or answers.ndim > 1 else answers,
            )

        weights = label_weights(config.task, labels, lambda: label_numbers(splits.train, labels))
        train = encode(splits.train, label_weights=weights)
        dev = {name: split(name, examples) for name, examples in splits.dev.items()}
        test = {name: split(name, examples) for name, examples in splits.test.items()}
        return TaskContent(
            self,
            task.meanings or labels,
            train,
            dev,
            test,
            task.metrics,
            (*splits.notes, *counts.notices(length), *notes, *self.notes(dev)),
        )

    def answers(self, examples: Sequence[TextExample], labels: Sequence[str], rows: TaskRows) -> np.ndarray:
        """Return the right answers, by default the targets."""
        return self.targets(examples, labels)

    def measure(self, metrics: Sequence[str], answers: np.ndarray, outputs: np.ndarray) -> Figures:
        """Compute metrics of a network's outputs. Raises ValueError if an output is not finite."""
        return compute_metrics(metrics, self.predictions(outputs), answers)

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """Compare the prediction for each example with its answer."""
        shares = softmax(outputs.astype(np.float64), -1).tolist()
        right: list[int] = answers.tolist()
        predicted: list[int] = self.predictions(outputs).tolist()
        return [
            Judged(example.texts, labels[answer], labels[prediction], answer == prediction, share[prediction])
            for example, answer, prediction, share in zip(examples, right, predicted, shares, strict=True)
        ]

    def constant_figures(self, metrics: Sequence[str], answers: np.ndarray) -> Figures:
        """Compute metrics of the better of two constant answers: the most frequent class, and the class of F1.

        Empty if the metrics are undefined for a constant answer.
        """
        if not self.has_baseline:
            return {}
        classes, counts = np.unique(answers, return_counts=True)
        constants = {int(classes[counts.argmax()]), 1}
        each = [compute_metrics(metrics, np.full(len(answers), constant), answers) for constant in constants]
        return {metric: max(figures[metric] for figures in each) for metric in metrics}

    def notes(self, dev: dict[str, Split]) -> Sequence[str]:
        """Make notices about the development sets."""
        return ()

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """Predict the label of each example, int32 [n], from logits [n, classes].

        Raises ValueError if a logit is not finite.
        """
        return require_finite(logits).argmax(-1).astype(np.int32)

    def submitted(self, logits: np.ndarray, labels: Sequence[str]) -> list[str]:
        """Format predictions for a benchmark's submission file."""
        return [labels[number] for number in map(int, self.predictions(logits))]

    def write(
        self, task: Task, name: str, labels: Sequence[str], ids: Sequence[str], folder: Path, outputs: np.ndarray
    ) -> list[Path]:
        """Write the predictions of a split: `SPLIT.tsv`, and a benchmark's official file. Returns the paths."""
        files = [self.write_predictions(folder / f"{name}.tsv", labels, ids, outputs)]
        if name in task.submissions:
            files.append(write_submission(folder, task, name, ids, outputs))
        return files

    def write_predictions(self, path: Path, labels: Sequence[str], ids: Sequence[str], logits: np.ndarray) -> Path:
        """Write a .tsv or .jsonl with ids, predicted labels and the probability of each label; returns its path.

        Numeric kinds write the id and the number, for relevance the logit. Tabs and line ends in ids and labels become
        spaces in a .tsv.
        """
        if self.numeric:
            labels, chances = (), [[]] * len(logits)
            predicted: list[str | float] = require_finite(logits)[:, 0].astype(np.float32).tolist()
        else:
            predicted = [labels[number] for number in map(int, self.predictions(logits))]
            chances = softmax(logits.astype(np.float64), -1).tolist()
        rows = list(zip(ids, predicted, chances, strict=True))
        if path.suffix == ".jsonl":
            records: list[dict[str, Any]] = [{"id": name, "prediction": prediction} for name, prediction, _ in rows]
            if labels:
                for record, (*_, shares) in zip(records, rows, strict=True):
                    record["probabilities"] = dict(zip(labels, shares, strict=True))
            text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        else:
            lines = [["id", "prediction", *labels], *([name, value, *shares] for name, value, shares in rows)]
            fields = ([x.translate(WITHOUT_TABS) if isinstance(x, str) else f"{x:.6g}" for x in line] for line in lines)
            text = "".join("\t".join(line) + "\n" for line in fields)
        replace_text(path, text)
        return path

    # -- tasks of the user's own files

    def own(self, config: TaskConfig) -> Task:
        """Make a task of table files; labels default to the training set's."""
        if self.numeric or not self.labelled:
            refuse_options(config, ("labels",), "has no classes")
        if not self.labelled:
            refuse_options(config, ("label",), "has no labels")
        columns = config.text or self.default_columns
        least, most = self.text_columns
        if len(columns) < least or (most is not None and len(columns) > most):
            raise ValueError(
                f"task.text={config.text}: {config.name} needs {self.columns_wanted}; use --text COLUMN COLUMN"
            )
        label = config.label or ("label" if self.labelled else "")
        return self.table_task(self.columns(columns, label, config.id), config.labels)

    def columns(self, texts: Sequence[str], label: str, id_column: str) -> Columns:
        """Describe the columns of a table, given the names of its text columns."""
        return Columns(text=texts[0], text_b="".join(texts[1:]), label=label, id=id_column)

    def table_task(self, columns: Columns, labels: tuple[str, ...] = ()) -> Task:
        """Make a task of table files with these columns."""
        read = partial(read_split_of_table, columns, regression=self.numeric)
        return Task("own", self, self.metrics, Recipe(2e-5), read, labels)

    def labels_in(self, train: Sequence[TextExample]) -> tuple[str, ...]:
        return () if self.numeric or not self.labelled else label_set(train)

    def check_examples(self, examples: Sequence[TextExample], labels: Sequence[str]) -> None:
        if labels and not self.numeric:
            label_numbers(examples, labels)

    def shared_part(self, example: TextExample) -> Any:
        return example.texts

    def example_labels(self, example: TextExample) -> tuple[str, ...]:
        return (example.label,) if isinstance(example.label, str) else ()

    # -- predictions for inputs

    def predict(self, model: Inference, inputs: Sequence[Any]) -> list[Any]:
        input_texts = [self.texts_in(one, number) for number, one in enumerate(inputs, 1)]
        for number, texts in enumerate(input_texts, 1):
            if model.texts and len(texts) != model.texts:
                forms = {1: "one text", 2: "a pair of texts"}
                raise ValueError(
                    f"input {number}: {shorten(self.make_input(texts))} is {forms[len(texts)]}; the task "
                    f"{model.task.name} takes {forms[model.texts]}"
                )
        examples = [TextExample(f"input {n}", str(n), texts, None) for n, texts in enumerate(input_texts, 1)]
        model.counts = LengthCounts()
        labels, length = self.input_labels(model, input_texts), model.max_length
        rows = self.encode(examples, labels, model.tokenizer, length, model.counts, template=model.template)
        return self.decode(model, input_texts, model.outputs(rows))

    def input_labels(self, model: Inference, input_texts: Sequence[tuple[str, ...]]) -> Sequence[str]:
        """Choose the labels that `encode` gets for inputs."""
        return model.labels

    def texts_in(self, value: Any, number: int) -> tuple[str, ...]:
        """Split an input into its texts: a text or a pair. Raises ValueError naming its number if it is neither."""
        if isinstance(value, str):
            return (value,)
        if isinstance(value, tuple | list) and len(value) in (1, 2) and all(isinstance(text, str) for text in value):
            return tuple(value)
        raise ValueError(f"input {number}: {shorten(value)} is neither a text nor a pair of texts")

    @abstractmethod
    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        """Make the prediction for each input from the network's outputs."""


def write_submission(folder: Path, task: Task, split: str, ids: Sequence[str], logits: np.ndarray) -> Path:
    """Write the predictions of a test split in its benchmark's official format; returns the path.

    GLUE: `index<TAB>prediction`, a label, or for STS-B a score from 0 to 5. SWAG: `,pred`, the index of the right end.
    """
    assert isinstance(task.kind, TextKind), "submissions are for kinds with texts"
    path = folder / task.submissions[split]
    tab, head = (",", ("", "pred")) if path.suffix == ".csv" else ("\t", ("index", "prediction"))
    lines = [head, *zip(ids, task.kind.submitted(logits, task.labels), strict=True)]
    replace_text(path, "".join(f"{tab.join(line)}\n" for line in lines))
    return path


def wrong_number(example: TextExample, count: int, what: str, expected: int) -> ValueError:
    """Make the error for an example with a wrong number of texts."""
    return ValueError(f"{example.where}: {count} {what}, but every example must have {expected}; correct it")
