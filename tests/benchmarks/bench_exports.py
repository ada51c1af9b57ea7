"""What fewer bits cost: size and accuracy of a classifier's exports, each by its own runtime from its folder alone.

    python tests/benchmarks/bench_exports.py --model RUN --glue DIR --folder DIR [--formats onnx litert:int8 ...]

RUN is a classifier of GLUE's SST-2, or a pretrained model that is fine-tuned for it first. Accuracy is that on the 872
sentences of the dev set. A format is a name of `bertjax export --to`, and behind a colon a precision. Others are
compared with the first.
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
    """Share of the examples whose largest logit is that of their label, with the folder's own tokenizer."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=model.tokenizer.pad_id, pad_token=model.tokenizer.tokens[model.tokenizer.pad_id])
    tokenizer.enable_truncation(model.max_length)
    examples = sorted(examples, key=lambda example: len(example.texts[0]))
    right = 0
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        rows = tokenizer.encode_batch([example.texts[0] for example in batch])
        of = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        inputs = {name: np.array([getattr(row, of[name]) for row in rows]) for name in input_names(model.config.model)}
        found = run(inputs)["logits"].argmax(axis=-1)
        right += sum(str(n) == example.label for n, example in zip(found, batch, strict=True))
    return right / len(examples)


def classifier(run: str, glue: Path, folder: Path) -> TrainedModel:
    """The model of a run; of a pretrained one, what fine-tuning for SST-2 makes of it, in the folder.

    It is made anew each time: a run of the same settings whose first weights are others counts as finished.
    """
    model = load_run(run)
    if isinstance(model.config, FinetuneConfig):
        return model
    made = folder / "classifier"
    shutil.rmtree(made, ignore_errors=True)
    words = ["finetune", "sst2", "--init-from", run, "--data", str(glue), "--run-dir", str(made)]
    assert verb([*words, "--learning-rate", "3e-4", "--batch-size", "32", "--epochs", "1"]) == 0, words
    return load_run(str(made))


def loaded(name: str, folder: Path) -> Run:
    """The exported network, as its runtime executes it."""
    return importlib.import_module(FORMATS[name].module).load(folder)


def main() -> None:
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a classifier, or a pretrained model")
    parser.add_argument(
        "--glue", type=Path, required=True, metavar="DIR", help="with SST-2/train.tsv and dev.tsv, also compressed"
    )
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="for the exports, and the classifier")
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
        found, begun = form.compare(model, folder, Vectors()), time.perf_counter()
        share = accuracy(model, folder, loaded(name, folder), examples)
        seconds = time.perf_counter() - begun
        network = (".onnx", ".tflite", ".safetensors", ".stablehlo", ".pb", ".data-00000-of-00001")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.name.endswith(network))
        first = first or (size, share)
        print(
            f"{which:16} {size / 1e6:8.2f} MB  {first[0] / size:5.2f}x smaller  accuracy {100 * share:6.2f} %  "
            f"({100 * (share - first[1]):+.2f})  {seconds:6.1f} s  {found}",
            flush=True,
        )


if __name__ == "__main__":
    main()
