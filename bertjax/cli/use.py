"""`bertjax evaluate`, `fill-mask` and `export`: what one does with a trained run."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from bertjax.config import FinetuneConfig
from bertjax.convert.compare import Difference, compare_with_tensorflow, compare_with_transformers
from bertjax.convert.compare_vectors import compare_with_onnxruntime, compare_with_sentence_transformers
from bertjax.convert.folder import near
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import architecture
from bertjax.convert.onnx.exporter import export_onnx, gives_logits
from bertjax.convert.sentence_transformers import export_sentence_transformers
from bertjax.convert.sources import as_run, read_source, write_run
from bertjax.convert.tf1.checkpoint import export_tensorflow
from bertjax.finetune.run import RESULTS_FILE
from bertjax.input.training_data import open_training_data
from bertjax.interpret import fill_mask as masks
from bertjax.loaded import open_model
from bertjax.model.bert import head_of
from bertjax.storage.progress import ProgressLine
from bertjax.storage.remote import Place, is_remote
from bertjax.training.run_directory import TrainedModel, load_run
from bertjax.training.stages import stages_of
from bertjax.training.trainer import evaluate_params

EXPORTERS = {"huggingface": export_huggingface, "tf1": export_tensorflow}
# Those of encoders, which may end in one vector per text: the exporter, its pooling unless told, and who compares.
ENCODERS = {
    "sentence-transformers": (
        export_sentence_transformers,
        "mean",
        ("transformers, pooled as it says", compare_with_sentence_transformers),
    ),
    "onnx": (export_onnx, "none", ("onnxruntime", compare_with_onnxruntime)),
}
_BOTH = " and ".join(ENCODERS)


def evaluate(arguments: argparse.Namespace) -> int:
    """Print a run's held-out figures beside the baselines."""
    model = load_run(arguments.run)
    if isinstance(model.config, FinetuneConfig):
        raise ValueError(
            f"{arguments.run} was fine-tuned; its figures are in {model.directory / RESULTS_FILE}. The command that "
            "trained it, with --test FILE, measures its weights on that file as well, and trains nothing again"
        )
    content = open_training_data([stage.data for stage in stages_of(model.config)], ProgressLine())
    figures, baselines = evaluate_params(model.config, content, model.params, model.step)
    print(f"step {model.step:,} of {model.directory}, held out: {content.size('held_out')}")
    for name, value in figures.items():
        print(f"  {name:20} {value:.4f}")
    print(f"  {'unigram loss':20} {baselines['baseline/unigram_loss']:.4f}")
    print(f"  {'unigram accuracy':20} {baselines['baseline/unigram_accuracy']:.4f}")
    print(f"  {'majority NSP':20} {baselines['baseline/majority_accuracy']:.4f}")
    return 0


def fill_mask(arguments: argparse.Namespace) -> int:
    """Print the guesses for each [MASK] of each text."""
    model = load_run(arguments.run)
    for text, found in zip(arguments.text, masks.fill_mask(model, arguments.text, arguments.top), strict=True):
        print(text)
        for guesses in found:
            print("    " + "  ".join(f"{token} {share:.1%}" for token, share in guesses))
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Print what a fine-tuned model says of one input: the likeliest first, where there is more than one answer."""
    model = open_model(arguments.run)
    for line in model.told(arguments.text, null_threshold=arguments.null_threshold):
        print(line)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write the model in the format asked for."""
    model = load_run(arguments.run)
    target = arguments.output or model.directory / arguments.to
    if arguments.to in ENCODERS:
        return _export_encoder(model, target, arguments)
    if arguments.pooling or arguments.normalize:
        raise ValueError(f"--to {arguments.to} has no vectors of texts; --pooling and --normalize are for {_BOTH}")
    directory = EXPORTERS[arguments.to](model, target)
    with near(directory) as folder:
        if arguments.to == "huggingface":
            print(_compared("transformers", compare_with_transformers(model, folder)))
            where = f"a copy of {directory}" if is_remote(directory) else str(directory)
            loader = architecture(model.config.model) if model.kind else "AutoModelForMaskedLM"
            print(f"next: transformers.{loader}.from_pretrained({where!r})")
        else:
            print("read back: the same bits")
            print(_compared("google-research/bert", compare_with_tensorflow(model, folder)))
    print(f"exported step {model.step:,} to {directory}")
    return 0


def _export_encoder(model: TrainedModel, target: str | Place, arguments: argparse.Namespace) -> int:
    exporter, usual, (whom, compare) = ENCODERS[arguments.to]
    # What was trained to give vectors is exported as it was trained.
    head = head_of(model.config.model)
    as_trained = head.of_task and not head.outputs and arguments.pooling is None
    pooling = arguments.pooling or ("mean" if as_trained else usual)
    normalize = arguments.normalize or as_trained
    directory = exporter(model, target, pooling, normalize)
    with near(directory) as folder:
        print(_compared(whom, compare(model, folder, pooling, normalize)))
    gives = "logits" if arguments.to == "onnx" and gives_logits(model, pooling) else f"pooling {pooling}"
    print(f"exported step {model.step:,} to {directory}: {gives}")
    return 0


def import_model(arguments: argparse.Namespace) -> int:
    """Make a run of a model of another system."""
    model = read_source(arguments.source)
    kind, _, place = arguments.source.partition(":")
    run = as_run(model, arguments.output or f"runs/{Path(place or kind).resolve().name}")
    parameters = sum(array.size for array in jax.tree.leaves(model.params))
    print(f"{model.origin}: {parameters:,} numbers, a vocabulary of {model.tokenizer.vocab_size:,} tokens")
    for note in (*model.notes, *(f"{module}: not there; drawn at random" for module in model.drawn)):
        print(f"  {note}")
    # Before anything is written: what computes something else is not kept.
    if kind == "hf":
        heads = bool(model.kind) or not model.drawn
        print(_compared("transformers", compare_with_transformers(run, place, heads=heads)))
    elif kind == "tf1":
        print(_compared("google-research/bert", compare_with_tensorflow(run, place)))
    directory = write_run(run)
    print(f"imported to {directory}")
    if model.kind:
        print(f"next: bertjax.load({str(directory)!r}).predict(...), in Python")
    elif not model.drawn and not model.config.causal:
        print(f"next: bertjax fill-mask {directory} 'A text with a [MASK].'")
    print(f"next: bertjax pretrain RECIPE --init-from {directory} --data.vocab {directory / run.tokenizer.main_file}")
    return 0


def _compared(whom: str, difference: Difference | None) -> str:
    if difference is None:
        return f"not compared with {whom}: it is not installed here, or the checkpoint has not all heads"
    return f"compared with {whom} on real text: {difference}"
