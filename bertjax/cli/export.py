"""`bertjax export`: a run's model in the format of another framework."""

from __future__ import annotations

import argparse

from bertjax.cli.model_source import POOLINGS, add_overwrite, require_free
from bertjax.cli.verb import Verb
from bertjax.convert.formats import ExportNames, require_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    from dataclasses import fields
    from functools import partial

    from bertjax.pipeline.exporting import ExportOptions, export

    values = {field.name: getattr(arguments, field.name) for field in fields(ExportOptions)}
    options = ExportOptions(**{name: value for name, value in values.items() if value is not None})
    print(export(arguments.run, options, partial(require_free, arguments=arguments)))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax export runs/quickstart --to huggingface --output my_bert",
    interrupted="nothing was left half written; run the same command again to start over",
)
