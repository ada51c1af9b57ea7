"""`bertjax tokenize`: the tokens of texts, and their ids."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_texts, input_texts
from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.tokenization.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tokenize`."""
    parser.add_argument(
        "vocabulary",
        metavar="RUN|VOCAB",
        help="a run's directory, hf:DIR or hf:NAME; or a vocab.txt, tokenizer.json or .model file",
    )
    add_texts(parser, "a text")
    parser.add_argument("--cased", action="store_true", help="with a vocab.txt: keep case and accents")


def run(arguments: argparse.Namespace) -> int:
    """Print the tokens, ids and number of tokens of each text."""
    if bool(arguments.text) == bool(arguments.file):
        raise ValueError("give either TEXT or --file FILE")
    tokenizer = _open(arguments.vocabulary, arguments.cased)
    for text in input_texts(arguments):
        ids = tokenizer.encode([text])[0].tolist()
        unknown = ids.count(tokenizer.unk_id)
        per_word = len(ids) / max(len(text.split()), 1)
        print(text)
        print("    " + " ".join(tokenizer.tokens[number] for number in ids))
        print("    " + " ".join(map(str, ids)))
        shown = f", {unknown} of them {tokenizer.tokens[tokenizer.unk_id]}" if unknown else ""
        print(f"    {len(ids)} token{'s' * (len(ids) != 1)}, {per_word:.2f} per word{shown}")
    return 0


def _open(vocabulary: str, cased: bool) -> Tokenizer:
    """Return the tokenizer of a run, a model or a file. Raises ValueError if there is none."""
    from bertjax.text.trained_vocabulary import load_vocabulary
    from bertjax.tokenization.tokenizer import TextRules

    rules = TextRules(not cased, not cased)
    if not Path(vocabulary).is_dir():
        return load_vocabulary(vocabulary, rules)
    if cased:
        raise ValueError(f"--cased: {vocabulary} has its own rules; leave it out")
    from bertjax.convert.sources import source_vocabulary

    about = source_vocabulary(vocabulary)
    return load_vocabulary(about["vocab"], TextRules(about["lowercase"], about["strip_accents"]))


VERB = Verb(
    add_arguments,
    run,
    example="bertjax tokenize runs/quickstart 'She looked at him suspiciously.'",
    interrupted="nothing was written; run the same command again to start over",
)
