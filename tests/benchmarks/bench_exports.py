"""Size and accuracy of a classifier's exports in several precisions, each executed by its own runtime.

    python tests/benchmarks/bench_exports.py --model RUN --glue DIR --folder DIR [--formats onnx litert:int8 ...]

RUN is a classifier for GLUE's SST-2, or a pretrained model that is fine-tuned for it first. Accuracy is measured on the
872 sentences of the dev set. A format is a name for `bertjax export --to`, with an optional precision after a colon.
All formats are compared with the first.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from bertjax.__main__ import main as verb
from bertjax.config import FinetuneConfig
from bertjax.convert.executable.network import input_names
from bertjax.convert.formats import FORMATS, Vectors, load_format
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.tasks import TASKS
from bertjax.run.run_directory import TrainedModel, load_run

_FORMATS = ("onnx", "onnx:float16", "onnx:int8", "savedmodel", "stablehlo", "litert:float32", "litert:int8")
_BATCH = 16

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def accuracy(model: TrainedModel, folder: Path, run: Run, examples: Sequence[TextExample]) -> float:
    """The accuracy of an exported classifier, with the tokenizer of its folder."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=model.tokenizer.pad_id, pad_token=model.tokenizer.tokens[model.tokenizer.pad_id])
    tokenizer.enable_truncation(model.max_length)
    examples = sorted(examples, key=lambda example: len(example.texts[0]))
    right = 0
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        rows = tokenizer.encode_batch([example.texts[0] for example in batch])
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        inputs = {
            name: np.array([getattr(row, fields[name]) for row in rows]) for name in input_names(model.config.model)
        }
        predictions = run(inputs)["logits"].argmax(axis=-1)
        right += sum(str(n) == example.label for n, example in zip(predictions, batch, strict=True))
    return right / len(examples)


def classifier(run: str, glue: Path, folder: Path) -> TrainedModel:
    """Load a classifier, or fine-tune a pretrained model for SST-2 in the folder.

    Always fine-tunes again, because a finished run with the same settings may have started from other weights.
    """
    model = load_run(run)
    if isinstance(model.config, FinetuneConfig):
        return model
    tuned = folder / "classifier"
    shutil.rmtree(tuned, ignore_errors=True)
    words = ["finetune", "sst2", "--init-from", run, "--data", str(glue), "--run-dir", str(tuned)]
    assert verb([*words, "--learning-rate", "3e-4", "--batch-size", "32", "--epochs", "1"]) == 0, words
    return load_run(str(tuned))


def main() -> None:
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a classifier, or a pretrained model")
    parser.add_argument(
        "--glue",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with SST-2/train.tsv and dev.tsv, which may be compressed",
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="folder for the exports and the classifier"
    )
    parser.add_argument("--formats", nargs="+", default=_FORMATS, metavar="NAME", help="(%(default)s)")
    arguments = parser.parse_args()
    examples = TASKS["sst2"].read(arguments.glue, "dev", print)
    model, first = classifier(arguments.model, arguments.glue, arguments.folder), None
    print(f"{len(examples)} examples, step {model.step}")
    for which in arguments.formats:
        name, _, precision = which.partition(":")
        form = load_format(name).precisions[precision]() if precision else load_format(name)
        assert form.export is not None
        folder = Path(form.export(model, arguments.folder / which.replace(":", "-"), Vectors()))
        comparison, begun = form.compare(model, folder, Vectors()), time.perf_counter()
        runtime = importlib.import_module(FORMATS[name].module).load(folder)
        share = accuracy(model, folder, runtime, examples)
        seconds = time.perf_counter() - begun
        network = (".onnx", ".tflite", ".safetensors", ".stablehlo", ".pb", ".data-00000-of-00001")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.name.endswith(network))
        first = first or (size, share)
        print(
            f"{which:16} {size / 1e6:8.2f} MB  {first[0] / size:5.2f}x smaller  accuracy {100 * share:6.2f} %  "
            f"({100 * (share - first[1]):+.2f})  {seconds:6.1f} s  {comparison}",
            flush=True,
        )


if __name__ == "__main__":
    main()
