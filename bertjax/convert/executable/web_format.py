"""A web page: a folder of static files with the page, the ONNX graph that it runs, and the tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bertjax.config import FinetuneConfig
from bertjax.convert.compare import PAIRS
from bertjax.convert.executable.network import input_names
from bertjax.convert.executable.onnx_format import MODEL_FILE, write_onnx
from bertjax.convert.executable.onnx_format import RUNTIME as ONNX
from bertjax.convert.executable.runtime import Precision, gives_logits, output_names
from bertjax.convert.executable.web_page import PACKAGES, page
from bertjax.convert.folder import write_texts
from bertjax.convert.formats import Vectors
from bertjax.convert.model_card import task_about
from bertjax.families.registry import get_family
from bertjax.finetune.kinds import get_kind
from bertjax.finetune.tasks import count_input_texts
from bertjax.model.network import network_class
from bertjax.run.run_directory import TrainedModel

PAGE_FILE, PACKAGES_FILE = "index.html", "package.json"
# WebAssembly has 4 GiB in a browser, and must hold the file and the unpacked weights at once.
_LARGEST = 1 << 30
_EXAMPLES = 3


def write_web(model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision) -> Path:
    """Write the page and the graph, and return the graph's file; any server of static files can serve the folder.

    The page loads the libraries of `package.json` from jsDelivr, or with `?local` in its address from `node_modules`
    next to it, where `npm install` puts them. No input leaves the browser.

    Raises ValueError for an export without vectors of texts and without logits, and for a graph above 1 GiB.
    """
    has_logits = gives_logits(model, vectors)
    if vectors.pooling == "none" and not has_logits:
        raise ValueError("--to web: a page shows vectors of texts or the logits of a head; choose a --pooling")
    weights = write_onnx(model, folder, vectors, precision)
    if (size := weights.stat().st_size) > _LARGEST:
        raise ValueError(f"--to web: the graph has {size:,} bytes, and a page can load {_LARGEST:,}; use --to onnx")
    config, head = model.config, network_class(model.config.model)
    shows = ("tokens" if head.labelled else "spans") if head.per_token else "classes"
    several_hold, pair, texts = False, "", 1
    if has_logits and isinstance(config, FinetuneConfig):
        kind = get_kind(model.kind)
        several_hold, pair = kind.several_hold, kind.pair
        # Imported models do not record their number of texts: a line may have one or two.
        texts = count_input_texts(config.task) if shows == "classes" else 1
    second = f"; || between {pair or 'the two texts of a pair'}" if pair or texts != 1 else ""
    signature = {
        "inputs": input_names(config.model),
        "outputs": output_names(model, vectors),
        "labels": model.labels if config.model.num_labels == len(model.labels) else (),
        "longest": model.max_length,
        "padding": model.tokenizer.pad_id,
        "separators": get_family(config.model.family).template.separators,
        "shows": shows if has_logits else "vectors",
        "several_hold": several_hold,
        "pairs": bool(second),
    }
    if isinstance(config, FinetuneConfig):
        signature |= {"max_answer": config.task.max_answer, "null_threshold": config.task.no_answer_threshold}
    title = f"A model {task_about(model).replace('`', '')}" if has_logits else "An encoder of texts"
    description = f"{title}. It runs in this browser: no text is sent anywhere."
    between = " || " if pair or texts == 2 else " "
    examples = [between.join(one) for one in PAIRS[:_EXAMPLES]]
    files = {
        PAGE_FILE: page(config.name, description, signature, examples, second),
        PACKAGES_FILE: json.dumps({"private": True, "dependencies": PACKAGES}, indent=2) + "\n",
    }
    write_texts(folder, files)
    return weights


RUNTIME = replace(ONNX, name="web", write=write_web, weights=(MODEL_FILE,), others=(PAGE_FILE, PACKAGES_FILE))
FORMAT = RUNTIME.format(
    "int8",
    needs_pooling=True,
    describe=lambda model, folder: [
        f"next: python -m http.server --directory {folder}, and open http://localhost:8000 (without a network: "
        "npm install in that folder, and http://localhost:8000/?local)"
    ],
)
