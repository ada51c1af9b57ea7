"""`bertjax export`: a run's model in the format of another framework."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.comparison import comparison_line
from bertjax.cli.encoding import POOLINGS
from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.storage.remote import Place
    from bertjax.training.run_directory import TrainedModel

ENCODERS = ("sentence-transformers", "onnx")  # formats that may end in one vector per text
FORMATS = ("huggingface", "tf1", *ENCODERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("run", metavar="RUN", help="a run's directory, or one of its checkpoints/<step>")
    parser.add_argument("--to", choices=FORMATS, default="huggingface", help="format (%(default)s)")
    parser.add_argument(
        "--pooling",
        choices=POOLINGS,
        help="how token vectors become one vector: for sentence-transformers (mean) and onnx (none; a fine-tuned model "
        "then gives its logits)",
    )
    parser.add_argument("--normalize", action="store_true", help="scale that vector to length 1")
    parser.add_argument("--output", metavar="DIR", help="directory to write (RUN/<format>)")


def run(arguments: argparse.Namespace) -> int:
    """Write the model in a format, and compare what was written with the model on real text."""
    from bertjax.training.run_directory import load_run

    model = load_run(arguments.run)
    target = arguments.output or model.directory / arguments.to
    if arguments.to in ENCODERS:
        return _export_encoder(model, target, arguments)
    if arguments.pooling or arguments.normalize:
        raise ValueError(
            f"--to {arguments.to} has no text vectors; --pooling and --normalize are for {' and '.join(ENCODERS)}"
        )
    directory = (_export_huggingface if arguments.to == "huggingface" else _export_tf1)(model, target)
    print(f"exported step {model.step:,} to {directory}")
    return 0


def _export_huggingface(model: TrainedModel, target: str | Place) -> Place:
    from bertjax.convert.compare import compare_with_transformers
    from bertjax.convert.folder import near
    from bertjax.convert.huggingface.exporter import export_huggingface
    from bertjax.convert.huggingface.names import architecture
    from bertjax.storage.remote import is_remote

    directory = export_huggingface(model, target)
    with near(directory) as folder:
        print(comparison_line("transformers", compare_with_transformers(model, folder)))
    where = f"a copy of {directory}" if is_remote(directory) else str(directory)
    loader = architecture(model.config.model) if model.kind else "AutoModelForMaskedLM"
    print(f"next: transformers.{loader}.from_pretrained({where!r})")
    return directory


def _export_tf1(model: TrainedModel, target: str | Place) -> Place:
    from bertjax.convert.compare import compare_with_tensorflow
    from bertjax.convert.folder import near
    from bertjax.convert.tf1.checkpoint import export_tensorflow

    directory = export_tensorflow(model, target)
    with near(directory) as folder:
        print("read back: the same bits")
        print(comparison_line("google-research/bert", compare_with_tensorflow(model, folder)))
    return directory


def _export_encoder(model: TrainedModel, target: str | Place, arguments: argparse.Namespace) -> int:
    from bertjax.convert.compare_vectors import compare_with_onnxruntime, compare_with_sentence_transformers
    from bertjax.convert.folder import near
    from bertjax.convert.onnx.exporter import export_onnx, gives_logits
    from bertjax.convert.sentence_transformers import export_sentence_transformers
    from bertjax.model.network import head_of

    is_onnx = arguments.to == "onnx"
    # A model trained to give vectors is exported with the pooling of its training.
    head = head_of(model.config.model)
    as_trained = head.of_task and not head.outputs and arguments.pooling is None
    pooling = arguments.pooling or ("none" if is_onnx and not as_trained else "mean")
    normalize = arguments.normalize or as_trained
    directory = (export_onnx if is_onnx else export_sentence_transformers)(model, target, pooling, normalize)
    with near(directory) as folder:
        if is_onnx:
            print(comparison_line("onnxruntime", compare_with_onnxruntime(model, folder, pooling, normalize)))
        else:
            difference = compare_with_sentence_transformers(model, folder, pooling, normalize)
            print(comparison_line("transformers with the pooling of the export", difference))
    gives = "logits" if is_onnx and gives_logits(model, pooling) else f"pooling {pooling}"
    print(f"exported step {model.step:,} to {directory}: {gives}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax export runs/quickstart --to huggingface",
    interrupted="nothing was left half written; run the same command again to start over",
)
