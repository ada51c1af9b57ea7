"""The inputs and outputs of executable exports, the networks that have one, and their folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.folder import Prove, as_json, folder_of, refuse_to_lose, write_texts, written_whole
from bertjax.convert.format import Vectors
from bertjax.convert.graph.graph import Arrays, Graph
from bertjax.convert.graph.network import add_encoder, add_head, add_pooling
from bertjax.convert.huggingface.exporter import model_config
from bertjax.convert.huggingface.names import encoder_of, has_class
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, tokenizer_texts
from bertjax.convert.model_card import CARD_FILE, part_card
from bertjax.convert.sentence_transformers.exporter import encoder_config
from bertjax.finetune.kinds import kind_of
from bertjax.model.network import head_of
from bertjax.model.parameters import named_arrays
from bertjax.model.pooling import Pooling, check_vectors
from bertjax.model.shared_tables import with_own_words
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath, path_of
from bertjax.storage.sums import write_sums

HIDDEN, VECTOR = "last_hidden_state", "sentence_embedding"

# Options that an export for any length has, where it does not have all of them, and those that a graph has. Blocks of
# a row (BigBird) are drawn for its length.
_OF_FUNCTIONS = {"attention_block": (0,), "global_tokens": ("none", "marked")}
_OF_GRAPHS = {"features": ((),), "lstm_size": (0,), "task_heads": ("plain",)}


def inputs_of(config: ModelConfig) -> tuple[str, ...]:
    """The inputs, integers [batch, length]; without token types for a network that has one."""
    return "input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])


def outputs_of(model: TrainedModel, vectors: Vectors) -> tuple[str, ...]:
    """The names of the outputs, float32.

    Of a model that was fine-tuned with a head they are those of the head. Of any other, or with a pooling, they are of
    the encoder: `last_hidden_state` [batch, length, D] and, pooled, `sentence_embedding` [batch, D].
    """
    if gives_logits(model, vectors.pooling):
        return head_of(model.config.model).outputs
    return HIDDEN, *([VECTOR] if vectors.pooling != "none" else [])


def gives_logits(model: TrainedModel, pooling: Pooling) -> bool:
    """Whether an export ends in the logits of a head, and not in vectors."""
    return pooling == "none" and bool(head_of(model.config.model).outputs)


def gives(model: TrainedModel, vectors: Vectors) -> str:
    """The outputs, for people."""
    return "logits" if gives_logits(model, vectors.pooling) else f"pooling {vectors.pooling}"


def longest(config: ModelConfig) -> int:
    """Tokens of the longest rows, which a table of positions bounds; 0: any."""
    return config.max_position_embeddings if config.position_embedding in ("learned", "sinusoidal") else 0


def require_function(model: TrainedModel, vectors: Vectors, form: str) -> None:
    """Raise ValueError for a network or vectors that no export for any batch and length has."""
    _require(model.config.model, _OF_FUNCTIONS, form)
    check_vectors(model.config.model, vectors.pooling, "last")
    if vectors.normalize and vectors.pooling == "none":
        raise ValueError("--normalize scales a text's vector; choose one with --pooling")
    marks = model.config.model.global_tokens == "marked" and gives_logits(model, vectors.pooling)
    if marks and kind_of(model.kind).global_tokens is not None:
        raise ValueError(
            f"--to {form}: model.global_tokens='marked': no input says which tokens a task marks; use huggingface"
        )


def require_graph(model: TrainedModel, vectors: Vectors, form: str) -> None:
    """As `require_function`, for a network that is written as a graph."""
    _require(model.config.model, _OF_FUNCTIONS | _OF_GRAPHS, form)
    require_function(model, vectors, form)


def _require(config: ModelConfig, options: Mapping[str, tuple[Any, ...]], form: str) -> None:
    beyond = [name for name, known in options.items() if getattr(config, name) not in known]
    if beyond:
        settings = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in beyond)
        raise ValueError(f"--to {form}: {settings}: bertjax writes no such graph; export to huggingface")


def arrays_of(model: TrainedModel) -> Arrays:
    """The parameters that `add_network` takes, on the host."""
    return {name: np.asarray(x) for name, x in named_arrays(with_own_words(jax.device_get(model.params))).items()}


def add_network(graph: Graph, arrays: Arrays, model: TrainedModel, vectors: Vectors) -> None:
    """The network with the outputs of `outputs_of`."""
    config = model.config.model
    hidden = add_encoder(graph, arrays, config, model.tokenizer.pad_id)
    if gives_logits(model, vectors.pooling):
        add_head(graph, arrays, config, hidden)
        return
    graph.output(hidden, HIDDEN, ("batch", "length", config.hidden_size))
    if vectors.pooling != "none":
        vector = add_pooling(graph, arrays, config, hidden, vectors.pooling, vectors.normalize)
        graph.output(vector, VECTOR, ("batch", config.hidden_size))


_BESIDE = ("config.json", CARD_FILE, *TOKENIZER_FILES)


@dataclass(frozen=True)
class Layout:
    """What is in the folder of a format."""

    library: str  # that executes it, for the Hub
    weights: tuple[str, ...]  # files that may hold the weights; of those that are there the first does
    others: tuple[str, ...] = ()
    # Python for the card: imports, and from `inputs` to outputs, where {names} and {results} are those of the outputs
    imports: str = ""
    call: str = ""
    dtype: str = "int64"  # of the inputs


def write_folder(
    model: TrainedModel,
    directory: str | AnyPath,
    vectors: Vectors,
    layout: Layout,
    write: Callable[[Path], Path],
    prove: Prove | None = None,
) -> AnyPath:
    """Make the folder of an export, into which `write` puts the graph, and return it.

    `write` returns the file that holds the weights. Beside them are the tokenizer, the card and, where transformers has
    such a network, its `config.json`. The folder appears whole or not at all (in object storage: it is whole if it has
    its card), after `prove` was called with it; an earlier export there is replaced. Raises ValueError if anything else
    is there.
    """
    target = folder_of(directory)
    there = next((name for name in layout.weights if (target / name).exists()), layout.weights[0])
    refuse_to_lose(target, (*_BESIDE, *layout.weights, *layout.others), there)
    headed = gives_logits(model, vectors.pooling)
    net = model.config.model
    config = model_config if headed else encoder_config
    with written_whole(target, CARD_FILE, prove) as partial:
        weights = write(partial)
        known = has_class(net if headed else encoder_of(net))
        texts = {"config.json": as_json(config(model))} if known else {}
        texts |= tokenizer_texts(model.tokenizer, model.max_length, net.family)
        texts[CARD_FILE] = part_card(model, layout.library, _use(model, vectors, layout), weights, headed)
        write_texts(partial, texts)
        write_sums(partial)
    return path_of(str(directory))


_USE = """\
```python
import numpy as np, tokenizers
{imports}

folder = "path/to/this/folder"
tokenizer = tokenizers.Tokenizer.from_file(f"{{folder}}/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id}, pad_token="{pad}")
tokenizer.enable_truncation({length})
rows = tokenizer.encode_batch([{texts}])
inputs = {{
    "input_ids": np.array([row.ids for row in rows], np.{dtype}),
    "attention_mask": np.array([row.attention_mask for row in rows], np.{dtype}),
{types}}}
{call}
```

