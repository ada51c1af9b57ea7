"""Export to a folder with `model.onnx`, and all that is needed to give text to it: tokenizer and config."""

from __future__ import annotations

from pathlib import Path

import bertjax
from bertjax.convert.folder import folder_of, refuse_to_lose, written_whole
from bertjax.convert.huggingface import as_json, tokenizer_texts, write_texts
from bertjax.convert.model_card import CARD_FILE, encoder_card
from bertjax.convert.sentence_transformers import encoder_config, encoder_tensors
from bertjax.model.pooling import Pooling, check_vectors
from bertjax.text.remote import Place, place_of
from bertjax.tokenization.byte_level import MERGES_FILE
from bertjax.tokenization.loading import VOCABULARY_FILES
from bertjax.training.run_directory import TrainedModel

MODEL_FILE, DATA_FILE = "model.onnx", "model.onnx.data"
HIDDEN, VECTOR = "last_hidden_state", "sentence_embedding"

# A protobuf message ends at 2 GiB; weights of a larger model lie in a file beside it.
_LARGEST_MESSAGE = (2 << 30) - (16 << 20)
_TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json", CARD_FILE, *VOCABULARY_FILES, MERGES_FILE)
_USE = """\
```python
import numpy as np, onnxruntime, tokenizers

tokenizer = tokenizers.Tokenizer.from_file("path/to/this/folder/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id}, pad_token="{pad}")
tokenizer.enable_truncation({length})
rows = tokenizer.encode_batch(["a text", "another one"])
session = onnxruntime.InferenceSession("path/to/this/folder/model.onnx")
({output},) = session.run(["{output}"], {{
    "input_ids": np.array([row.ids for row in rows], np.int64),
    "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
    "token_type_ids": np.array([row.type_ids for row in rows], np.int64),
}})
```

Batch and length may be any. `last_hidden_state` has a vector per token{pooled}."""


def export_onnx(
    model: TrainedModel, directory: str | Place, pooling: Pooling = "none", normalize: bool = False
) -> Place:
    """Write the encoder, with a pooling unless that is none, and return the folder; the same model, the same bytes.

    The outputs are `last_hidden_state` [batch, length, D] and, pooled, `sentence_embedding` [batch, D], float32. The
    folder appears whole or not at all (in object storage: it is whole if it has its card); an earlier export there is
    replaced. Raises ValueError if anything else is there, and ModuleNotFoundError where onnx is not installed.
    """
    check_vectors(model.config.model, pooling, "last")
    if normalize and pooling == "none":
        raise ValueError("--normalize scales a text's vector; choose one with --pooling")
    target = folder_of(directory)
    weights = DATA_FILE if (target / DATA_FILE).exists() else MODEL_FILE
    refuse_to_lose(target, (*_TEXTS, MODEL_FILE, DATA_FILE), weights)
    with written_whole(target, last=CARD_FILE) as partial:
        weights = _write_model(model, partial, pooling, normalize)
        write_texts(
            partial,
            {
                "config.json": as_json(encoder_config(model)),
                **tokenizer_texts(model.tokenizer, model.max_length),
                CARD_FILE: encoder_card(model, "onnx", _use(model, pooling, normalize), weights),
            },
        )
    return place_of(str(directory))


def _write_model(model: TrainedModel, folder: Path, pooling: Pooling, normalize: bool) -> Path:
    """Write the graph, checked by onnx; returns the file that holds the weights."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ModuleNotFoundError("ONNX needs its package: pip install 'bertjax[onnx]'") from None
    from bertjax.convert.onnx_graph import Graph, add_encoder, add_pooling

    tensors, config = encoder_tensors(model), model.config.model
    graph = Graph()
    hidden = add_encoder(graph, tensors, config)
    graph.output(hidden, HIDDEN, ("batch", "length", config.hidden_size))
    if pooling != "none":
        vector = add_pooling(graph, tensors, hidden, pooling, normalize)
        graph.output(vector, VECTOR, ("batch", config.hidden_size))
    made = graph.model("bertjax", bertjax.__version__)
    large = sum(x.nbytes for x in tensors.values()) > _LARGEST_MESSAGE
    path = folder / MODEL_FILE
    onnx.save_model(made, path, save_as_external_data=large, location=DATA_FILE if large else None)
    onnx.checker.check_model(str(path), full_check=True)
    return folder / DATA_FILE if large else path


def _use(model: TrainedModel, pooling: Pooling, normalize: bool) -> str:
    tokenizer = model.tokenizer
    scaled = ", scaled to length 1" if normalize else ""
    return _USE.format(
        pad_id=tokenizer.pad_id,
        pad=tokenizer.tokens[tokenizer.pad_id],
        length=model.max_length,
        output=HIDDEN if pooling == "none" else VECTOR,
        pooled="" if pooling == "none" else f"; `{VECTOR}` has one per text: pooling {pooling}{scaled}",
    )
