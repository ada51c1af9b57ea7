"""`bertjax evaluate RUN TEXT`: pseudo-log-likelihoods of texts, and the accuracy on minimal pairs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_overwrite, input_texts, output_file, require_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from bertjax.loaded import LoadedModel

OPTIONS = ("variant", "output", "overwrite")  # only for scores

_VARIANTS = ("original", "word-l2r", "whole-word")  # a copy: bertjax.interpret.pseudo_likelihood imports jax


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--pairs",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="minimal pairs, as BLiMP's: tables with sentence_good and sentence_bad, or folders of them",
    )
    parser.add_argument(
        "--variant",
        choices=_VARIANTS,
        help="what is hidden with a token: nothing else (Salazar et al. 2020), the pieces of its word to its right, or "
        "all of its word (Kauf and Ivanova 2023) (original)",
    )
    parser.add_argument("--output", metavar="FILE", help="also write the figures to a .jsonl, a line for each")
    add_overwrite(parser)


def score(arguments: argparse.Namespace) -> int:
    """Print the score of each text, or the accuracy on each set of minimal pairs."""
    from bertjax.loaded import open_model

    require_texts(arguments, "pairs")
    variant = arguments.variant or _VARIANTS[0]
    output = output_file(arguments, (".jsonl",), "scores")
    model = open_model(arguments.run)
    records = (_score_pairs if arguments.pairs else _score_texts)(model, variant, arguments)
    if output is not None:
        write_records(output, records)
    return 0


def write_records(output: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Replace a .jsonl by a line for each record."""
    from bertjax.storage.files import replace_text

    replace_text(output, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _score_texts(model: LoadedModel, variant: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Print a line per text and the pseudo-perplexity of all texts. Returns the scores as records."""
    from bertjax.interpret.pseudo_likelihood import perplexity
    from bertjax.storage.progress import ProgressLine, no_progress

    texts = list(input_texts(arguments))
    if not texts:
        raise ValueError(f"--file {arguments.file}: it has no text; give a file with some")
    scores = model.score(texts, variant, ProgressLine() if arguments.file else no_progress)
    for text, score in zip(texts, scores, strict=True):
        print(f"{score.log_probability:10.3f}  {score.tokens:4} tokens  {score.per_token:8.3f} per token  {text}")
    print(f"pseudo-perplexity {perplexity(scores):.3f} over {sum(score.tokens for score in scores):,} tokens")
    return [{"text": text, **score._asdict()} for text, score in zip(texts, scores, strict=True)]


def _score_pairs(model: LoadedModel, variant: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Print the accuracy on each set of minimal pairs, and on all of them. Returns it as records."""
    from pathlib import Path

    from bertjax.interpret.pseudo_likelihood import Judgement, read_pair_sets
    from bertjax.storage.progress import ProgressLine

    sets = read_pair_sets([Path(path) for path in arguments.pairs])
    judged = model.judge_pairs(sets, variant, ProgressLine())
    width = max(len(item.name) for item in judged)
    if len(judged) > 1:
        judged.append(Judgement("all", sum(item.pairs for item in judged), sum(item.right for item in judged)))
    for item in judged:
        print(f"{item.name:{width}}  {item.accuracy:6.1%} ± {item.standard_error:.1%}  of {item.pairs:,} pairs")
    return [
        {"name": item.name, "pairs": item.pairs, "right": item.right, "accuracy": item.accuracy,
         "standard_error": item.standard_error}
        for item in judged
    ]  # fmt: skip
