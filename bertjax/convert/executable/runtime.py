"""Exports that a runtime executes: inputs, outputs, the folder, and the comparison with the model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.compare import (
    LIMIT,
    LOGITS,
    PAIRS,
    STATES,
    VECTORS,
    Difference,
    our_outputs,
    our_vectors,
    pair_batch,
    within_limit,
)
from bertjax.convert.executable.network import NetworkGraph, input_names
from bertjax.convert.folder import Prove, as_json, refuse_to_lose, resolve_folder, write_texts, written_whole
from bertjax.convert.formats import Format, Vectors
from bertjax.convert.huggingface.exporter import model_config
from bertjax.convert.huggingface.names import bare_encoder, has_class
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES, tokenizer_texts
from bertjax.convert.model_card import CARD_FILE, part_card
from bertjax.convert.sentence_transformers.sentence_format import encoder_config
from bertjax.finetune.kinds import get_kind
from bertjax.model.network import network_class
from bertjax.model.parameters import named_arrays
from bertjax.model.pooling import check_vectors
from bertjax.model.shared_tables import with_own_words
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath, to_path
from bertjax.storage.sums import write_sums

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
# Largest relative difference. Unrelated vectors differ by 1.4.
LIMITS: dict[Precision, float] = {"float32": LIMIT, "float16": 1e-2, "int8": 0.3}
HIDDEN, VECTOR = "last_hidden_state", "sentence_embedding"
_LABELS = {HIDDEN: STATES, VECTOR: VECTORS}
Arrays = Mapping[str, np.ndarray]  # inputs or outputs by name
Run = Callable[[Arrays], Arrays]

# Options that an export supports only with some values, because batch and length are symbolic or because it is a graph.
# BigBird's random blocks depend on the length of the row.
_FUNCTION_OPTIONS: dict[str, tuple[Any, ...]] = {"attention_block": (0,), "global_tokens": ("none", "marked")}
_GRAPH_OPTIONS: dict[str, tuple[Any, ...]] = {"features": ((),), "lstm_size": (0,), "task_heads": ("plain",)}
_FILES = ("config.json", CARD_FILE, *TOKENIZER_FILES)


@dataclass(frozen=True)
class Runtime:
    """A runtime and the folder that it executes."""

    name: str  # of the format
    reference: str  # readable name of the runtime
    write: Callable[[TrainedModel, Path, Vectors, Precision], Path]  # writes into a folder; returns the weights' file
    load: Callable[[Path], Run]  # loads a folder
    library: str  # library's name on the Hub
    weights: tuple[str, ...]  # files that may hold the weights; the first that exists holds them
    others: tuple[str, ...] = ()
    package: str = ""  # needed by the comparison
    # Python code for the card: imports, and the call from `inputs` to the outputs ({names}, assigned to {results})
    imports: str = ""
    call: str = ""
    dtype: str = "int64"  # of the inputs
    takes_graph: bool = True  # False: it takes a JAX function
    precisions: tuple[Precision, ...] = ()  # besides the default

    def format(self, precision: Precision = "float32", **fields: Any) -> Format:
        """Build the format for weights of this precision; `fields` are further fields of `Format`."""

        def export(
            model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None
        ) -> AnyPath:
            return self._export(model, directory, vectors, precision, prove)

        def compare(
            model: TrainedModel, folder: Path, vectors: Vectors, untrained: Collection[str] = ()
        ) -> Difference | None:
            return self._compare(model, folder, vectors, precision)

        def gives(model: TrainedModel, vectors: Vectors) -> str:
            return "logits" if gives_logits(model, vectors) else f"pooling {vectors.pooling}"

        return Format(
            reference=self.reference,
            compare=compare,
            export=export,
            pooling="none",
            gives=gives,
            precisions={name: lambda name=name: self.format(name, **fields) for name in self.precisions},
            **fields,
        )

    def _export(
        self,
        model: TrainedModel,
        directory: str | AnyPath,
        vectors: Vectors,
        precision: Precision,
        prove: Prove | None,
    ) -> AnyPath:
        """Write the folder and return it.

        It has the graph, the tokenizer, the card and, if transformers has such a network, `config.json`. It appears as
        in `written_whole`, with its card last; an earlier export is replaced. Raises ValueError if anything else is
        there, and for a network that the format cannot express.
        """
        net, has_logits = model.config.model, gives_logits(model, vectors)
        _require(model, vectors, self.name, _FUNCTION_OPTIONS | (_GRAPH_OPTIONS if self.takes_graph else {}))
        target = resolve_folder(directory)
        present = next((name for name in self.weights if (target / name).exists()), self.weights[0])
        refuse_to_lose(target, (*_FILES, *self.weights, *self.others), present)
        with written_whole(target, CARD_FILE, prove) as partial:
            weights = self.write(model, partial, vectors, precision)
            texts = tokenizer_texts(model.tokenizer, model.max_length, net.family)
            if has_class(net if has_logits else bare_encoder(net)):
                texts["config.json"] = as_json(model_config(model) if has_logits else encoder_config(model))
            texts[CARD_FILE] = part_card(model, self.library, self._use(model, vectors), weights, has_logits)
            write_texts(partial, texts)
            write_sums(partial)
        return to_path(str(directory))

    def _use(self, model: TrainedModel, vectors: Vectors) -> str:
        """Python code for the card that runs texts through the export."""
        tokenizer, names = model.tokenizer, output_names(model, vectors)
        if gives_logits(model, vectors):
            card = get_kind(model.kind).card
            labels = ", ".join(f"`{label}`" for label in model.labels)
            texts, meaning = card.onnx_inputs, card.onnx_outputs.format(labels=labels)
        else:
            scaled = ", scaled to length 1" if vectors.normalize else ""
            texts, meaning, names = '"a text", "another one"', f"`{HIDDEN}` has a vector per token", names[-1:]
            if vectors.pooling != "none":
                meaning += f"; `{VECTOR}` has one per text: pooling {vectors.pooling}{scaled}"
        most = longest(model.config.model)
        has_types = "token_type_ids" in input_names(model.config.model)
        return _USE.format(
            imports=self.imports,
            pad_id=tokenizer.pad_id,
            pad=tokenizer.tokens[tokenizer.pad_id],
            length=model.max_length,
            texts=texts,
            dtype=self.dtype,
            types=_TYPES.format(dtype=self.dtype) if has_types else "",
            call=self.call.format(
                names=", ".join(f'"{name}"' for name in names),
                results=", ".join(names) if len(names) > 1 else f"({', '.join(names)},)",
            ),
            most=f", up to {most:,} tokens" if most else "",
            meaning=meaning,
        )

    def _compare(self, model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision) -> Difference | None:
        """Compare the outputs of a folder with our float32 outputs; None if the runtime is not installed.

        Inputs are a padded batch of pairs of texts, and then only the first pair. Raises RuntimeError if outputs differ
        by more than the limit of the precision.
        """
        if self.package and importlib.util.find_spec(self.package) is None:
            return None
        run, batch = self.load(folder), pair_batch(model, PAIRS)
        first = {name: x[:1, : int(batch["attention_mask"][0].sum())] for name, x in batch.items()}
        largest: dict[str, float] = {}
        for rows in (batch, first):
            theirs = run({name: rows[name] for name in input_names(model.config.model)})
            if gives_logits(model, vectors):
                logits = [theirs[name] for name in output_names(model, vectors)]
                theirs = {LOGITS: logits[0] if len(logits) == 1 else np.stack(logits, axis=-1)}
                ours = our_outputs(model, rows)
            else:
                theirs = {_LABELS[name]: theirs[name] for name in output_names(model, vectors)}
                ours = our_vectors(model, rows, vectors)
            who = f"{folder}: {self.reference}"
            difference = within_limit(ours, theirs, rows["attention_mask"] == 1, who, LIMITS[precision])
            largest = {name: max(value, largest.get(name, 0)) for name, value in difference.values.items()}
        return Difference(largest)


def gives_logits(model: TrainedModel, vectors: Vectors) -> bool:
    """Whether an export gives the logits of a head instead of vectors."""
    return vectors.pooling == "none" and bool(network_class(model.config.model).outputs)


def output_names(model: TrainedModel, vectors: Vectors) -> tuple[str, ...]:
    """The names of the outputs, float32.

    Without a pooling, a model fine-tuned with a head has the outputs of the head. Any other export has the encoder's:
    `last_hidden_state` [batch, length, D] and, pooled, `sentence_embedding` [batch, D].
    """
    if gives_logits(model, vectors):
        return network_class(model.config.model).outputs
    return HIDDEN, *([VECTOR] if vectors.pooling != "none" else [])


def longest(config: ModelConfig) -> int:
    """Tokens of the longest rows: the size of the position table, or 0 without one."""
    return config.max_position_embeddings if config.position_embedding in ("learned", "sinusoidal") else 0


def network_graph(model: TrainedModel, vectors: Vectors) -> NetworkGraph:
    """The model as a graph with the outputs of `output_names`."""
    config = model.config.model
    params = named_arrays(with_own_words(jax.device_get(model.params)))
    graph = NetworkGraph(config, {name: np.asarray(x) for name, x in params.items()}, model.tokenizer.pad_id)
    if gives_logits(model, vectors):
        graph.add_head()
        return graph
    graph.output(graph.hidden, HIDDEN, "batch", "length", config.hidden_size)
    if vectors.pooling != "none":
        graph.output(graph.vectors(vectors.pooling, vectors.normalize), VECTOR, "batch", config.hidden_size)
    return graph


def _require(model: TrainedModel, vectors: Vectors, name: str, options: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ValueError for a network or vectors that a format cannot express."""
    config = model.config.model
    if unsupported := [option for option, values in options.items() if getattr(config, option) not in values]:
        settings = ", ".join(f"model.{option}={getattr(config, option)!r}" for option in unsupported)
        raise ValueError(f"--to {name}: {settings}: not supported by this format; export to huggingface")
    check_vectors(config, vectors.pooling, "last")
    if vectors.normalize and vectors.pooling == "none":
        raise ValueError("--normalize scales a text's vector; choose one with --pooling")
    marks = config.global_tokens == "marked" and gives_logits(model, vectors)
    if marks and get_kind(model.kind).global_tokens is not None:
        raise ValueError(
            f"--to {name}: model.global_tokens='marked': the export has no input for the tokens that a task marks; "
            "export to huggingface"
        )


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
