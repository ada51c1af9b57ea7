"""Outputs of a network for a task's rows, and predictions of a fine-tuned model for inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bertjax.config import FinetuneConfig, MeshConfig, ModelConfig
from bertjax.families.registry import get_family
from bertjax.finetune.batches import padded, padded_length
from bertjax.finetune.encoding.global_tokens import with_global_tokens
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds import get_kind
from bertjax.finetune.kinds.choice import Choice
from bertjax.finetune.kinds.kind import Inference, default_labels
from bertjax.finetune.kinds.sequence import Prediction
from bertjax.finetune.kinds.span import Answer
from bertjax.finetune.kinds.tokens import Tag
from bertjax.finetune.tasks import count_input_texts
from bertjax.input.lengths import LengthCounts
from bertjax.model.attention.block_sparse import for_sequences, length_of_text, longest_full, sees_blocks
from bertjax.model.network import Params
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import local_rows, power_of_two_below, to_global, tokens_at_once
from bertjax.run.run_directory import TrainedModel
from bertjax.training.evaluate import PredictStep, make_predict_step
from bertjax.training.objectives import Objective
from bertjax.training.state import draw_blueprint
from bertjax.training.step import averages

Input = str | tuple[str, str] | tuple[str, Sequence[str]] | Sequence[str]
Output = Prediction | float | Choice | list[Tag] | Answer


@dataclass(frozen=True)
class Predictor:
    """Computes a network's outputs for rows on all devices of a mesh; every process gets all outputs."""

    step: PredictStep
    network: ModelConfig
    mesh: Mesh
    batch_size: int
    pad_id: int
    max_length: int
    per_token: bool
    mark: Callable[[TaskRows], TaskRows] = lambda rows: rows  # adds global tokens

    def predict(
        self,
        params: Params,
        rows: TaskRows,
        objective: Objective,
        go_on: Callable[[], bool] = lambda: True,
    ) -> tuple[np.ndarray, dict[str, float]] | None:
        """Compute (outputs in the order of rows, figures of the objective); None once `go_on` returns False.

        Outputs are float32, [n, ...] or per token [offsets[n], ...]. `go_on` is called before each batch.
        """
        rows = self.mark(rows)
        results: list[np.ndarray] = [np.empty(0)] * len(rows)
        total: Any = None
        for chosen, length in self.batches(rows.lengths):
            if not go_on():
                return None
            local = padded(rows, chosen[local_rows(self.mesh, len(chosen))], length, self.pad_id)
            outputs, sums = self.step(params, to_global(self.mesh, local))
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            for number, output in zip(chosen, np.asarray(outputs), strict=True):
                if number >= 0:
                    results[number] = output[: rows.lengths[number]] if self.per_token else output
        figures = jax.device_get(averages(total, total, (objective,)))
        whole = np.concatenate(results) if self.per_token else np.stack(results)
        return whole, {name: float(value) for name, value in figures.items() if name != "loss"}

    def batches(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield batches as (numbers of rows int64 [batch size], padded length), the longest rows first.

        A batch has `batch_size` rows of similar length, filled up with -1. In a batch with block-sparse attention all
        rows have the same length; it may have half as many rows, a quarter and so on.
        """
        order, start = np.argsort(-lengths, kind="stable"), 0
        while start < len(order):
            length = self._length(int(lengths[order[start]]))
            chosen, height = order[start : start + self.batch_size], self.batch_size
            if sees_blocks(self.network, length):
                chosen = chosen[[self._length(needed) == length for needed in lengths[chosen].tolist()]]
                while height % (2 * batch_shards(self.mesh)) == 0 and height // 2 >= len(chosen):
                    height //= 2
            start += len(chosen)
            yield np.pad(chosen, (0, height - len(chosen)), constant_values=-1), length

    def _length(self, needed: int) -> int:
        return length_of_text(self.network, needed, padded_length(needed, self.max_length))


class TaskModel:
    """A fine-tuned model on the devices of this machine."""

    def __init__(self, model: TrainedModel) -> None:
        """Put the weights on the devices. Raises ValueError for a model without a task head."""
        if not model.kind:
            raise ValueError(f"{model.directory}: this is a pretrained model without a task head; fine-tune it first")
        self.kind = get_kind(model.kind)
        if self.kind.no_prediction:
            raise ValueError(f"{model.directory}: {self.kind.no_prediction}")
        assert isinstance(model.config, FinetuneConfig), "only fine-tuned models have a task head"
        task, outputs = model.config.task, max(1, model.config.model.num_labels)
        labels = model.labels or default_labels(outputs)
        template = get_family(model.config.model.family).template
        self._model = Inference(
            task, labels, model.tokenizer, model.max_length, template, self._outputs, texts=count_input_texts(task)
        )
        self._mesh = make_mesh(MeshConfig(), jax.local_devices())
        self._network = for_sequences(model.config.model, model.max_length)
        blueprint = draw_blueprint(self._network, optax.identity(), self._mesh)
        self._params = jax.device_put(model.params, blueprint.shardings.params)
        self._objective = self.kind.objective(task)
        self._make_step = cache(
            lambda network: make_predict_step(blueprint.with_model(network), (self._objective,), self.kind.outputs)
        )
        self._mark = partial(
            with_global_tokens,
            part=self.kind.global_tokens,
            model=model.config.model,
            sep_id=model.tokenizer.sep_id,
            template=template,
        )

    @property
    def counts(self) -> LengthCounts:
        """Counts of truncated and split inputs of the last `predict`."""
        return self._model.counts

    def predict(self, inputs: Sequence[Input], null_threshold: float | None = None) -> list[Output]:
        """Predict for each input, like `bertjax.loaded.LoadedModel.predict`.

        Raises ValueError naming the number, from 1, of an input that the kind of task does not accept, and for a
        `null_threshold` of a model that does not answer questions.
        """
        if null_threshold is not None and not self.kind.may_abstain:
            raise ValueError(f"null threshold {null_threshold:g}: the model does not answer questions; leave it out")
        own = self._model.task.no_answer_threshold
        self._model.null_threshold = own if null_threshold is None else null_threshold
        return self.kind.predict(self._model, inputs) if inputs else []

    def notices(self) -> list[str]:
        """Lines about inputs of the last `predict` that lost tokens."""
        return self.counts.notices(self._model.max_length) if self.counts.any_cut else []

    def _outputs(self, rows: TaskRows) -> np.ndarray:
        """Compute outputs, float32 [rows, ...] or [tokens, ...]. Raises ValueError if one is not finite."""
        longest, pad_id = int(rows.lengths.max()), self._model.tokenizer.pad_id
        most = power_of_two_below(max(1, tokens_at_once(self._mesh) // longest))
        batch_size = min(most, 1 << (len(rows) - 1).bit_length()) * batch_shards(self._mesh)
        per_token = self.kind.network.per_token
        network = self._network_for(rows)
        step = self._make_step(network)
        predictor = Predictor(step, network, self._mesh, batch_size, pad_id, longest, per_token, self._mark)
        # Accelerators multiply float32 in fewer bits by default.
        with jax.set_mesh(self._mesh), jax.default_matmul_precision("highest"):
            result = predictor.predict(self._params, rows, self._objective)
        assert result is not None, "`go_on` is always True"
        if not np.isfinite(result[0]).all():
            raise ValueError("an output is not finite; are the model's weights damaged?")
        return result[0]

    def _network_for(self, rows: TaskRows) -> ModelConfig:
        """Choose the network for rows. Raises ValueError if rows of several sequences exceed full attention."""
        sequences = rows.rows["cls_positions"].shape[1]
        if sequences == 1:
            return self._network
        network = for_sequences(self._network, rows.longest_sequence)
        if network.attention_block:
            raise ValueError(
                f"a text has {rows.longest_sequence} tokens, special ones included, in a row of {sequences} sequences: "
                f"such rows need full attention, which model.attention_block={network.attention_block} limits to texts "
                f"of {longest_full(network.attention_block, network.random_blocks)} tokens; shorten it"
            )
        return network
