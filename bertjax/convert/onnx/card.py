"""What the model card of an ONNX export says: how to run the graph, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.finetune.kinds import kind_of
from bertjax.model.network import head_of
from bertjax.model.pooling import Pooling
from bertjax.training.run_directory import TrainedModel

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
