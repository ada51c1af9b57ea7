"""`bertjax fill-mask --correct`: replace words that a model finds much less likely than others."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_overwrite, input_texts, output_file, require_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bertjax.interpret.correction import Correction, Examined
    from bertjax.loaded import LoadedModel

OPTIONS = ("masked", "threshold", "output", "overwrite", "evaluate")  # only for correction

_BATCH = 256  # texts
_TOP = 3  # proposals for a word
_SHOWN = 8  # skipped words to list
_CHARACTERS = 60  # of a text in a message


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--masked",
        action="store_true",
        help="hide each word in turn: more exact, but one row per word instead of one per text; not for MacBERT, which "
        "was trained without [MASK]",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="replace a word if log p(proposal) - log p(word) is above X (4, with --masked 9)",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="also write the corrected texts: .txt, one per line, or .jsonl with proposals"
    )
    add_overwrite(parser)
    parser.add_argument(
        "--evaluate",
        metavar="FILE.tsv",
        help="measure on pairs, as SIGHAN's: id, source and target sentence, with tabs. Without --threshold, the best "
        "one on every other pair is measured on the rest",
    )


def correct(arguments: argparse.Namespace) -> int:
    """Print the corrections of each text, or figures on pairs of texts."""
    from bertjax.interpret.correction import default_threshold
    from bertjax.loaded import open_model

    require_texts(arguments, "evaluate", "FILE.tsv")
    if arguments.evaluate and arguments.top is not None:
        raise ValueError(f"--top {arguments.top}: --evaluate measures the first proposal of each word; leave it out")
    if arguments.evaluate and arguments.output:
        raise ValueError(f"--output {arguments.output}: --evaluate writes no texts; leave it out")
    output = output_file(arguments, (".txt", ".jsonl"), "corrected texts")
    model = open_model(arguments.run)
    if arguments.evaluate:
        return _evaluate(model, arguments)
    texts, top = input_texts(arguments), _TOP if arguments.top is None else arguments.top
    threshold = default_threshold(arguments.masked) if arguments.threshold is None else arguments.threshold
    number = 1  # of the next text
    with _writer(output) as write:
        while batch := list(itertools.islice(texts, _BATCH)):
            for examined in model.examine(batch, masked=arguments.masked, top=top, number_from=number):
                correction = examined.correction(threshold)
                write(examined, correction)
                print(*_lines(examined, correction), sep="\n")
            number += len(batch)
    return 0


def _lines(examined: Examined, correction: Correction) -> list[str]:
    """Return the corrected text and a line for each replaced word."""
    skipped = ""
    if examined.skipped:
        word_list = ", ".join(examined.skipped[:_SHOWN]) + (", ..." if len(examined.skipped) > _SHOWN else "")
        skipped = f"    not examined (several tokens, or not in the vocabulary): {word_list}"
    if not correction.words:
        return [examined.text, "    nothing to correct", *filter(None, [skipped])]
    lines = [correction.text]
    for word in correction.words:
        proposals = "  ".join(f"{text} {ratio:+.1f}" for text, ratio in word.proposals)
        lines.append(f"    {word.start}-{word.end}  {word.text}  ->  {proposals}")
    return [*lines, *filter(None, [skipped])]


@contextlib.contextmanager
def _writer(output: Path | None) -> Iterator[Callable[[Examined, Correction], None]]:
    """Yield a function that writes a text to a file, which is replaced atomically at the end."""
    if output is None:
        yield lambda examined, correction: None
        return
    from bertjax.storage.files import replacing

    with replacing(output) as file:

        def write(examined: Examined, correction: Correction) -> None:
            words = [
                word._asdict() | {"proposals": [proposal._asdict() for proposal in word.proposals]}
                for word in correction.words
            ]
            record = {"text": examined.text, "corrected": correction.text, "words": words}
            record["not_examined"] = examined.skipped
            line = correction.text if output.suffix == ".txt" else json.dumps(record, ensure_ascii=False)
            if "\n" in line or "\r" in line:
                raise ValueError(
                    f"the text {examined.text[:_CHARACTERS]!r} has more than one line, and {output} has one text per "
                    "line; use .jsonl"
                )
            file.write(f"{line}\n".encode())

        yield write


def _evaluate(model: LoadedModel, arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from bertjax.interpret.correction_figures import judge, read_error_pairs

    pairs = read_error_pairs(Path(arguments.evaluate))
    examined = model.examine([pair.source for pair in pairs], masked=arguments.masked, top=1)
    lowercase = model.tokenizer.rules.lowercase
    threshold, measured = arguments.threshold, slice(None)
    if threshold is None:
        if len(pairs) < 2:
            raise ValueError(
                f"{arguments.evaluate}: only one pair; choosing a threshold needs two or more; give --threshold"
            )
        threshold = judge(examined[::2], pairs[::2], lowercase=lowercase)[0].best_threshold()
        measured = slice(1, None, 2)
        print(f"threshold {threshold:.2f}, chosen on pairs 1, 3, 5, ...; the figures are measured on the other pairs")
    judged, left_out = judge(examined[measured], pairs[measured], lowercase=lowercase)
    figures = judged.figures(threshold)
    print(
        f"{len(pairs[measured]) - len(left_out):,} pairs, {figures.words:,} words, {figures.errors:,} errors, "
        f"{figures.replaced:,} words replaced at threshold {threshold:.2f}"
    )
    print(*figures.lines(), sep="\n")
    if left_out:
        print(
            f"{len(left_out):,} pairs left out, because their sides differ in the number of words; the first is "
            f"{left_out[0]}"
        )
    return 0
