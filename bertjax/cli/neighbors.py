"""`bertjax neighbors`: the nearest words to a word, in the embedding table and in context."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli import similar
from bertjax.cli.model_source import add_text
from bertjax.cli.verb import Verb, require_unused

if TYPE_CHECKING:
    from bertjax.interpret.neighbors import Neighbors

_NEAREST = 3  # contexts shown for each context
_CONTEXTS = 8  # sentences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN|VECTORS",
        help="a run's directory, one of its checkpoints/<step>, hf:DIR or hf:NAME; with --output also vectors in "
        "word2vec's text format",
    )
    parser.add_argument("word", nargs="?", metavar="WORD", help="a word; none with --output")
    parser.add_argument(
        "--layer", type=int, metavar="N", help="layer whose vectors represent the contexts (the last one)"
    )
    parser.add_argument("--contexts", type=int, metavar="N", help=f"sentences shown at most ({_CONTEXTS})")
    add_text(parser)
    similar.add_options(parser.add_argument_group("a table of similar words, to train with instead of [MASK]"))


def run(arguments: argparse.Namespace) -> int:
    """Print the nearest words to a word."""
    if bool(arguments.word) == bool(arguments.output):
        raise ValueError("give either a WORD to look up, or --output FILE for a table of similar words")
    if arguments.output:
        require_unused(arguments, ("layer", "contexts", "text"), "WORD")
        return similar.write_table(arguments)
    require_unused(arguments, similar.OPTIONS, "--output")
    from bertjax.convert.sources import open_source
    from bertjax.interpret.neighbors import find_neighbors
    from bertjax.interpret.sample_text import sample_text
    from bertjax.storage.progress import ProgressLine

    contexts = _CONTEXTS if arguments.contexts is None else arguments.contexts
    if contexts < 1:
        raise ValueError(f"--contexts {contexts}: give 1 or more")
    model, _ = open_source(arguments.run)
    sample = sample_text(model, arguments.text, ProgressLine())
    neighbors = find_neighbors(model, arguments.word, sample, layer=arguments.layer, contexts=contexts)
    pieces = f", the mean of {' '.join(neighbors.pieces)}" if len(neighbors.pieces) > 1 else ""
    print(f"{arguments.word!r}: one vector in the embedding table, whatever the context{pieces}; its nearest words:")
    print("    " + "  ".join(f"{near.word} {near.cosine:.2f}" for near in neighbors.table))
    if not neighbors.contexts:
        print(f"no sentence of {sample.origin} has the word; name a text that does: --text FILE")
        return 0
    _print_contexts(neighbors, sample.origin)
    return 0


def _print_contexts(neighbors: Neighbors, origin: str) -> None:
    import numpy as np

    count = len(neighbors.contexts)
    place = f"after layer {neighbors.layer}" if neighbors.layer else "of the embeddings"
    print(f"{count} sentence{'s' * (count > 1)} of {origin}; vectors {place}")
    if count > 1:
        cosines = neighbors.cosines[np.triu_indices(count, 1)]
        print(
            f"cosines between its vectors: {cosines.min():.3f} to {cosines.max():.3f}, mean {cosines.mean():.3f}; "
            "in the table they are one vector, cosine 1.00"
        )
    for number, context in enumerate(neighbors.contexts):
        others = [other for other in np.argsort(-neighbors.cosines[number], kind="stable") if other != number]
        near = "  ".join(f"({other + 1}) {neighbors.cosines[number, other]:.2f}" for other in others[:_NEAREST])
        print(f"({number + 1}) {context.before} [{context.word}] {context.after}".replace("  ", " "))
        if near:
            print(f"    nearest contexts: {near}")
        words = "  ".join(f"{word.word} {word.cosine:.2f} ({(word.context or 0) + 1})" for word in context.words)
        print(f"    nearest words:    {words}")


VERB = Verb(
    add_arguments,
    run,
    example="bertjax neighbors runs/quickstart garden",
    interrupted="nothing was written; run the same command again to start over",
)
