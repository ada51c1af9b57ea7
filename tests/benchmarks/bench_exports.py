"""What fewer bits cost: size and accuracy of a classifier's exports, each by its own runtime from its folder alone.

    python tests/benchmarks/bench_exports.py --model RUN --data DEV.tsv --folder DIR [--formats onnx litert:int8 ...]

RUN is a model of one label for a text, DEV.tsv has the columns `sentence` and `label`, the label's number, as GLUE's
SST-2. A format is a name of `bertjax export --to`, and behind a colon a precision. Others are compared with the first.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tokenizers

from bertjax.convert.format import Vectors
from bertjax.convert.formats import FORMATS, format_of
from bertjax.convert.graph.export import inputs_of
from bertjax.training.run_directory import TrainedModel, load_run

_FORMATS = ("onnx", "onnx:float16", "onnx:int8", "savedmodel", "stablehlo", "litert:float32", "litert:int8")
_BATCH = 16

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def accuracy(model: TrainedModel, folder: Path, run: Run, examples: list[dict[str, str]]) -> float:
    """Share of the examples whose largest logit is that of their label, with the folder's own tokenizer."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=model.tokenizer.pad_id, pad_token=model.tokenizer.tokens[model.tokenizer.pad_id])
    tokenizer.enable_truncation(model.max_length)
    examples = sorted(examples, key=lambda example: len(example["sentence"]))
    right = 0
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        rows = tokenizer.encode_batch([example["sentence"] for example in batch])
        of = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        inputs = {name: np.array([getattr(row, of[name]) for row in rows]) for name in inputs_of(model.config.model)}
        found = run(inputs)["logits"].argmax(axis=-1)
        right += sum(str(n) == example["label"] for n, example in zip(found, batch, strict=True))
    return right / len(examples)


def loaded(name: str, folder: Path) -> Run:
    """The exported network, as its runtime executes it."""
    module = FORMATS[name].module
    return importlib.import_module(module.replace("onnx.format", "onnx.exporter")).loaded(folder)


def main() -> None:
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a classifier of texts")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="GLUE's dev.tsv of SST-2, or its like")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="where the exports are written")
    parser.add_argument("--formats", nargs="+", default=_FORMATS, metavar="NAME", help="(%(default)s)")
    arguments = parser.parse_args()
    with arguments.data.open(encoding="utf-8", newline="") as file:
        examples = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    model, first = load_run(arguments.model), None
    print(f"{len(examples)} examples, step {model.step}")
    for which in arguments.formats:
        name, _, precision = which.partition(":")
        form = format_of(name).precisions[precision]() if precision else format_of(name)
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
