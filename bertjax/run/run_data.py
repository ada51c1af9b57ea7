"""Open the training and evaluation data of a run."""

from __future__ import annotations

from bertjax.config import Config
from bertjax.families.registry import get_family
from bertjax.input.training_data import TrainingData, open_training_data
from bertjax.storage.progress import Progress
from bertjax.training.stages import make_stages


def open_data(config: Config, progress: Progress, fingerprint: str = "") -> TrainingData:
    """Open the data of a run: rows with the arrays of its objectives and the special tokens of its family.

    See `open_training_data` for `fingerprint` and for the errors.
    """
    stages = make_stages(config)
    objectives = tuple(dict.fromkeys(name for stage in stages for name in stage.training.objectives))
    template = get_family(config.model.family).template
    return open_training_data([stage.data for stage in stages], progress, objectives, template, fingerprint)
