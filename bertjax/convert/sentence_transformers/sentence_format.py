"""sentence-transformers: a folder with the encoder and the pooling of its vectors.

    config.json, model.safetensors, tokenizer files   the encoder, as transformers' BertModel
    modules.json                                      the steps from text to vector, in order
    1_Pooling/, 2_Dense/, N_Normalize/                the steps after the encoder; Dense is BERT's pooler

Every version of sentence-transformers reads these names. The export does not need the library.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.convert.compare import INPUTS, PAIRS, VECTORS, Difference, our_vectors, within_limit
from bertjax.convert.folder import (
    Prove,
    as_json,
    refuse_to_lose,
    resolve_folder,
    write_tensors,
    write_texts,
    written_whole,
)
from bertjax.convert.formats import Format, Vectors
from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.exporter import WEIGHTS_FILE
from bertjax.convert.huggingface.names import (
    architecture,
    bare_encoder,
    bare_names,
    hf_classes,
    to_huggingface_tensors,
)
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, tokenizer_texts
from bertjax.convert.model_card import CARD_FILE, part_card
from bertjax.convert.sentence_transformers.reader import MODULES_FILE
from bertjax.families.registry import get_family
from bertjax.model.pooling import Pooling, check_vectors
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath, to_path
from bertjax.storage.sums import write_sums

LIBRARY = "sentence-transformers"
POOLING_FILE = "1_Pooling/config.json"

_DENSE, _NORMALIZE = "2_Dense", "Normalize"
_FILES = (
    "config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    MODULES_FILE,
    POOLING_FILE,
    f"{_DENSE}/config.json",
    f"{_DENSE}/{WEIGHTS_FILE}",
    WEIGHTS_FILE,
    CARD_FILE,
    *TOKENIZER_FILES,
)
# Our pooling -> theirs; the pooler is a dense layer with tanh on [CLS].
_MODES = {"mean": "mean", "cls": "cls", "max": "max", "pooler": "cls"}
_MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    None: "pooling_mode_mean_sqrt_len_tokens",
}
_USE = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["a text", "another one"])
```

A vector has {width} numbers: pooling {pooling}{scaled}. bertjax computes the same with `bertjax embed hf:FOLDER
texts.txt --output vectors.npy --pooling {pooling}{option}`."""


def export_sentence_transformers(
    model: TrainedModel,
    directory: str | AnyPath,
    pooling: Pooling = "mean",
    normalize: bool = False,
    prove: Prove | None = None,
) -> AnyPath:
    """Write the encoder and a pooling into `directory`, and return it; the same model gives the same bytes.

    The folder appears as in `written_whole`, with its card last; an earlier export is replaced. Raises ValueError if
    anything else is there, and for pooling none.
    """
    check_vectors(model.config.model, pooling, "last")
    if pooling not in _MODES:
        raise ValueError(f"--pooling {pooling}: {LIBRARY} makes one vector per text; choose {', '.join(_MODES)}")
    if "pooler" in get_family(model.config.model.family).heads and "pooler" not in model.params:
        raise ValueError(
            f"{model.directory}: a network for {model.kind} has no pooler, which {LIBRARY} expects of BERT"
        )
    target = resolve_folder(directory)
    refuse_to_lose(target, _FILES, WEIGHTS_FILE)
    with written_whole(target, CARD_FILE, prove) as partial:
        _write_files(model, partial, pooling, normalize)
        write_sums(partial)
    return to_path(str(directory))


def encoder_tensors(model: TrainedModel) -> dict[str, np.ndarray]:
    """The weights of the encoder and the pooler, under the names of the encoder's own class."""
    config = model.config.model
    encoder_class = hf_classes(config)["encoder"]
    return bare_names(to_huggingface_tensors(model.params, config, model.tokenizer.pad_id, encoder_class), config)


def encoder_config(model: TrainedModel) -> dict[str, Any]:
    """Write `config.json` for the encoder's own class."""
    encoder = bare_encoder(model.config.model)
    return {"architectures": [architecture(encoder)]} | to_config_json(encoder, model.tokenizer.special)


