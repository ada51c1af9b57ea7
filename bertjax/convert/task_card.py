"""What the model card of a fine-tuned model says of its task: what it does, how to use it, what it reached."""

from __future__ import annotations

from collections.abc import Mapping

from bertjax.config import FinetuneConfig
from bertjax.convert.huggingface.names import architecture
from bertjax.finetune.kinds import kind_of
from bertjax.training.run_directory import TrainedModel

_SHOWN = 50  # labels


def task_about(model: TrainedModel) -> str:
    """What the model does, and its labels, in words that go on "A BERT of ..."."""
    name = model.config.task.name if isinstance(model.config, FinetuneConfig) else ""
    labels = model.labels if model.config.model.num_labels else ()
    shown = ", ".join(f"`{label}`" for label in labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")
    return f"which {kind_of(model.kind).card.does} (task `{name}`" + (f"; labels {shown})" if labels else ")")


def task_use(model: TrainedModel) -> str:
    """How to use the folder with the libraries that load it."""
    use, name = kind_of(model.kind).card.use, architecture(model.config.model)
    return f"```python\n{use}\n```\n\nIt is a `{name}` of transformers."


def task_figures(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    """(measure, figure) of everything that was measured on the development sets, of what was logged at a step."""
    return [
        (f"`{name.removeprefix('eval/')}`", f"{value:.4f}")
        for name, value in sorted(figures.items())
        if name.startswith("eval/")
    ]