Batch and length may be any{most}. {meaning}."""
_TYPES = '    "token_type_ids": np.array([row.type_ids for row in rows], np.{dtype}),\n'


def _use(model: TrainedModel, vectors: Vectors, layout: Layout) -> str:
    """Python that puts texts through the export."""
    tokenizer, outputs = model.tokenizer, outputs_of(model, vectors)
    if gives_logits(model, vectors.pooling):
        card = kind_of(model.kind).card
        labels = ", ".join(f"`{label}`" for label in model.labels)
        texts, meaning = card.onnx_inputs, card.onnx_outputs.format(labels=labels)
    else:
        texts, meaning = '"a text", "another one"', _of_vectors(vectors)
        outputs = outputs[-1:]
    return _USE.format(
        imports=layout.imports,
        pad_id=tokenizer.pad_id,
        pad=tokenizer.tokens[tokenizer.pad_id],
        length=model.max_length,
        texts=texts,
        dtype=layout.dtype,
        types=_TYPES.format(dtype=layout.dtype) if "token_type_ids" in inputs_of(model.config.model) else "",
        call=layout.call.format(
            names=", ".join(f'"{name}"' for name in outputs),
            results=", ".join(outputs) if len(outputs) > 1 else f"({outputs[0]},)",
        ),
        most=f", up to {longest(model.config.model):,} tokens" if longest(model.config.model) else "",
        meaning=meaning,
    )


def _of_vectors(vectors: Vectors) -> str:
    scaled = ", scaled to length 1" if vectors.normalize else ""
    pooled = f"; `{VECTOR}` has one per text: pooling {vectors.pooling}{scaled}" if vectors.pooling != "none" else ""
    return f"`{HIDDEN}` has a vector per token{pooled}"
