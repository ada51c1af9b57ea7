"""`bertjax import`: a run from a model of another framework."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from bertjax.cli.comparison import comparison_line
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `import`."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="hf:DIR (Hugging Face's layout) or tf1:DIR (google-research/bert's checkpoints)",
    )
    parser.add_argument("--output", metavar="RUN", help="directory of the run to write (runs/<name of DIR>)")


def run(arguments: argparse.Namespace) -> int:
    """Read the model, compare it with the original on real text, and write it as a run."""
    import jax

    from bertjax.convert.compare import compare_with_tensorflow, compare_with_transformers
    from bertjax.convert.sources import as_run, read_source, write_run

    model = read_source(arguments.source)
    kind, _, place = arguments.source.partition(":")
    run = as_run(model, arguments.output or f"runs/{Path(place or kind).resolve().name}")
    parameters = sum(array.size for array in jax.tree.leaves(model.params))
    print(f"{model.origin}: {parameters:,} numbers, a vocabulary of {model.tokenizer.vocab_size:,} tokens")
    for note in (*model.notes, *(f"{module}: not in the source; initialized at random" for module in model.drawn)):
        print(f"  {note}")
    # Before anything is written: a model whose outputs differ is not kept.
    if kind == "hf":
        heads = bool(model.kind) or not model.drawn
        print(comparison_line("transformers", compare_with_transformers(run, place, heads=heads)))
    elif kind == "tf1":
        print(comparison_line("google-research/bert", compare_with_tensorflow(run, place)))
    directory = write_run(run)
    print(f"imported to {directory}")
    quoted = shlex.quote(str(directory))
    if model.kind:
        print(f"next: bertjax.load({str(directory)!r}).predict(...), in Python")
    elif not model.drawn and not model.config.causal:
        print(f"next: bertjax fill-mask {quoted} 'A text with a [MASK].'")
    vocabulary = shlex.quote(str(directory / run.tokenizer.main_file))
    print(f"next: bertjax pretrain RECIPE --init-from {quoted} --data.vocab {vocabulary}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax import hf:bert-base-uncased --output runs/bert-base-uncased",
    interrupted="no run was left half written; run the same command again to start over",
)
