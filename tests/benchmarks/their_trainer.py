"""Pretraining with transformers' Trainer, whose collator masks rows that bertjax laid out."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sides import dense_labels
from their_finetuning import StepTimes
from their_pretraining import pretraining

from bertjax.config import Config
from bertjax.input.training_data import RunBatches
from bertjax.run.telemetry import METRICS_FILE
from bertjax.text.pool import cores
from bertjax.tokenization.tokenizer import Tokenizer

_BATCH = 4_096  # rows that are read at once
_LENGTH_MULTIPLE = 16  # grouped rows are padded to a multiple of this
_IGNORED = -100  # the label that torch ignores


class UnmaskedRows(torch.utils.data.Dataset):
    """The first rows of a run before masking, as features for transformers' collator."""

    def __init__(self, batches: RunBatches, count: int, tokenizer: Tokenizer, *, pairs: bool) -> None:
        """`pairs` adds the labels of next-sentence prediction."""
        parts = [batches.batch(number, _BATCH) for number in range(math.ceil(count / _BATCH))]
        ids = [_unmasked(batch).astype(np.uint32 if tokenizer.vocab_size > 1 << 16 else np.uint16) for batch in parts]
        self._ids = np.concatenate(ids)[:count]
        self._types = np.concatenate([batch["token_type_ids"].astype(np.int8) for batch in parts])[:count]
        self._lengths = np.concatenate([(batch["sequence_ids"] > 0).sum(1) for batch in parts])[:count]
        self._labels = np.concatenate([batch["pair_labels"][:, 0] for batch in parts])[:count] if pairs else None
        self._is_special = np.zeros(tokenizer.vocab_size, np.int8)
        self._is_special[[tokenizer.cls_id, tokenizer.sep_id]] = 1

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> dict[str, Any]:
        length = self._lengths[number]
        ids = self._ids[number, :length]
        features = {
            "input_ids": ids.tolist(),
            "token_type_ids": self._types[number, :length].tolist(),
            "attention_mask": [1] * int(length),
            "special_tokens_mask": self._is_special[ids].tolist(),
        }
        if self._labels is None:
            return features
        return features | {"next_sentence_label": int(self._labels[number])}


class Exports(transformers.TrainerCallback):
    """Exports the model with its tokenizer in Hugging Face's layout every `every` steps, atomically."""

    def __init__(self, folder: Path, tokenizer: Path, every: int) -> None:
        self._folder, self._tokenizer, self._every = folder, tokenizer, every

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Export if it is due."""
        if self._every and state.global_step % self._every == 0:
            target, partial = self._folder / str(state.global_step), self._folder / "partial"
            model.save_pretrained(partial)
            shutil.copytree(self._tokenizer, partial, dirs_exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)


def pretrain(
    config: Config,
    rows: UnmaskedRows,
    run: Path,
    exports: Path,
    tokenizer: Path,
    *,
    compiled: bool,
    grouped: bool,
    every: int,
) -> None:
    """Train on the rows to the config's last step, continuing from the latest checkpoint in `run`.

    Writes a checkpoint and an export every `every` steps (0: never). `grouped` batches rows of similar length and pads
    to the longest; otherwise all rows are padded to the config's length. Model, sizes, rate, schedule and seed follow
    the config, whose dtype bfloat16 means autocast.
    """
    training, optimizer = config.training, config.optimizer
    torch.set_num_threads(cores())  # overrides OMP_NUM_THREADS
    transformers.set_seed(training.seed)
    network = pretraining(config.model)[0]
    if "nsp" not in training.objectives:
        network = transformers.BertForMaskedLM(network.config)
    vocabulary = transformers.AutoTokenizer.from_pretrained(tokenizer)
    trainer = transformers.Trainer(
        model=network,
        args=transformers.TrainingArguments(
            output_dir=str(run),
            max_steps=training.steps,
            per_device_train_batch_size=training.global_batch_size,
            learning_rate=optimizer.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            lr_scheduler_type="linear",
            optim="adamw_torch_fused",
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            adam_epsilon=optimizer.eps,
            max_grad_norm=optimizer.clip_norm,
            bf16=config.execution.dtype == "bfloat16",
            torch_compile=compiled,
            train_sampling_strategy="group_by_length" if grouped else "random",
            remove_unused_columns=False,  # the collator reads special_tokens_mask
            seed=training.seed,
            save_strategy="steps" if every else "no",
            save_steps=max(every, 1),
            save_total_limit=2,
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        processing_class=vocabulary,
        data_collator=transformers.DataCollatorForLanguageModeling(
            vocabulary,
            mlm_probability=config.data.mask_probability,
            pad_to_multiple_of=_LENGTH_MULTIPLE if grouped else config.data.sequence_length,
        ),
        callbacks=[StepTimes(run / METRICS_FILE), Exports(exports, tokenizer, every)],
    )
    trainer.train(resume_from_checkpoint=_latest_checkpoint(run))


@torch.inference_mode()
def held_out_loss(folder: Path, batches: list[dict[str, np.ndarray]]) -> float:
    """The mean MLM loss in nats of a model in Hugging Face's layout, on masked batches of bertjax."""
    torch.set_num_threads(cores())
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for batch in batches:
        labels = torch.tensor(dense_labels(batch))
        logits = network(
            input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(batch["token_type_ids"], dtype=torch.long),
            attention_mask=torch.tensor(batch["sequence_ids"] > 0, dtype=torch.long),
        ).logits
        is_masked = labels != _IGNORED
        total += float(torch.nn.functional.cross_entropy(logits[is_masked], labels[is_masked], reduction="sum"))
        count += int(is_masked.sum())
    return total / count


def _unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    labels = dense_labels(batch)
    return np.where(labels == _IGNORED, batch["input_ids"], labels)


def _latest_checkpoint(run: Path) -> str | None:
    """The latest complete checkpoint; the Trainer writes trainer_state.json last."""
    complete = [path.parent for path in run.glob("checkpoint-*/trainer_state.json")]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None
