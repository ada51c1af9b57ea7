"""Evaluate a pretraining run on its held-out text."""

from __future__ import annotations

from dataclasses import dataclass

from bertjax.config import FinetuneConfig
from bertjax.convert.sources import load_own_run
from bertjax.convert.teacher import fit_teacher, read_teacher
from bertjax.finetune.run import RESULTS_FILE
from bertjax.report.run_summary import Measured, held_out_lines, measured_at
from bertjax.run.checkpoint import read_metadata
from bertjax.run.job import evaluate_params
from bertjax.run.run_directory import open_run_data
from bertjax.storage.progress import ProgressLine
from bertjax.storage.remote import AnyPath, to_path


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The held-out figures of a checkpoint."""

    directory: AnyPath  # of the run
    step: int
    text: str  # the amount of held-out text
    figures: dict[str, float]  # by their names in the log, such as eval/mlm_loss
    baselines: dict[str, float]  # figures without context, such as baseline/no_context_loss
    held_out: tuple[Measured, ...]  # the figures of the objectives, each with its baseline

    def __repr__(self) -> str:
        """Lines with the figures and their baselines, then the figures without one, by their names in the log."""
        names = {"eval/loss", *(f"eval/{one.figure}" for one in self.held_out)}
        others = {name: value for name, value in self.figures.items() if name not in names}
        width = max(map(len, others), default=0)
        return "\n".join(
            [
                f"Held-out text of {self.directory}, after {self.step:,} steps ({self.text}):",
                *held_out_lines(self.held_out),
                *(f"  {name:{width}}  {value:.4f}" for name, value in others.items()),
            ]
        )


def evaluate(run: str) -> Evaluation:
    """Evaluate the newest checkpoint of a run, or a given one (`RUN/checkpoints/STEP`), on the run's held-out text.

    Raises ValueError for a fine-tuned run, a changed teacher or changed text, and as `load_run` does.
    """
    model = load_own_run(run)
    if isinstance(model.config, FinetuneConfig):
        raise ValueError(
            f"{run} was fine-tuned; its figures are in {model.directory / RESULTS_FILE}. To measure it on another "
            "file, repeat the command that trained it with --test FILE: it trains nothing again"
        )
    source = read_teacher(model.config)
    teacher = None if source is None else fit_teacher(source, model.config, model.tokenizer)
    if teacher is not None and teacher.digest != read_metadata(to_path(run))["teacher_digest"]:
        raise ValueError(
            f"distillation.teacher={model.config.distillation.teacher!r} is not the model that {run} learned from: its "
            "weights have another digest; put the original back"
        )
    content = open_run_data(run, model.config, ProgressLine())
    figures, baselines = evaluate_params(model.config, content, model.params, model.step, teacher)
    held_out = measured_at(model.config, model.step, figures, baselines)
    return Evaluation(model.directory, model.step, content.size("held_out"), figures, baselines, held_out)
