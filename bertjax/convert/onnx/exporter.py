"""Export to a folder with `model.onnx`, and all that is needed to give text to it: tokenizer and config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

import bertjax
from bertjax.config import ModelConfig
from bertjax.convert.folder import as_json, folder_of, refuse_to_lose, write_texts, written_whole
from bertjax.convert.huggingface.exporter import model_config
from bertjax.convert.huggingface.names import tensors_of
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, tokenizer_texts
from bertjax.convert.model_card import CARD_FILE, part_card
from bertjax.convert.sentence_transformers.exporter import encoder_config
from bertjax.finetune.kinds import kind_of
from bertjax.model.network import head_of
from bertjax.model.pooling import Pooling, check_vectors
from bertjax.storage.remote import Place, place_of
from bertjax.storage.sums import write_sums
from bertjax.training.checkpoint import named_arrays
from bertjax.training.run_directory import TrainedModel

MODEL_FILE, DATA_FILE = "model.onnx", "model.onnx.data"

# A protobuf message ends at 2 GiB; weights of a larger model lie in a file beside it.
_LARGEST_MESSAGE = (2 << 30) - (16 << 20)
_BESIDE = ("config.json", CARD_FILE, *TOKENIZER_FILES)


def export_onnx(
    model: TrainedModel, directory: str | Place, pooling: Pooling = "none", normalize: bool = False
) -> Place:
    """Write the model, and return the folder; the same model gives the same bytes.

    Of a model that was fine-tuned with a head the outputs are those of `onnx_graph.add_head`. Of any other, or with a
    pooling, they are of the encoder: `last_hidden_state` [batch, length, D] and, pooled, `sentence_embedding` [batch,
    D], float32. The folder appears whole or not at all (in object storage: it is whole if it has its card); an earlier
    export there is replaced. Raises ValueError if anything else is there, and ModuleNotFoundError where onnx is not
    installed.
    """
    tensors_of(model.config.model)
    _require_written(model.config.model)
    check_vectors(model.config.model, pooling, "last")
    if normalize and pooling == "none":
        raise ValueError("--normalize scales a text's vector; choose one with --pooling")
    target = folder_of(directory)
    weights = DATA_FILE if (target / DATA_FILE).exists() else MODEL_FILE
    refuse_to_lose(target, (*_BESIDE, MODEL_FILE, DATA_FILE), weights)
    headed = gives_logits(model, pooling)
    use = head_use(model) if headed else vector_use(model, pooling, normalize)
    with written_whole(target, last=CARD_FILE) as partial:
        weights = _write_model(model, partial, pooling, normalize)
        write_texts(
            partial,
            {
                "config.json": as_json(model_config(model) if headed else encoder_config(model)),
                **tokenizer_texts(model.tokenizer, model.max_length, model.config.model.family),
                CARD_FILE: part_card(model, "onnx", use, weights, headed),
            },
        )
        write_sums(partial)
    return place_of(str(directory))


# Options that the graph has, where it does not have all of them.
_OPTIONS = {
    "position_embedding": ("learned", "sinusoidal"),
    "norm": ("layer",),
    "norm_bias": (True,),
    "norm_place": ("post",),
    "attention_bias": ("all",),
    "mlp_bias": ("all",),
    "mlp": ("dense",),
    "window": (0,),
    "attention_block": (0,),
    "conv_kernel": (0,),
}


def _require_written(config: ModelConfig) -> None:
    """Raise ValueError for a network with an option that the graph has not."""
    beyond = [name for name, known in _OPTIONS.items() if getattr(config, name) not in known]
    if beyond:
        told = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in beyond)
        raise ValueError(f"--to onnx: {told}: bertjax writes no such graph; export to huggingface")


def gives_logits(model: TrainedModel, pooling: Pooling) -> bool:
    """Whether an export ends in the logits of a head, and not in vectors."""
    return pooling == "none" and bool(head_of(model.config.model).outputs)


def _write_model(model: TrainedModel, folder: Path, pooling: Pooling, normalize: bool) -> Path:
    """Write the graph, checked by onnx; returns the file that holds the weights."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ModuleNotFoundError("ONNX needs its package: pip install 'bertjax[onnx]'") from None
    from bertjax.convert.onnx.graph import Graph, add_encoder, add_head, add_pooling, inputs_of

    config = model.config.model
    arrays = {name: np.asarray(x) for name, x in named_arrays(jax.device_get(model.params)).items()}
    graph = Graph(inputs_of(config))
    hidden = add_encoder(graph, arrays, config)
    if gives_logits(model, pooling):
        add_head(graph, arrays, hidden, config)
    else:
        graph.output(hidden, HIDDEN, ("batch", "length", config.hidden_size))
    if pooling != "none":
        vector = add_pooling(graph, arrays, hidden, pooling, normalize)
        graph.output(vector, VECTOR, ("batch", config.hidden_size))
    made = graph.model("bertjax", bertjax.__version__)
    large = sum(x.nbytes for x in arrays.values()) > _LARGEST_MESSAGE
    path = folder / MODEL_FILE
    onnx.save_model(made, path, save_as_external_data=large, location=DATA_FILE if large else None)
    onnx.checker.check_model(str(path), full_check=True)
    return folder / DATA_FILE if large else path


HIDDEN, VECTOR = "last_hidden_state", "sentence_embedding"

_USE = """\
```python
import numpy as np, onnxruntime, tokenizers

tokenizer = tokenizers.Tokenizer.from_file("path/to/this/folder/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id}, pad_token="{pad}")
tokenizer.enable_truncation({length})
rows = tokenizer.encode_batch([{texts}])
session = onnxruntime.InferenceSession("path/to/this/folder/model.onnx")
{results} = session.run([{names}], {{
    "input_ids": np.array([row.ids for row in rows], np.int64),
    "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
{types}}})
```

Batch and length may be any. {meaning}."""
_TYPES = '    "token_type_ids": np.array([row.type_ids for row in rows], np.int64),\n'
_TEXTS = '"a text", "another one"'


def vector_use(model: TrainedModel, pooling: Pooling, normalize: bool) -> str:
    """Of an encoder, with the vectors of texts unless pooling is none."""
    scaled = ", scaled to length 1" if normalize else ""
    pooled = "" if pooling == "none" else f"; `{VECTOR}` has one per text: pooling {pooling}{scaled}"
    output = HIDDEN if pooling == "none" else VECTOR
    return _use(model, _TEXTS, (output,), f"`{HIDDEN}` has a vector per token{pooled}")


def head_use(model: TrainedModel) -> str:
    """Of a network with the head of a task."""
    labels = ", ".join(f"`{label}`" for label in model.labels)
    card = kind_of(model.kind).card
    return _use(model, card.onnx_inputs, head_of(model.config.model).outputs, card.onnx_outputs.format(labels=labels))


def _use(model: TrainedModel, texts: str, outputs: Sequence[str], meaning: str) -> str:
    tokenizer = model.tokenizer
    return _USE.format(
        pad_id=tokenizer.pad_id,
        pad=tokenizer.tokens[tokenizer.pad_id],
        length=model.max_length,
        texts=texts,
        types=_TYPES if model.config.model.type_vocab_size > 1 else "",
        results=", ".join(outputs) if len(outputs) > 1 else f"({outputs[0]},)",
        names=", ".join(f'"{name}"' for name in outputs),
        meaning=meaning,
    )
