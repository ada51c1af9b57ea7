"""`bertjax neighbors --output`: make a table of similar words from word vectors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_overwrite, require_free

if TYPE_CHECKING:
    import numpy as np

    from bertjax.tokenization.tokenizer import Tokenizer


OPTIONS = ("vocab", "cased", "words", "nearest", "most", "overwrite")  # only for the table

_NEAREST, _MOST = 10, 100_000


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--output", metavar="FILE", help="table.tsv, for --data.similar-words")
    add_overwrite(parser)
    parser.add_argument("--vocab", metavar="FILE", help="with VECTORS: the vocabulary of the model to train")
    parser.add_argument("--cased", action="store_true", help="with --vocab: keep case and accents")
    parser.add_argument(
        "--words", metavar="FILE", help="with RUN: the words, one per line (the words that are one token)"
    )
    parser.add_argument("--nearest", type=int, metavar="N", help=f"similar words per word ({_NEAREST})")
    parser.add_argument("--most", type=int, metavar="N", help=f"use the first N words ({_MOST:,})")


def write_table(arguments: argparse.Namespace) -> int:
    """Write the table, and print its size and first rows."""
    from bertjax.storage.files import replace_text
    from bertjax.storage.remote import to_path
    from bertjax.text.similar_words import nearest_words, to_text, usable_ids

    arguments.nearest = _NEAREST if arguments.nearest is None else arguments.nearest
    arguments.most = _MOST if arguments.most is None else arguments.most
    if arguments.nearest < 1 or arguments.most < 2:
        raise ValueError(
            f"--nearest {arguments.nearest} --most {arguments.most}: give 1 or more similar words, of 2 words or more"
        )
    output = to_path(arguments.output)
    require_free(output, arguments)
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no directory {output.parent}; make it, or name another file")
    tokenizer, words, vectors = (_file_vectors if Path(arguments.run).is_file() else _run_vectors)(arguments)
    table = nearest_words(words, usable_ids(tokenizer, words), vectors, arguments.nearest)
    if not table:
        raise ValueError(
            f"{arguments.run}: no two of its {len(words):,} words have the same number of tokens; give other words"
        )
    replace_text(output, to_text(table))
    print(f"{len(table):,} of {len(words):,} words have similar words with the same number of tokens: {output}")
    for word, near in list(table.items())[:3]:
        print(f"    {word}: {'  '.join(near)}")
    print(f"next: bertjax pretrain RECIPE --data.masking words --data.similar-words {output}")
    return 0


def _file_vectors(arguments: argparse.Namespace) -> tuple[Tokenizer, list[str], np.ndarray]:
    from bertjax.text.similar_words import read_vectors
    from bertjax.text.trained_vocabulary import load_vocabulary
    from bertjax.tokenization.tokenizer import TextRules

    if not arguments.vocab:
        raise ValueError(
            f"{arguments.run} is a file of vectors: name with --vocab the vocabulary of the model to train, because a "
            "similar word must have as many tokens as the word"
        )
    if arguments.words:
        raise ValueError(f"--words {arguments.words}: a file of vectors has its own words; leave it out")
    tokenizer = load_vocabulary(arguments.vocab, TextRules(not arguments.cased, not arguments.cased))
    return tokenizer, *read_vectors(arguments.run, arguments.most)


def _run_vectors(arguments: argparse.Namespace) -> tuple[Tokenizer, list[str], np.ndarray]:
    from bertjax.convert.sources import open_source
    from bertjax.interpret.neighbors import static_vectors

    if arguments.vocab or arguments.cased:
        raise ValueError("--vocab and --cased are for a file of vectors; a run has its vocabulary: leave them out")
    listed = None
    if arguments.words:
        listed = _read_words(arguments.words)[: arguments.most]
    model, _ = open_source(arguments.run)
    words, vectors = static_vectors(model, listed)
    return model.tokenizer, words[: arguments.most], vectors[: arguments.most]


def _read_words(name: str) -> list[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        raise ValueError(f"--words {name}: {error}; give a text file in UTF-8, one word per line") from None
    return list(dict.fromkeys(word for line in lines if (word := line.strip())))
