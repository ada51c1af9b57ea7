"""What the model card of an ONNX export says: how to run the graph, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.model.pooling import Pooling
from bertjax.training.run_directory import TrainedModel

HIDDEN, VECTOR = "last_hidden_state", "sentence_embedding"
# What a head gives, by the names that its outputs have in transformers.
HEAD_OUTPUTS = {
    "sequence": ("logits",),
    "choice": ("logits",),
    "tokens": ("logits",),
    "span": ("start_logits", "end_logits"),
}

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
    "token_type_ids": np.array([row.type_ids for row in rows], np.int64),
}})
```

Batch and length may be any. {meaning}."""
_TEXTS = '"a text", "another one"'
_PAIRS = {
    "relevance": '("a query", "a passage"), ("a query", "another passage")',
    "choice": '("the start", "an end"), ("the start", "another end")',
    "span": '("a question?", "the text that answers it"), ("another?", "a text")',
}
_MEANINGS = {
    "sequence": "`logits` has a row per text, or per pair of texts, with a number for each label: {labels}",
    "regression": "`logits` has a row per text, or per pair of texts: the number that it was trained to give",
    "relevance": "`logits` has a row per pair: the higher, the more the passage says to the query",
    "choice": "`logits` has a row per pair: of the ends of one start, the one with the highest number is chosen",
    "tokens": "`logits` has a row per token, with a number for each label: {labels}. A word has those of its first "
    "token",
    "span": "`start_logits` and `end_logits` have a number per token: how likely the answer begins or ends there",
}


def vector_use(model: TrainedModel, pooling: Pooling, normalize: bool) -> str:
    """Of an encoder, with the vectors of texts unless pooling is none."""
    scaled = ", scaled to length 1" if normalize else ""
    pooled = "" if pooling == "none" else f"; `{VECTOR}` has one per text: pooling {pooling}{scaled}"
    output = HIDDEN if pooling == "none" else VECTOR
    return _use(model, _TEXTS, (output,), f"`{HIDDEN}` has a vector per token{pooled}")


def head_use(model: TrainedModel) -> str:
    """Of a network with the head of a task."""
    labels = ", ".join(f"`{label}`" for label in model.labels)
    texts, meaning = _PAIRS.get(model.kind, _TEXTS), _MEANINGS[model.kind].format(labels=labels)
    return _use(model, texts, HEAD_OUTPUTS[model.config.model.head], meaning)


def _use(model: TrainedModel, texts: str, outputs: Sequence[str], meaning: str) -> str:
    tokenizer = model.tokenizer
    return _USE.format(
        pad_id=tokenizer.pad_id,
        pad=tokenizer.tokens[tokenizer.pad_id],
        length=model.max_length,
        texts=texts,
        results=", ".join(outputs) if len(outputs) > 1 else f"({outputs[0]},)",
        names=", ".join(f'"{name}"' for name in outputs),
        meaning=meaning,
    )
