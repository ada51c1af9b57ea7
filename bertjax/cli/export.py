"""`bertjax export`: a run's model in the format of another framework."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.model_source import POOLINGS, add_overwrite, comparison_line, require_free
from bertjax.cli.verb import Verb
from bertjax.convert.formats import ExportNames, load_format, require_extra

if TYPE_CHECKING:
    from pathlib import Path

    from bertjax.convert.folder import Prove
    from bertjax.convert.formats import Format, Vectors
    from bertjax.run.run_directory import TrainedModel
    from bertjax.storage.remote import AnyPath


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("run", metavar="RUN", help="a run's directory, or one of its checkpoints/<step>")
    formats = ExportNames()
    parser.add_argument("--to", choices=formats, default=next(iter(formats)), help="format (%(default)s)")
    parser.add_argument(
        "--pooling",
        choices=POOLINGS,
        help="how token vectors become one vector: for sentence-transformers and web (mean), and for the other "
        "executable formats (none); without it a fine-tuned model gives its logits",
    )
    parser.add_argument("--normalize", action="store_true", help="scale that vector to length 1")
    parser.add_argument(
        "--head",
        metavar="NAME",
        help="for huggingface: the pretraining head to write: pretraining (all of them), encoder (none), or one, such "
        "as mlm or nsp; transformers' class for it then loads the folder without a report (pretraining)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "float16", "int8"),
        help="of weights, for onnx (float32), litert and web (int8); int8 also rounds their inputs",
    )
    parser.add_argument("--generator", action="store_true", help="write the generator that an ELECTRA was trained with")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="directory to write (RUN/<format>, with -<precision> and -generator where they are requested)",
    )
    add_overwrite(parser)
    parser.add_argument(
        "--push", metavar="NAME", help="also upload it to this repository of the Hugging Face Hub: ORG/NAME or NAME"
    )
    parser.add_argument("--private", action="store_true", help="create the repository of --push as a private one")


def run(arguments: argparse.Namespace) -> int:
    """Write the model in a format, and compare the two on real text before an earlier export is replaced."""
    require_extra(arguments.to)
    from bertjax.convert.folder import near
    from bertjax.convert.foreign import module_label
    from bertjax.convert.sources import load_own_run
    from bertjax.embed.encoder import require_trained
    from bertjax.storage.hub import push, require_pushable
    from bertjax.storage.remote import path_of

    if arguments.push:
        require_pushable(arguments.push)
    elif arguments.private:
        raise ValueError("--private needs the repository of --push; name one, or leave --private out")
    model, form = load_own_run(arguments.run), load_format(arguments.to)
    if arguments.head:
        if form.with_head is None:
            raise ValueError(f"--head {arguments.head}: --to {arguments.to} writes all heads or none; leave --head out")
        form = form.with_head(arguments.head)
    name = arguments.to
    if arguments.precision:
        if arguments.precision not in form.precisions:
            raise ValueError(f"--precision {arguments.precision}: --to {name} has one precision; leave --precision out")
        form, name = form.precisions[arguments.precision](), f"{name}-{arguments.precision}"
    assert form.export is not None, "--to lists the formats with an export"
    if arguments.generator:
        if model.generator is None:
            raise ValueError(f"--generator: {arguments.run} was trained without one; leave it out")
        model, name = model.generator, f"{name}-generator"
    try:
        vectors = form.vectors(model, arguments.pooling, arguments.normalize)
    except ValueError as error:
        raise ValueError(f"--to {arguments.to}: {error}") from None
    require_trained(vectors.pooling, model.untrained, f"--to {arguments.to}")
    output = path_of(arguments.output) if arguments.output else model.directory / name
    require_free(output, arguments)
    directory = form.export(model, output, vectors, _comparison(form, model, vectors, output))
    for line in form.describe(model, directory):
        print(line)
    if model.untrained:
        print(f"never trained, so random: {', '.join(map(module_label, model.untrained))}")
    gives = form.gives(model, vectors)
    print(f"exported step {model.step:,} to {directory}{gives and f': {gives}'}")
    if arguments.push:
        with near(directory) as folder:
            message = f"step {model.step:,} of {model.config.name}, exported by bertjax"
            print(f"pushed to {push(folder, arguments.push, private=arguments.private, message=message)}")
    return 0


def _comparison(form: Format, model: TrainedModel, vectors: Vectors, output: AnyPath) -> Prove:
    """Compare a folder with the model and print the result, before the folder becomes `output`."""

    def prove(folder: Path) -> None:
        try:
            difference = form.compare(model, folder, vectors)
            if difference is not None and difference.not_compared:
                raise RuntimeError(f"{folder}: not compared: {'; '.join(difference.not_compared)}; correct the export")
            print(comparison_line(form.reference, difference))
        except RuntimeError as error:
            wrong = str(error).removeprefix(f"{folder}: ")
            raise RuntimeError(f"export to {output}: {wrong}; nothing there was changed") from error

    return prove


VERB = Verb(
    add_arguments,
    run,
    example="bertjax export runs/quickstart --to huggingface",
    interrupted="nothing was left half written; run the same command again to start over",
)
