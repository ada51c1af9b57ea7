"""`bertjax tokenize`: the tokens of texts, and their ids."""

from __future__ import annotations

import argparse

from bertjax.cli.model_source import add_texts, input_texts, require_text_or_file
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "vocabulary",
        metavar="RUN|VOCAB",
        help="a run's directory, hf:DIR or hf:NAME; or a vocab.txt, tokenizer.json or .model file",
    )
    add_texts(parser, "a text")
    parser.add_argument("--cased", action="store_true", help="with a vocab.txt: keep case and accents")


def run(arguments: argparse.Namespace) -> int:
    """Print the tokens, ids and number of tokens of each text."""
    from bertjax.pipeline.tokens import open_tokenizer

    require_text_or_file(arguments)
    tokenizer = open_tokenizer(arguments.vocabulary, cased=arguments.cased)
    for text in input_texts(arguments):
        ids = tokenizer.encode([text])[0].tolist()
        unknown = ids.count(tokenizer.unk_id)
        per_word = len(ids) / max(len(text.split()), 1)
        print(text)
        print("    " + " ".join(tokenizer.tokens[number] for number in ids))
        print("    " + " ".join(map(str, ids)))
        remark = f", {unknown} of them {tokenizer.tokens[tokenizer.unk_id]}" if unknown else ""
        print(f"    {len(ids)} token{'s' * (len(ids) != 1)}, {per_word:.2f} per word{remark}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax tokenize runs/quickstart 'She looked at him suspiciously.'",
    interrupted="nothing was written; run the same command again to start over",
)