def _write_files(model: TrainedModel, folder: Path, pooling: Pooling, normalize: bool) -> None:
    config = model.config.model
    tensors, width = encoder_tensors(model), config.hidden_size
    computed = get_family(config.family).transformers.computed_tensors(config)
    write_tensors(folder / WEIGHTS_FILE, tensors | bare_names(computed, config))
    modes = {key: mode == _MODES[pooling] for mode, key in _MODE_KEYS.items()}
    texts = {
        "config.json": as_json(encoder_config(model)),
        **tokenizer_texts(model.tokenizer, model.max_length, model.config.model.family),
        MODULES_FILE: as_json(_modules(pooling, normalize)),
        # The tokenizer itself lower-cases.
        "sentence_bert_config.json": as_json({"max_seq_length": model.max_length, "do_lower_case": False}),
        "config_sentence_transformers.json": as_json({"__version__": {}, "prompts": {}, "default_prompt_name": None}),
        POOLING_FILE: as_json({"word_embedding_dimension": width, **modes}),
    }
    if pooling == "pooler":
        layer = {"in_features": width, "out_features": width, "bias": True}
        texts[f"{_DENSE}/config.json"] = as_json(layer | {"activation_function": "torch.nn.modules.activation.Tanh"})
    write_texts(folder, texts)
    if pooling == "pooler":
        dense = jax.device_get(model.params["pooler"]["dense"])
        linear = {"linear.weight": np.ascontiguousarray(dense["kernel"].T), "linear.bias": dense["bias"]}
        write_tensors(folder / _DENSE / WEIGHTS_FILE, linear)
    if normalize:
        (folder / _modules(pooling, normalize)[-1]["path"]).mkdir()  # empty: it has no settings
    scaled, option = (", scaled to length 1", " --normalize") if normalize else ("", "")
    use = _USE.format(width=width, pooling=pooling, scaled=scaled, option=option)
    write_texts(folder, {CARD_FILE: part_card(model, LIBRARY, use, folder / WEIGHTS_FILE)})
    # safetensors makes its files readable by the owner alone.
    for weights in folder.rglob(WEIGHTS_FILE):
        shutil.copymode(folder / "config.json", weights)


def _modules(pooling: Pooling, normalize: bool) -> list[dict[str, Any]]:
    kinds = ["Transformer", "Pooling", *["Dense"] * (pooling == "pooler"), *[_NORMALIZE] * normalize]
    return [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]


def compare_with_sentence_transformers(
    model: TrainedModel, directory: str | Path, pooling: Pooling, normalize: bool
) -> Difference | None:
    """Compare our float32 vectors with transformers' for a folder; None without torch, transformers.

    transformers' hidden states are pooled by the folder's own files, as sentence-transformers does. Raises
    RuntimeError if token ids or vectors differ.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        return None
    from transformers import AutoModel, AutoTokenizer

    texts = [text for pair in PAIRS for text in pair]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    for row, ids in zip(inputs["input_ids"].tolist(), model.tokenizer.encode_sentences(texts), strict=True):
        our_ids = [model.tokenizer.cls_id, *ids.tolist()[: model.max_length - 2], model.tokenizer.sep_id]
        if row[: len(our_ids)] != our_ids:
            raise RuntimeError(f"{directory}: its tokenizer encodes a text as {row}, ours as {our_ids}")
    theirs = _run_modules(Path(directory), AutoModel.from_pretrained(directory).float().eval(), inputs)
    # A family without token types has no such input.
    batch = {name: inputs[name].numpy() if name in inputs else np.zeros_like(inputs["input_ids"]) for name in INPUTS}
    ours = our_vectors(model, batch, Vectors(pooling, normalize))
    return within_limit(ours, {VECTORS: theirs}, batch["attention_mask"] == 1, f"{directory}: transformers")


def _run_modules(folder: Path, network: Any, inputs: Any) -> np.ndarray:
    """Compute vectors with transformers' network and the steps of `modules.json`, in torch."""
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file

    with torch.no_grad():
        x = hidden = network(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None].bool()
        for module in json.loads((folder / MODULES_FILE).read_text())[1:]:
            module_folder = folder / module["path"]
            kind = module["type"].rpartition(".")[2]
            if kind == "Pooling":
                settings = json.loads((module_folder / "config.json").read_text())
                means = (hidden * real).sum(1) / real.sum(1)
                poolings = {"cls_token": hidden[:, 0], "mean_tokens": means}
                poolings["max_tokens"] = hidden.masked_fill(~real, -torch.inf).amax(1)
                x = torch.cat([vector for mode, vector in poolings.items() if settings[f"pooling_mode_{mode}"]], dim=1)
            elif kind == "Dense":
                linear = load_file(module_folder / "model.safetensors")
                x = torch.tanh(torch.nn.functional.linear(x, linear["linear.weight"], linear["linear.bias"]))
            else:
                x = torch.nn.functional.normalize(x)
    return x.numpy()


FORMAT = Format(
    reference="transformers with the pooling of the export",
    compare=lambda model, folder, vectors, untrained=(): compare_with_sentence_transformers(model, folder, *vectors),
    export=lambda model, directory, vectors, prove=None: export_sentence_transformers(
        model, directory, *vectors, prove
    ),
    pooling="mean",
    gives=lambda model, vectors: f"pooling {vectors.pooling}",
)
