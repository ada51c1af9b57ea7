"""Encode texts as vectors with a trained model: streaming, batched by length, on all devices of this machine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import ExecutionConfig, MeshConfig
from bertjax.families.networks import abstract_network
from bertjax.input.lengths import LengthCounts, row_length
from bertjax.model.attention.block_sparse import length_of_text, sees_blocks
from bertjax.model.network import Params, bind
from bertjax.model.pooling import Layer, Pooling, check_vectors, pool, token_vectors, vector_width
from bertjax.parallel.mesh import BATCH_AXES, batch_shards, make_mesh
from bertjax.parallel.sharding import batch_sharding, power_of_two_below, tokens_at_once
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers

Long = Literal["truncate", "split"]


class TextCounts(LengthCounts):
    """Counts of texts. Notices speak of texts, and of the parts that a long text is split into."""

    unit, window = "texts", "parts"
    remedy = " (use --long split, in Python long='split', to keep them)"
    when_empty = "have no token; their vectors are of [CLS] [SEP] alone"


def token_rows(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, long: Long, counts: TextCounts
) -> list[list[np.ndarray]]:
    """Make the rows of each text, int32 [CLS] ... [SEP] of at most `max_length` tokens, and add to `counts`.

    A text has one row, or with `split` one per part. Parts end with whole words, unless a word does not fit in a row.
    """
    rows = []
    for ids in tokenizer.encode_sentences(texts):
        pieces = _pieces(ids, max_length - 2, long, tokenizer.is_continuation)
        _count(counts, len(ids), pieces)
        rows.append([np.array([tokenizer.cls_id, *piece, tokenizer.sep_id], np.int32) for piece in pieces])
    return rows


def _pieces(ids: np.ndarray, room: int, long: Long, is_continuation: np.ndarray) -> list[np.ndarray]:
    if len(ids) <= room or long == "truncate":
        return [ids[:room]]
    pieces, start = [], 0
    while len(ids) - start > room:
        end = start + room
        while end > start and is_continuation[ids[end]]:
            end -= 1
        end = end if end > start else start + room
        pieces.append(ids[start:end])
        start = end
    return [*pieces, ids[start:]]


def _count(counts: TextCounts, tokens: int, pieces: Sequence[np.ndarray]) -> None:
    counts.examples += 1
    counts.tokens += tokens
    counts.empty += not tokens
    lost = tokens - sum(len(piece) for piece in pieces)
    counts.truncated += lost > 0
    counts.tokens_cut += lost
    if len(pieces) > 1:
        counts.windowed += 1
        counts.windows += len(pieces)


def _join_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join values per token of a text's parts, without the [SEP] [CLS] between them."""
    last = len(parts) - 1
    return np.concatenate([part[int(number > 0) : len(part) - int(number < last)] for number, part in enumerate(parts)])


SHORTEST_PART = 8  # tokens, special ones included
_LENGTH_STEPS = 2  # lengths between two powers of two; see `row_length`
_TOKENIZED_AT_ONCE = 256  # texts
_WINDOW_TOKENS = 1 << 17  # per device, sorted by length together; more means less padding and more memory
_WINDOW_BATCHES = 16  # least number of batches in a window
_WINDOW_BYTES = 256 << 20  # of vectors per token in a window
_TINY = 1e-12  # lower limit of norms, as in torch.nn.functional.normalize


@dataclass(frozen=True)
class Encoding:
    """Options of an encoding: one vector per text, or with pooling "none" one per token."""

    pooling: Pooling = "mean"
    layer: Layer = "last"
    normalize: bool = False  # scale every vector to length 1
    long: Long = "truncate"  # texts longer than a row: keep the beginning, or encode all of it in parts
    max_length: int | None = None  # tokens per row, special ones included; None: as in training
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; bfloat16 is faster on accelerators
    batch_tokens: int | None = None  # per device and batch, padding included; None: by the kind of device
    batch_size: int | None = None  # rows per device and batch, at most; None: as many as batch_tokens allow
    prompt: str = ""  # prepended to every text


class EncodingOptions(TypedDict, total=False):
    """The fields of `Encoding` as optional keywords."""

    pooling: Pooling
    layer: Layer
    normalize: bool
    long: Long
    max_length: int | None
    dtype: Literal["float32", "bfloat16"]
    batch_tokens: int | None
    batch_size: int | None
    prompt: str


class Embedding(NamedTuple):
    """The encoding of one text."""

    vectors: np.ndarray  # float32 [D], or a row per token [n, D]
    ids: np.ndarray  # int32 [n]: the tokens, including [CLS] and [SEP]


