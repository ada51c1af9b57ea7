"""Verify a conversion: compare our outputs for the same texts with another system's."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.convert.foreign import module_label
from bertjax.convert.formats import Vectors
from bertjax.convert.huggingface.names import bare_encoder, hf_class
from bertjax.families.family import Class
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.finetune.encoding.global_tokens import global_positions
from bertjax.finetune.kinds import get_kind
from bertjax.model.family_heads import HEADS
from bertjax.model.network import Params, bind, network_class
from bertjax.model.pooling import pool, token_vectors
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization import huggingface

LIMIT = 1e-5  # largest relative difference, float32
STATES, VECTORS, LOGITS = "hidden states", "vectors", "logits"
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_MASKED = -1e5  # logits below this value are masked
_GLOBAL_MASK = "global_attention_mask"  # transformers' input for global tokens

# The pairs cover padding (they differ in length), two segments, accents, digits and other scripts.
PAIRS = (
    ("In 1877, the museum opened.", "It holds more than 40,000 drawings, most of them given by a single family."),
    ("She had not expected an answer so soon.", "“Naïve,” he wrote, “but not wrong.”"),
    ("Returns the sum of the elements along an axis.", "Bananas are grown in over 130 countries."),
    ("La rivière traverse la vieille ville avant de rejoindre la mer, à trente kilomètres de là.", "Où est-elle?"),
    ("北京是中国的首都。", "Москва — столица России."),
)


@dataclass(frozen=True)
class Difference:
    """Relative differences between two models' outputs: the difference's norm over the reference's."""

    values: dict[str, float]  # by the name of the output
    not_compared: tuple[str, ...] = ()  # readable names of outputs that the reference lacks

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.1e}" for name, value in self.values.items())
        return f"{values}; not compared: {'; '.join(self.not_compared)}" if self.not_compared else values

    @property
    def largest(self) -> float:
        """The largest difference; NaN if one is."""
        return float(np.max(list(self.values.values())))


def compare_with_transformers(
    model: TrainedModel,
    directory: str | Path,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    untrained: Collection[str] = (),
) -> Difference | None:
    """Compare our float32 outputs for pairs of texts with transformers' for a folder; None without torch, transformers.

    Compares the last hidden states and the logits of pretraining or of a task, without padding and without the modules
    in `untrained` (by `module_label`), which the folder lacks. Token ids are compared if transformers can read
    the vocabulary. Raises RuntimeError if transformers cannot read the weights, if token ids differ, or if outputs
    differ by more than `LIMIT`.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        return None
    import transformers

    their_class = _class_without(model, untrained)
    try:
        network = getattr(transformers, their_class.name).from_pretrained(directory).float().eval()
    except Exception as error:  # damaged files raise many classes
        first_line = str(error).partition("\n")[0]
        raise RuntimeError(
            f"{directory}: transformers cannot read it ({type(error).__name__}: {first_line}); correct its files"
        ) from error
    not_compared = _compare_ids(model, directory, network.config, pairs)
    batch = pair_batch(model, pairs)
    ours = our_outputs(model, batch)
    # transformers' task classes mark the same tokens, but only in rows with every [SEP]; these rows may be truncated.
    positions = _marked_positions(model, batch)
    global_mask = {} if positions is None else {_GLOBAL_MASK: _position_mask(positions, batch)}
    theirs = _their_outputs(network, batch | global_mask, their_class, model.config.model.vocab_size)
    for name, logits in theirs.items():  # BigBird's class subtracts a million from logits of the question's tokens
        ours[name] = np.where(logits < _MASKED, 0, ours[name])
        theirs[name] = np.where(logits < _MASKED, 0, logits)
    difference = within_limit(ours, theirs, batch["attention_mask"] == 1, f"{directory}: transformers")
    return replace(difference, not_compared=not_compared)


def _class_without(model: TrainedModel, untrained: Collection[str]) -> Class:
    """The transformers class that keeps the most of the model's heads without the modules in `untrained`."""
    config, hf = model.config.model, get_family(model.config.model.family).transformers
    whole = hf_class(config)
    for candidate in (whole, *(hf.partial if whole.outputs else ())):
        if not any(module_label(tensor.ours.partition("/")[0]) in untrained for tensor in candidate.tensors):
            return candidate
    return hf_class(bare_encoder(config))


