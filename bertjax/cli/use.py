"""`bertjax evaluate`, `fill-mask` and `export`: what one does with a trained run."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.analyze import fill_mask as masks
from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.huggingface import export_huggingface
from bertjax.text.prepare import prepare
from bertjax.text.progress import ProgressLine
from bertjax.text.store import TokenStore
from bertjax.training.run_directory import TrainedModel, load_run
from bertjax.training.trainer import evaluate_params


def evaluate(arguments: argparse.Namespace) -> int:
    """Print a run's held-out figures beside the baselines."""
    model = load_run(arguments.run)
    store = TokenStore.open(prepare(model.config.data, ProgressLine()))
    figures, baselines = evaluate_params(model.config, store, model.params)
    print(f"step {model.step:,} of {model.directory}, on {store.split('held_out').num_documents:,} held-out documents:")
    for name, value in figures.items():
        print(f"  {name:20} {value:.4f}")
    print(f"  {'unigram loss':20} {baselines.unigram_loss:.4f}")
    print(f"  {'unigram accuracy':20} {baselines.unigram_accuracy:.4f}")
    print(f"  {'majority NSP':20} {baselines.majority_accuracy:.4f}")
    return 0


def fill_mask(arguments: argparse.Namespace) -> int:
    """Print the guesses for each [MASK] of each text."""
    model = load_run(arguments.run)
    for text, found in zip(arguments.text, masks.fill_mask(model, arguments.text, arguments.top), strict=True):
        print(text)
        for guesses in found:
            print("    " + "  ".join(f"{token} {share:.1%}" for token, share in guesses))
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write the model in the format asked for."""
    model = load_run(arguments.run)
    directory = export_model(model, arguments.output)
    difference = compare_with_transformers(model, directory)
    if difference is None:
        print("not compared: torch and transformers are not both installed here")
    else:
        print(f"loaded by transformers and compared: {difference}")
    print(
        f"exported step {model.step:,} to {directory}\nnext: AutoModelForMaskedLM.from_pretrained({str(directory)!r})"
    )
    return 0


def export_model(model: TrainedModel, output: str | None) -> Path:
    """Export to Hugging Face's layout, by default into the run's directory."""
    return export_huggingface(model, Path(output) if output else model.directory / "huggingface")
