"""The figures of a finished run, and the last lines that it prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bertjax.config import Config
from bertjax.input.training_data import TrainingData
from bertjax.run.loop import Outcome
from bertjax.storage.remote import AnyPath, to_path
from bertjax.storage.terminal import bad, bold, dim, good
from bertjax.text.sources.registry import KINDS, parse_source
from bertjax.training.objectives import Measure, Objective, choose, list_measures
from bertjax.training.stages import make_stages, stage_at


@dataclass(frozen=True)
class Completion:
    """The model's predictions for one [MASK] of a held-out sentence."""

    text: str  # the sentence, with [MASK] instead of `answer`
    answer: str
    guesses: tuple[tuple[str, float], ...]  # token and its probability, best first


@dataclass(frozen=True)
class Measured:
    """A held-out figure of a finished run, and its baseline."""

    figure: str  # its name in the log after `train/` and `eval/`, such as `mlm_loss`
    measure: Measure
    value: float
    baseline: float

    @property
    def gain(self) -> float:
        """The improvement over the baseline; negative if the model is worse."""
        return (self.baseline - self.value) if self.measure.is_loss else (self.value - self.baseline)


def measured(
    objectives: Iterable[Objective], figures: Mapping[str, float], baselines: Mapping[str, float]
) -> tuple[Measured, ...]:
    """The measures of objectives among held-out figures, by the figures' names in the log."""
    return tuple(
        Measured(name, measure, figures[f"eval/{name}"], baselines[f"baseline/{measure.baseline}"])
        for name, measure in list_measures(objectives)
        if f"eval/{name}" in figures
    )


def measured_at(
    config: Config, step: int, figures: Mapping[str, float], baselines: Mapping[str, float]
) -> tuple[Measured, ...]:
    """`measured` for the objectives that a run has at a step."""
    return measured(choose(stage_at(make_stages(config), step).training.objectives), figures, baselines)


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run. MFU is None on a machine without a measured peak."""

    name: str
    about: str  # one line on the data
    steps: int
    tokens_seen: int  # real ones, padding excluded
    wall_seconds: float  # since `first_step`
    tokens_per_second: float
    mfu: float | None
    peak: str  # the rate that the MFU is relative to
    held_out: tuple[Measured, ...]  # of the run's objectives
    completions: tuple[Completion, ...] = ()
    store: str = ""  # path of the token store; empty for records
    first_step: int = 0  # from which the run was last resumed


_STORE = "token store "  # before its path in the name of a run's data


def summarise(config: Config, content: TrainingData, outcome: Outcome, completions: tuple[Completion, ...]) -> Summary:
    """Collect the figures of a run."""
    sources = ", ".join(source.removesuffix(":") for source in config.data.sources)
    return Summary(
        name=config.name,
        about=f"{sources or ', '.join(config.data.store)}: {content.size('train')} to train on",
        steps=outcome.step,
        tokens_seen=round(outcome.tokens),
        wall_seconds=outcome.seconds,
        tokens_per_second=outcome.tokens_per_second,
        mfu=outcome.mfu,
        peak=str(outcome.peak),
        held_out=measured_at(config, outcome.step, outcome.evaluation, outcome.baselines),
        completions=completions,
        first_step=outcome.first_step,
        store=content.name.removeprefix(_STORE) if content.name.startswith(_STORE) else "",
    )


def held_out_lines(held_out: Sequence[Measured]) -> list[str]:
    """The measures with their baselines, each as a line of the terminal."""
    width = max([13, *(len(measured.measure.name) for measured in held_out)])
    return [_held_out_line(measured, width) for measured in held_out]


def _held_out_line(measured: Measured, width: int) -> str:
    measure = measured.measure
    form = ".3f" if measure.is_loss else ".1%"
    gained = ""
    if measure.is_loss:
        gained = f"({abs(measured.gain):.3f} nats {'better' if measured.gain >= 0 else 'worse'} than the baseline)"
        gained = f"    {(good if measured.gain >= 0 else bad)(gained)}"
    name = f"{measure.name:{width}}"
    return f"  {name} {measured.value:6{form}}    {measure.baseline_name} {measured.baseline:{form}}{gained}"


def final_lines(config: Config, summary: Summary, report: AnyPath, exported: AnyPath | None) -> str:
    """Describe the run's results, its output, and the next steps."""
    filled = [
        f"  {completion.text}\n      {', '.join(f'{token} {share:.0%}' for token, share in completion.guesses)}"
        f"   (was: {completion.answer})"
        for completion in summary.completions
    ]
    run = to_path(config.directory)
    quoted = shlex.quote(str(run))
    return "\n".join(
        [
            bold(f"\nHeld-out text, after {summary.steps:,} steps and {summary.tokens_seen:,} tokens:"),
            *held_out_lines(summary.held_out),
            *([bold("\nPredictions for [MASK] in held-out sentences:"), *filled] if filled else []),
            bold("\nOutput:"),
            f"  report        {report}",
            f"  Hugging Face  {exported or 'transformers has no class of this network; use the run itself'}",
            f"  checkpoints   {run / 'checkpoints'}",
            bold("\nNext:"),
            *_next_steps(config, quoted, summary, exported is not None),
        ]
    )


def _next_steps(config: Config, run: str, summary: Summary, has_class: bool) -> list[str]:
    """Commands to try next, which run unchanged except for the names of the user's files."""
    steps = []
    if completions := summary.completions:  # the shortest is the easiest to read, one without quotes to type
        shortest = min(completions, key=lambda completion: (bool({*"\"'"} & {*completion.text}), len(completion.text)))
        whole = shlex.quote(shortest.text.replace("[MASK]", shortest.answer))
        steps.append((f"bertjax fill-mask {run} {shlex.quote(shortest.text)}", "a sentence of the held-out text"))
        steps.append((f"bertjax attention {run} {whole}", "a page: what each head attends to"))
    if summary.store:
        steps.append(
            (f"bertjax inspect {shlex.quote(summary.store)}", "the text in numbers, and rows with their masks")
        )
    sources = [KINDS[parse_source(source).kind] for source in config.data.sources]
    if sources and all(kind.default_pattern is not None for kind in sources):
        steps.append(("bertjax pretrain modern_mini --data.sources 'text:my_texts/**/*.txt'", "your own text"))
        steps.append(("pip install 'bertjax[cuda]' && bertjax bench bert_one_gpu", "how fast a GPU trains BERT-Base"))
    else:
        finetune = f"bertjax finetune classification --init-from {run} --train TABLE.csv"
        steps.append((finetune, "a table with the columns text and label"))
    if has_class:
        exported = shlex.quote(f"{config.name}_huggingface")
        steps.append((f"bertjax export {run} --to huggingface --output {exported}", "export to Hugging Face"))
    return [f"  {command}    {dim(f'# {what}')}" for command, what in steps]