def pair_batch(model: TrainedModel, pairs: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Pairs of texts as padded rows, truncated to the model's maximum length: int64 [B, L]."""
    rows = [_row(model, pair) for pair in pairs]
    rows = [[part[: model.max_length] for part in (ids, types, [1] * len(ids))] for ids, types in rows]
    length = max(len(ids) for ids, _, _ in rows)
    batch = {}
    for key, filler, part in zip(INPUTS, (model.tokenizer.pad_id, 0, 0), zip(*rows, strict=True), strict=True):
        batch[key] = np.array([row + [filler] * (length - len(row)) for row in part], np.int64)
    return batch


def _row(model: TrainedModel, pair: tuple[str, str]) -> tuple[list[int], list[int]]:
    """(ids, token types) of a pair with the special tokens of the model's family."""
    tokenizer, template = model.tokenizer, get_family(model.config.model.family).template
    first, second = (ids.tolist() for ids in tokenizer.encode_sentences(pair))
    start = [tokenizer.cls_id, *first, *[tokenizer.sep_id] * template.separators]
    rest = [*second, tokenizer.sep_id]
    return start + rest, [0] * len(start) + [int(template.token_types)] * len(rest)


def within_limit(
    ours: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    real: np.ndarray,
    who: str,
    limit: float | None = None,
) -> Difference:
    """Compare all of their outputs. Raises RuntimeError if one differs by more than the limit, by default `LIMIT`."""
    limit = LIMIT if limit is None else limit
    difference = Difference({name: relative_difference(ours[name], theirs[name], real) for name in theirs})
    if not difference.largest <= limit:
        raise RuntimeError(f"{who} computes different outputs: {difference} (limit {limit})")
    return difference


def _compare_ids(
    model: TrainedModel, directory: str | Path, config: Any, pairs: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Compare token ids with transformers' for a folder; returns the reason if that is impossible, or ().

    `config` is transformers' config object: a `config.json` may lack the model_type that AutoTokenizer needs. Raises
    RuntimeError if ids differ.
    """
    import transformers

    if (reason := huggingface.unlike_transformers(Path(directory))) is not None:
        return (f"token ids, because {reason}",)
    huggingface.provide_sentencepiece_messages()
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(directory, config=config)
    except Exception as error:  # damaged files raise many classes
        first_line = str(error).partition("\n")[0]
        return (f"token ids, because transformers cannot read the tokenizer ({type(error).__name__}: {first_line})",)
    files = [*theirs.vocab_files_names.values()]
    if not any((Path(directory) / file).is_file() for file in files):
        present = [file for file in huggingface.FILES if (Path(directory) / file).is_file()]
        reader = f"{type(theirs).__name__} of transformers reads {' or '.join(files)}"
        return (f"token ids, because {reader}, and the folder has {', '.join(present)}",)
    for pair in pairs:
        our_ids, _ = _row(model, pair)
        their_ids = theirs(*pair, verbose=False)["input_ids"]
        if their_ids != our_ids:
            raise RuntimeError(f"the exported tokenizer encodes {pair} as {their_ids}, ours as {our_ids}")
    return ()


def our_outputs(model: TrainedModel, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hidden states [B, L, D] and the logits of every head (MLM [B, L, V], sequences [B, 2]), in float32.

    A fine-tuned model has hidden states and the logits of its task.
    """
    config = model.config.model
    graphdef = abstract_network(config)[0]
    heads = [] if network_class(config).of_task else [head for head in hf_class(config).outputs if head in model.params]
    ids, types, mask = (jnp.asarray(batch[key], jnp.int32) for key in INPUTS)
    positions = _marked_positions(model, batch)
    marked = None if positions is None else jnp.asarray(positions)

    @jax.jit
    def forward(params: Params) -> dict[str, jax.Array]:
        bert = bind(graphdef, params)
        hidden = bert.encode(ids, types, mask, packed=False, global_positions=marked)
        if bert.of_task:
            return {STATES: hidden} | ({LOGITS: bert.row_logits(hidden, mask)} if bert.outputs else {})
        everywhere = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        outputs = {STATES: hidden}
        for head in heads:
            per_row, logits_fn = HEADS[head].needs_pooler, getattr(bert, head.replace("_head", "_logits"))
            logits = logits_fn(hidden, everywhere[:, :1] if per_row else everywhere)
            outputs[logits_name(head)] = logits[:, 0] if per_row else logits[..., : config.vocab_size]
        return outputs

    # Accelerators multiply float32 in fewer bits by default.
    with jax.default_matmul_precision("highest"):
        return jax.device_get(forward(model.params))


def _marked_positions(model: TrainedModel, batch: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """`global_positions` of the tokens that the model's kind of task marks; None if it marks none."""
    config, part = model.config.model, get_kind(model.kind).global_tokens if model.kind else None
    if config.global_tokens != "marked" or part is None:
        return None
    real = batch["attention_mask"] == 1
    offsets, template = np.append(0, np.cumsum(real.sum(axis=1))), get_family(config.family).template
    flat = batch["input_ids"][real], np.repeat(np.arange(1, len(real) + 1), real.sum(axis=1))
    return global_positions(part, offsets, *flat, model.tokenizer.sep_id, template)


def _position_mask(positions: np.ndarray, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """A mask, int64 [B, L], of positions with -1 in unused slots: 1 where a token is global."""
    mask = np.zeros_like(batch["input_ids"])
    rows, slots = np.nonzero(positions >= 0)
    mask[rows, positions[rows, slots]] = 1
    return mask


def logits_name(head: str) -> str:
    """The name of a pretraining head's output in a comparison."""
    return f"{head.removesuffix('_head').upper()} logits"


def _their_outputs(
    network: Any, batch: Mapping[str, np.ndarray], their_class: Class, vocab_size: int
) -> dict[str, np.ndarray]:
    """The outputs of transformers' network under the names of `our_outputs`, for the heads of its class."""
    import torch  # pyright: ignore[reportMissingImports]

    # A class without token types has no such input.
    has_types = getattr(network.config, "type_vocab_size", 0)
    inputs = {key: torch.from_numpy(x) for key, x in batch.items() if has_types or key != "token_type_ids"}
    if "MultipleChoice" in their_class.name:
        inputs = {key: x[:, None] for key, x in inputs.items()}  # one choice per row
    with torch.no_grad():
        out = network(**inputs, output_hidden_states=True)
    outputs = {STATES: out.hidden_states[-1].numpy()}
    for head, output in their_class.outputs.items():
        logits = out[output].numpy()
        if not HEADS[head].needs_pooler:
            logits = logits.reshape(*batch["input_ids"].shape, -1)  # a single number per token may lack its dim
        outputs[logits_name(head)] = logits[..., :vocab_size]
    if not their_class.outputs and "logits" in out:
        outputs[LOGITS] = out.logits.numpy()
    if "start_logits" in out:
        outputs[LOGITS] = np.stack([out.start_logits.numpy(), out.end_logits.numpy()], axis=-1)
    return outputs


def our_vectors(model: TrainedModel, batch: Mapping[str, np.ndarray], vectors: Vectors) -> dict[str, np.ndarray]:
    """Hidden states [B, L, D] and vectors of texts [B, D], in float32."""
    graphdef = abstract_network(model.config.model)[0]
    ids, types, mask = (jnp.asarray(batch[name], jnp.int32) for name in INPUTS)

    @jax.jit
    def forward(params: Params) -> dict[str, jax.Array]:
        bert = bind(graphdef, params)
        hidden = token_vectors(bert, ids, types, mask, "last")
        return {STATES: hidden, VECTORS: pool(bert, hidden, mask > 0, vectors.pooling)}

    with jax.default_matmul_precision("highest"):
        outputs = jax.device_get(forward(model.params))
    if vectors.normalize:
        outputs[VECTORS] = outputs[VECTORS] / np.linalg.norm(outputs[VECTORS], axis=-1, keepdims=True)
    return outputs


def relative_difference(ours: np.ndarray, theirs: np.ndarray, real: np.ndarray) -> float:
    """The difference's norm over theirs; 3-D arrays are compared only at the tokens in `real`, bool [B, L]."""
    if ours.ndim == 3:
        ours, theirs = ours[real], theirs[real]
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def comparison_line(reference: str, difference: Difference | None) -> str:
    """Describe a comparison with a reference implementation; None means that it was not available."""
    if difference is None:
        return f"Not verified: {reference}, or a package that it needs, is not installed"
    return f"compared with {reference} on real text: {difference}"
