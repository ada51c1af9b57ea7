"""A finished run in figures, and the last lines that a run prints."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from bertjax.config import Config
from bertjax.input.training_data import TrainingData
from bertjax.storage.remote import Place, place_of
from bertjax.training.trainer import Outcome


@dataclass(frozen=True)
class Completion:
    """What the model puts for one [MASK] of a held-out sentence."""

    text: str  # the sentence, with [MASK] where `answer` stood
    answer: str
    guesses: tuple[tuple[str, float], ...]  # token and its probability, best first


@dataclass(frozen=True)
class Summary:
    """A finished run in figures. None is a figure that the run does not have (no NSP, no measured peak)."""

    name: str
    about: str  # one line: what was trained on what, when
    steps: int
    tokens_seen: int  # real ones, padding excluded
    wall_seconds: float
    tokens_per_second: float
    mfu: float | None
    peak: str  # what the MFU is measured against
    mlm_loss: float  # held-out, nats per masked token
    mlm_accuracy: float
    unigram_loss: float  # of the same tokens under their own frequencies
    unigram_accuracy: float  # of always saying the most frequent token
    nsp_accuracy: float | None = None
    majority_accuracy: float | None = None  # of always saying the more frequent NSP label
    completions: tuple[Completion, ...] = ()


def summarise(config: Config, content: TrainingData, outcome: Outcome, completions: tuple[Completion, ...]) -> Summary:
    """The run in figures."""
    figures, baselines = outcome.evaluation, outcome.baselines
    return Summary(
        name=config.name,
        about=f"{', '.join(config.data.sources)}: {content.size('train')} to train on",
        steps=outcome.step,
        tokens_seen=round(outcome.tokens),
        wall_seconds=outcome.seconds,
        tokens_per_second=outcome.tokens_per_second,
        mfu=outcome.mfu,
        peak=str(outcome.peak),
        mlm_loss=figures["eval/mlm_loss"],
        mlm_accuracy=figures["eval/mlm_accuracy"],
        unigram_loss=baselines["baseline/unigram_loss"],
        unigram_accuracy=baselines["baseline/unigram_accuracy"],
        nsp_accuracy=figures.get("eval/nsp_accuracy"),
        majority_accuracy=baselines["baseline/majority_accuracy"] if "eval/nsp_accuracy" in figures else None,
        completions=completions,
    )


def last_words(config: Config, summary: Summary, report: Place, exported: Place) -> str:
    """What the run reached, where everything is, and what to do next."""
    held_out = [
        f"  MLM loss      {summary.mlm_loss:6.3f}    unigram {summary.unigram_loss:.3f}"
        f"    ({summary.unigram_loss - summary.mlm_loss:+.3f} nats gained)",
        f"  MLM accuracy  {summary.mlm_accuracy:6.1%}    most frequent token {summary.unigram_accuracy:.1%}",
    ]
    if summary.nsp_accuracy is not None:
        held_out.append(f"  NSP accuracy  {summary.nsp_accuracy:6.1%}    majority {summary.majority_accuracy:.1%}")
    filled = [
        f"  {completion.text}\n      {', '.join(f'{token} {share:.0%}' for token, share in completion.guesses)}"
        f"   (was: {completion.answer})"
        for completion in summary.completions
    ]
    run = place_of(config.directory)
    quoted = shlex.quote(str(run))
    return "\n".join(
        [
            f"\nheld-out text, after {summary.steps:,} steps and {summary.tokens_seen:,} tokens:",
            *held_out,
            *(["\nwhat the model puts for [MASK] in held-out sentences:", *filled] if filled else []),
            "\nwhere everything is:",
            f"  report        {report}",
            f"  Hugging Face  {exported}",
            f"  checkpoints   {run / 'checkpoints'}",
            "\nwhat to try next:",
            f"  bertjax fill-mask {quoted} 'The [MASK] returns a new array.'",
            "  bertjax pretrain configs/bert_mini.py --data.sources 'text:my_texts/**/*.txt'    # your own text",
            "  pip install -e '.[cuda]' && bertjax pretrain configs/bert_base.py ...            # the same on a GPU",
            f"  bertjax export {quoted} --to huggingface --output my_bert                           # take it away",
        ]
    )
