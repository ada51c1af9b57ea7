"""A page as a format: a folder of static files with the ONNX graph that it runs and the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertjax.config import FinetuneConfig
from bertjax.convert.compare import PAIRS, Difference
from bertjax.convert.compare_vectors import LIMITS, compare_with_onnxruntime
from bertjax.convert.folder import Prove, write_texts
from bertjax.convert.format import Format, Vectors
from bertjax.convert.graph.export import gives, gives_logits, inputs_of, outputs_of, require_graph, write_folder
from bertjax.convert.model_card import task_about
from bertjax.convert.onnx.exporter import LAYOUT as OF_ONNX
from bertjax.convert.onnx.exporter import MODEL_FILE, Precision, write_onnx
from bertjax.convert.web.page import PACKAGES, page
from bertjax.families.registry import family_of
from bertjax.model.network import head_of
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath

PAGE_FILE, PACKAGES_FILE = "index.html", "package.json"
LAYOUT = replace(OF_ONNX, weights=(MODEL_FILE,), others=(PAGE_FILE, PACKAGES_FILE))
# A browser gives WebAssembly 4 GiB, in which the file and the weights made of it must fit together.
_LARGEST = 1 << 30
_EXAMPLES = 3


def export_web(
    model: TrainedModel,
    directory: str | AnyPath,
    vectors: Vectors,
    precision: Precision,
    prove: Prove | None = None,
) -> AnyPath:
    """Write the page and the model, and return the folder, which any server of static files can serve.

    The page loads the libraries of `package.json` from jsDelivr, or with `?local` in its address from `node_modules`
    next to it, where `npm install` puts them. Nothing that is typed leaves the browser. The folder is as `write_folder`
    says. Raises ValueError for an export without vectors of texts and without logits, and for a model of 1 GiB.
    """
    require_graph(model, vectors, "web")
    if vectors.pooling == "none" and not gives_logits(model, "none"):
        raise ValueError("--to web: a page shows vectors of texts or the logits of a head; choose a --pooling")

    def write(folder: Path) -> Path:
        weights = write_onnx(model, folder, vectors, precision)
        size = weights.stat().st_size
        if size > _LARGEST:
            raise ValueError(f"--to web: the graph has {size:,} bytes, and a page can load {_LARGEST:,}; use --to onnx")
        write_texts(
            folder,
            {
                PAGE_FILE: _page(model, vectors),
                PACKAGES_FILE: json.dumps({"private": True, "dependencies": PACKAGES}, indent=2) + "\n",
            },
        )
        return weights

    return write_folder(model, directory, vectors, LAYOUT, write, prove)


def _page(model: TrainedModel, vectors: Vectors) -> str:
    headed = gives_logits(model, vectors.pooling)
    what = f"A model {task_about(model).replace('`', '')}" if headed else "An encoder of texts"
    about = f"{what}. It runs in this browser: no text is sent anywhere."
    return page(model.config.name, about, _signature(model, vectors), _examples(model))


def _signature(model: TrainedModel, vectors: Vectors) -> dict[str, Any]:
    """What the page's script has to know."""
    config = model.config
    task = config.task if isinstance(config, FinetuneConfig) else None
    return {
        "inputs": inputs_of(config.model),
        "outputs": outputs_of(model, vectors),
        "labels": model.labels if config.model.num_labels == len(model.labels) else (),
        "longest": model.max_length,
        "padding": model.tokenizer.pad_id,
        "separators": family_of(config.model.family).template.separators,
        "shows": _shows(model, vectors),
        **({"max_answer": task.max_answer, "null_threshold": task.no_answer_threshold} if task else {}),
    }


def _shows(model: TrainedModel, vectors: Vectors) -> str:
    """Which of the page's tables shows the outputs, by what they are."""
    head = head_of(model.config.model)
    if not gives_logits(model, vectors.pooling):
        return "vectors"
    if not head.per_token:
        return "classes"
    return "tokens" if head.labelled else "spans"


def _examples(model: TrainedModel) -> list[str]:
    pairs = head_of(model.config.model).outputs and not head_of(model.config.model).labelled
    return ["\t".join(pair) if pairs else " ".join(pair) for pair in PAIRS[:_EXAMPLES]]


def _format(precision: Precision) -> Format:
    """The format with weights of this precision."""

    def compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
        return compare_with_onnxruntime(model, folder, vectors.pooling, vectors.normalize, limit=LIMITS[precision])

    def export(model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None) -> AnyPath:
        return export_web(model, directory, vectors, precision, prove)

    return Format(
        reference="onnxruntime",
        compare=compare,
        export=export,
        of_texts=True,
        pooling="none",
        describe=lambda model, folder: [
            f"next: python -m http.server --directory {folder}, and open http://localhost:8000 (without a network: "
            "npm install in that folder, and http://localhost:8000/?local)"
        ],
        gives=gives,
        precisions={name: lambda name=name: _format(name) for name in ("float32", "float16", "int8")},
    )


FORMAT = _format("int8")
