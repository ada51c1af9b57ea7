"""`bertjax import`: convert a model of another framework to a run."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from bertjax.cli.verb import Verb
from bertjax.convert.formats import FORMATS, source_kinds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder in a format of "
        + ", ".join(f"{name} ({kind}:DIR)" for kind, name in source_kinds(FORMATS.at_hand()).items())
        + "; hf:NAME, hf:ORG/NAME or hf:ORG/NAME@REVISION downloads from the Hugging Face Hub",
    )
    parser.add_argument("--output", metavar="RUN", help="directory of the run to write (runs/<name of DIR>)")


def run(arguments: argparse.Namespace) -> int:
    """Read the model, compare it with the original on real text, and write it as a run."""
    from bertjax.convert.compare import comparison_line
    from bertjax.convert.sources import as_run, foreign_folder, read_folder, read_source, write_run

    folder = foreign_folder(arguments.source)
    model = read_source(arguments.source) if folder is None else read_folder(folder)
    kind, _, written = arguments.source.partition(":")
    path = Path(os.path.expanduser(written or kind)).resolve()
    run = as_run(model, arguments.output or f"runs/{path.name if path.is_dir() else path.name.partition('@')[0]}")
    size = f"{model.num_parameters:,} parameters, a vocabulary of {model.tokenizer.vocab_size:,} tokens"
    print(f"{model.origin}: {size}")
    for note in (*model.notes, *(f"{module}: not in the source; initialised at random" for module in model.untrained)):
        print(f"  {note}")
    # Compare before writing anything: a model whose outputs differ is refused.
    if folder is not None:
        vectors = folder.form.vectors(run, None, False)
        difference = folder.form.compare(run, folder.path, vectors, model.untrained)
        print(comparison_line(folder.form.reference, difference))
    directory = write_run(run)
    print(f"imported to {directory}")
    quoted = shlex.quote(str(directory))
    if model.kind:
        print(f"next: bertjax.load({str(directory)!r}).predict(...), in Python")
    elif model.fills_masks:
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
