"""The same fine-tuning with transformers' Trainer: same rows, batch size, schedule and initial weights."""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from turns import STEP_SECONDS

from bertjax.config import FinetuneConfig
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import TaskContent
from bertjax.run.telemetry import METRICS_FILE
from bertjax.text.pool import cores

_IGNORED = -100  # the label that torch ignores

_CLASSES = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
}


class Rows(torch.utils.data.Dataset):
    """Rows as features for transformers' collators."""

    def __init__(self, rows: TaskRows, kind: str) -> None:
        self._rows, self._kind = rows, kind

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        rows = self._rows
        here = slice(rows.offsets[number], rows.offsets[number + 1])
        features: dict[str, Any] = {name: rows.tokens[name][here].tolist() for name in ("input_ids", "token_type_ids")}
        features["attention_mask"] = [1] * len(features["input_ids"])
        if self._kind == "sequence":
            features["labels"] = int(rows.rows["labels"][number, 0])
        elif self._kind == "tokens":
            has_label = rows.tokens["label_weights"][here] > 0
            features["labels"] = np.where(has_label, rows.tokens["labels"][here], _IGNORED).tolist()
        else:
            features["start_positions"] = int(rows.rows["starts"][number, 0])
            features["end_positions"] = int(rows.rows["ends"][number, 0])
        return features


class StepTimes(transformers.TrainerCallback):
    """Measures and logs the seconds between the ends of steps, including data loading, as bertjax does."""

    def __init__(self, file: Path) -> None:
        self.seconds: list[float] = []  # of all steps but the first
        self._end, self._file = 0.0, file

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Truncate the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the seconds since the last step."""
        end = time.perf_counter()
        if self._end:
            self.seconds.append(end - self._end)
            with self._file.open("a") as file:
                file.write(json.dumps({STEP_SECONDS: self.seconds[-1]}) + "\n")
        self._end = end


class Evaluations(transformers.TrainerCallback):
    """Evaluates the development set with our metrics every `every` steps and after the last one."""

    def __init__(self, content: TaskContent, collate: Any, size: int, every: int) -> None:
        (self._split,) = content.dev.values()
        self._rows = Rows(self._split.rows, content.kind.name)
        self._predict = partial(_predict, rows=self._rows, collate=collate, kind=content.kind.name, size=size)
        self._every = every
        self.figures: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Evaluate if it is due."""
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            assert self._split.figures is not None
            self.figures.append(self._split.figures(self._predict(model.eval())))
            model.train()


def finetune_with_trainer(
    config: FinetuneConfig, content: TaskContent, folder: str, work: Path, **settings: Any
) -> dict[str, Any]:
    """Train, and return the figures of the last weights (with patience, of the best) and the seconds per step.

    `settings` are further TrainingArguments.
    """
    kind, training, optimizer = content.kind.name, config.training, config.optimizer
    assert optimizer.name == "adamw", "the Trainer uses AdamW"
    torch.set_num_threads(cores())  # overrides OMP_NUM_THREADS
    transformers.set_seed(training.seed)
    labels = {} if kind == "span" else {"num_labels": len(content.labels)}
    model = _CLASSES[kind].from_pretrained(folder, **labels)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    collate = (
        transformers.DataCollatorForTokenClassification(tokenizer)
        if kind == "tokens"
        else transformers.DataCollatorWithPadding(tokenizer)
    )
    times = StepTimes(work / METRICS_FILE)
    evaluations = Evaluations(content, collate, training.global_batch_size, training.eval_every)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(work),
            max_steps=training.steps,
            per_device_train_batch_size=training.global_batch_size,
            per_device_eval_batch_size=training.global_batch_size,
            learning_rate=optimizer.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            lr_scheduler_type="linear",
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            adam_epsilon=optimizer.eps,
            max_grad_norm=optimizer.clip_norm,
            seed=training.seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=Rows(content.train, kind),
        data_collator=collate,
        callbacks=[times, evaluations],
    )
    begun = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begun
    metric = content.metrics[0]
    figures = max(evaluations.figures, key=itemgetter(metric)) if config.task.patience else evaluations.figures[-1]
    return {"figures": figures, "step": statistics.median(times.seconds), "seconds": seconds}


@torch.no_grad()
def _predict(model: Any, rows: Rows, collate: Any, kind: str, size: int) -> np.ndarray:
    """Compute logits like `bertjax.finetune.predict`."""
    predictions = []
    for start in range(0, len(rows), size):
        features = [rows[number] for number in range(start, min(start + size, len(rows)))]
        lengths = [len(feature["input_ids"]) for feature in features]
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        names = (*inputs, "labels") if kind == "tokens" else inputs
        batch = collate([{name: feature[name] for name in names} for feature in features])
        out = model(**{name: batch[name] for name in inputs})
        logits = (torch.stack([out.start_logits, out.end_logits], -1) if kind == "span" else out.logits).numpy()
        predictions += [
            row[:length] if kind != "sequence" else row for row, length in zip(logits, lengths, strict=True)
        ]
    return np.stack(predictions) if kind == "sequence" else np.concatenate(predictions)