class TextEncoder:
    """Encodes texts with a model; `counts` covers all texts encoded so far."""

    def __init__(self, model: TrainedModel, encoding: Encoding, devices: Sequence[Device] | None = None) -> None:
        """Put the weights on every device. Raises ValueError for an encoding that the model does not support."""
        self.encoding, self.counts, self._tokenizer = encoding, TextCounts(), model.tokenizer
        self.max_length = _check_length(model, encoding)
        self._graphdef = abstract_network(model.config.model, ExecutionConfig(dtype=encoding.dtype))[0]
        self._mesh = make_mesh(MeshConfig(), jax.local_devices() if devices is None else devices)
        self._batch_tokens = encoding.batch_tokens or tokens_at_once(self._mesh)
        self._model = model.config.model
        self._params = jax.device_put(model.params, NamedSharding(self._mesh, P()))
        self.width = vector_width(model.config.model, encoding.layer)

    def encode(self, texts: Iterable[str], done: Callable[[int], object] = lambda more: None) -> Iterator[Embedding]:
        """Yield the embedding of each text, in order, window by window.

        `done` receives the number of texts that each batch completes. Memory is bounded by the window and the longest
        text. Raises ValueError for a text with a lone surrogate, quoting it, and for a vector that is not finite,
        naming the number of the text from 1.
        """
        first = self.counts.examples + 1
        for window in self._windows(texts):
            rows = [row for parts in window for row in parts]
            begins = np.cumsum([0, *[len(parts) for parts in window]])[:-1]  # the first row of each text
            vectors = iter(
                self._vectors(rows, lambda numbers, begins=begins: done(int(np.isin(numbers, begins).sum())))
            )
            for number, parts in enumerate(window, first):
                part_vectors = [next(vectors) for _ in parts]
                whole = _combine_parts(part_vectors, parts, self.encoding.pooling)
                if self.encoding.normalize:
                    whole = whole / np.maximum(np.linalg.norm(whole, axis=-1, keepdims=True), np.float32(_TINY))
                if not np.isfinite(whole).all():
                    raise ValueError(f"text {number}: its vector is not finite; are the model's weights damaged?")
                yield Embedding(whole, _join_rows(parts))
            first += len(window)

    def _windows(self, texts: Iterable[str]) -> Iterator[list[list[np.ndarray]]]:
        """Yield the rows of each text, a window at a time: the texts that are sorted by length together."""
        budget = max(_WINDOW_TOKENS, _WINDOW_BATCHES * self._batch_tokens) * batch_shards(self._mesh)
        if self.encoding.pooling == "none":
            budget = min(budget, _WINDOW_BYTES // (4 * self.width))
        window: list[list[np.ndarray]] = []
        tokens = 0
        source = iter(texts)
        while batch := [self.encoding.prompt + text for text in itertools.islice(source, _TOKENIZED_AT_ONCE)]:
            for parts in token_rows(batch, self._tokenizer, self.max_length, self.encoding.long, self.counts):
                size = sum(len(part) for part in parts)
                if window and tokens + size > budget:
                    yield window
                    window, tokens = [], 0
                window.append(parts)
                tokens += size
        if window:
            yield window

    def _vectors(self, rows: Sequence[np.ndarray], done: Callable[[list[int]], object]) -> list[np.ndarray]:
        """Compute the vectors of rows; fetches a batch while the next is computed, then calls `done` with its rows."""
        results: list[np.ndarray] = [np.empty(0)] * len(rows)

        def fetch(numbers: list[int], out: jax.Array) -> None:
            values = np.asarray(out)
            for index, number in enumerate(numbers):
                per_text = self.encoding.pooling != "none"
                # Copied, because a view would keep the whole batch in memory.
                results[number] = (values[index] if per_text else values[index, : len(rows[number])]).copy()
            done(numbers)

        waiting: tuple[list[int], jax.Array] | None = None
        for numbers, length, height in self._batches([len(row) for row in rows]):
            out = self._compute([rows[number] for number in numbers], length, height)
            if waiting is not None:
                fetch(*waiting)
            waiting = numbers, out
        if waiting is not None:
            fetch(*waiting)
        return results

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int, int]]:
        """Yield batches of similar lengths in few shapes: (row numbers, padded length, rows with padding rows)."""
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        shards, start = batch_shards(self._mesh), 0
        while start < len(order):
            length = self._padded(lengths[order[start]])
            most = max(1, self._batch_tokens // length)  # at least one row, even if it exceeds the device's default
            height = shards * power_of_two_below(min(most, self.encoding.batch_size or most))
            numbers = order[start : start + height]
            if sees_blocks(self._model, length):
                numbers = [number for number in numbers if self._padded(lengths[number]) == length]
            start += len(numbers)
            while height >= 2 * shards and height // 2 >= len(numbers):
                height //= 2
            yield numbers, length, height

    def _padded(self, needed: int) -> int:
        """Return the padded length of a row with `needed` tokens."""
        return length_of_text(self._model, needed, min(row_length(needed, _LENGTH_STEPS), self.max_length))

    def _compute(self, rows: Sequence[np.ndarray], length: int, height: int) -> jax.Array:
        ids = np.full((height, length), self._tokenizer.pad_id, np.int32)
        real = np.zeros((height, length), np.int32)
        for index, row in enumerate(rows):
            ids[index, : len(row)], real[index, : len(row)] = row, 1
        batch = jax.device_put((ids, real), batch_sharding(self._mesh))
        # By default accelerators multiply float32 with fewer bits.
        precision = "highest" if self.encoding.dtype == "float32" else "default"
        with jax.set_mesh(self._mesh), jax.default_matmul_precision(precision):
            return _embed(
                self._params,
                *batch,
                graphdef=self._graphdef,
                mesh=self._mesh,
                pooling=self.encoding.pooling,
                layer=self.encoding.layer,
            )


@functools.partial(jax.jit, static_argnames=("graphdef", "mesh", "pooling", "layer"))
def _embed(
    params: Params,
    input_ids: jax.Array,
    real: jax.Array,
    *,
    graphdef: nnx.GraphDef,
    mesh: Mesh,
    pooling: Pooling,
    layer: Layer,
) -> jax.Array:
    """Compute the vectors of rows, [B, D] or [B, L, D], sharded over the devices without communication."""

    def local(params: Params, input_ids: jax.Array, real: jax.Array) -> jax.Array:
        bert = bind(graphdef, params)
        vectors = token_vectors(bert, input_ids, jax.numpy.zeros_like(input_ids), real, layer)
        return pool(bert, vectors, real > 0, pooling)

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P(BATCH_AXES), P(BATCH_AXES)),
        out_specs=P(BATCH_AXES),
        axis_names=set(BATCH_AXES),
        check_vma=False,
    )(params, input_ids, real)


