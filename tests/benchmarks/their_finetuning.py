"""The same fine-tuning by transformers' own Trainer: the same rows, batch size, schedule and weights to start from."""

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

_IGNORED = -100  # a label without weight, to torch

_CLASSES = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
}


class Rows(torch.utils.data.Dataset):
    """Rows as the features that transformers' collators take."""

    def __init__(self, rows: TaskRows, kind: str) -> None:
        self._rows, self._kind = rows, kind

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        rows = self._rows
        here = slice(rows.offsets[number], rows.offsets[number + 1])
        made: dict[str, Any] = {name: rows.tokens[name][here].tolist() for name in ("input_ids", "token_type_ids")}
        made["attention_mask"] = [1] * len(made["input_ids"])
        if self._kind == "sequence":
            made["labels"] = int(rows.rows["labels"][number, 0])
        elif self._kind == "tokens":
            weighed = rows.tokens["label_weights"][here] > 0
            made["labels"] = np.where(weighed, rows.tokens["labels"][here], _IGNORED).tolist()
        else:
            made["start_positions"] = int(rows.rows["starts"][number, 0])
            made["end_positions"] = int(rows.rows["ends"][number, 0])
        return made


class StepTimes(transformers.TrainerCallback):
    """Seconds from each step's end to the next one's: with the rows' fetching, as ours are measured and written."""

    def __init__(self, file: Path) -> None:
        self.seconds: list[float] = []  # of all but the first
        self._end, self._file = 0.0, file

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin a new file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Look at the clock."""
        end = time.perf_counter()
        if self._end:
            self.seconds.append(end - self._end)
            with self._file.open("a") as file:
                file.write(json.dumps({STEP_SECONDS: self.seconds[-1]}) + "\n")
        self._end = end


class Evaluations(transformers.TrainerCallback):
    """The figures of the development set by our metrics, every so many steps and after the last one."""

    def __init__(self, content: TaskContent, collate: Any, size: int, every: int) -> None:
        (self._split,) = content.dev.values()
        self._rows = Rows(self._split.rows, content.kind.name)
        self._predicted = partial(_predicted, rows=self._rows, collate=collate, kind=content.kind.name, size=size)
        self._every = every
        self.found: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Measure, if it is time."""
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            assert self._split.figures is not None
            self.found.append(self._split.figures(self._predicted(model.eval())))
            model.train()


def theirs(config: FinetuneConfig, content: TaskContent, folder: str, work: Path, **settings: Any) -> dict[str, Any]:
    """Train, and give the figures of the last weights, or with patience those of the best, with seconds of a step.

    `settings` are the Trainer's own, beyond what the config says.
    """
    kind, training, optimizer = content.kind.name, config.training, config.optimizer
    assert optimizer.name == "adamw", "what the Trainer has"
    torch.set_num_threads(cores())  # whatever OMP_NUM_THREADS says
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
    figures = max(evaluations.found, key=itemgetter(metric)) if config.task.patience else evaluations.found[-1]
    return {"figures": figures, "step": statistics.median(times.seconds), "seconds": seconds}


@torch.no_grad()
def _predicted(model: Any, rows: Rows, collate: Any, kind: str, size: int) -> np.ndarray:
    """Logits as `bertjax.finetune.predict` gives them."""
    found = []
    for start in range(0, len(rows), size):
        features = [rows[number] for number in range(start, min(start + size, len(rows)))]
        lengths = [len(feature["input_ids"]) for feature in features]
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        wanted = (*inputs, "labels") if kind == "tokens" else inputs
        batch = collate([{name: feature[name] for name in wanted} for feature in features])
        out = model(**{name: batch[name] for name in inputs})
        logits = (torch.stack([out.start_logits, out.end_logits], -1) if kind == "span" else out.logits).numpy()
        found += [row[:length] if kind != "sequence" else row for row, length in zip(logits, lengths, strict=True)]
    return np.stack(found) if kind == "sequence" else np.concatenate(found)
