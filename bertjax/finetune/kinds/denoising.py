"""Denoising: a decoder reproduces a text from the vector of a damaged copy (TSDAE, Wang, Reimers and Gurevych 2021)."""

from __future__ import annotations

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.finetune.kinds.kind import TaskContent
from bertjax.finetune.kinds.text_vector import TextVectorKind
from bertjax.model.denoising import DenoisingNetwork
from bertjax.training.objectives import Batch, Forward, Keys, Sums


class DenoisingKind(TextVectorKind):
    """Encodes the first text of a pair and predicts the second from its vector, token by token.

    Development sets are the same as for vectors.
    """

    name, network, own_task = "denoising", DenoisingNetwork, "denoising"
    options = ("from_text", "positives")

    def default_positives(self, model: ModelConfig) -> tuple[str, ...]:
        return ("noise",)

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """Sum cross entropy and accuracy of the tokens; see `DenoisingNetwork.second_text_sums`."""
        inputs = (batch[name] for name in ("input_ids", "token_type_ids", "sequence_ids"))
        sums = forward.model.second_text_sums(forward(batch), *inputs, batch["label_weights"])
        return {"loss": sums.loss, "accuracy": sums.hits}

    def check_run(self, config: FinetuneConfig, content: TaskContent) -> None:
        pass  # vectors of a batch are not compared, unlike in the base classes


DENOISING = DenoisingKind()