def _combine_parts(vectors: Sequence[np.ndarray], parts: Sequence[np.ndarray], pooling: Pooling) -> np.ndarray:
    """Combine the vectors of a text's parts, as close to the vector of an undivided text as possible.

    Mean and maximum cover the tokens of all parts; cls and pooler are averaged over the parts.
    """
    if pooling == "none":
        return _join_rows(vectors)
    if len(vectors) == 1:
        return vectors[0]
    if pooling == "max":
        return np.max(vectors, axis=0)
    weights = [len(part) for part in parts] if pooling == "mean" else None
    return np.average(vectors, axis=0, weights=weights).astype(np.float32)


def require_trained(pooling: Pooling, untrained: Collection[str], origin: str) -> None:
    """Raise ValueError if pooling uses an untrained module."""
    if pooling in untrained:
        raise ValueError(f"{origin}: pooling=pooler: the model has no trained pooler; choose mean, cls or max")


def _check_length(model: TrainedModel, encoding: Encoding) -> int:
    """Return the length of the longest row. Raises ValueError for options that the model does not support."""
    check_vectors(model.config.model, encoding.pooling, encoding.layer)
    if encoding.long not in ("truncate", "split"):
        raise ValueError(f"long={encoding.long!r}: choose truncate or split")
    if encoding.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype={encoding.dtype!r}: choose float32 or bfloat16")
    longest = model.max_length
    length = longest if encoding.max_length is None else encoding.max_length
    if not min(SHORTEST_PART, longest) <= length <= longest:
        raise ValueError(
            f"max_length={length}: the model was trained on rows of {longest} tokens; choose {SHORTEST_PART} to "
            f"{longest}"
        )
    if encoding.batch_tokens is not None and encoding.batch_tokens < length:
        raise ValueError(
            f"batch_tokens={encoding.batch_tokens}: a single row may have {length} tokens; give at least that"
        )
    if encoding.batch_size is not None and encoding.batch_size < 1:
        raise ValueError(f"batch_size={encoding.batch_size}: give 1 or more")
    return length
