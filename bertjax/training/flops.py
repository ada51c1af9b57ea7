"""FLOPs of a training step and peak FLOP/s of a device; their quotient is the MFU."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from bertjax.config import DataConfig, ModelConfig
from bertjax.families.registry import generator_config, get_family
from bertjax.input.targets.mlm import TARGET as PREDICTED_TOKENS
from bertjax.model.attention.block_sparse import keys_per_token
from bertjax.model.attention.relative import rows_in_reach
from bertjax.model.attention.self_attention import layer_windows
from bertjax.model.attention.windows import keys_with_globals
from bertjax.model.encoder import embedding_width
from bertjax.model.family_heads import SboHead
from bertjax.model.products import by_rows
from bertjax.storage.terminal import three_digits

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers

# Dense bf16 matmul peaks in TFLOP/s of one jax device, from the vendors' data sheets; the first pattern that matches
# `device_kind` is used. On TPU v2, v3 and TPU7x a jax device is half a chip.
_PEAKS_TFLOPS = (
    (r"TPU ?v?7", 1153.5),
    (r"TPU v6", 918.0),
    (r"TPU v5p|TPU v5$", 459.0),
    (r"TPU v5 ?(e|lite)", 197.0),
    (r"TPU v4", 275.0),
    (r"TPU v3", 61.5),
    (r"TPU v2", 22.5),
    (r"\bGB200\b", 2500.0),
    (r"\bB200\b", 2250.0),
    (r"\bH100 NVL", 835.0),
    (r"\bH100 PCIe", 756.0),
    (r"\b(H100|H200|GH200)\b", 989.5),
    (r"\bA100\b", 312.0),
    (r"\bL40S\b", 362.0),
    (r"\bL4\b", 121.0),
    (r"\bA10\b", 125.0),
    # The peaks of consumer cards are those with accumulation in float32.
    (r"\bRTX 4090\b(?! D)", 165.2),
    (r"\bRTX 3090\b(?! Ti)", 71.0),
    (r"\bT4\b", 65.0),
    (r"\bV100\b", 125.0),
)


@dataclass(frozen=True)
class Peak:
    """The peak FLOP/s of one device and the source of the number."""

    flops: float  # FLOP/s
    source: str  # for the log

    def __str__(self) -> str:
        return f"{three_digits(self.flops / 1e12)} TFLOP/s ({self.source})"


def expected_predictions(data: DataConfig) -> float:
    """The mean number of predictions in a full row."""
    slots = PREDICTED_TOKENS.keys(data)["mlm_weights"].width
    share = 1.0 if data.predict == "next" else data.mask_probability
    return min(slots, share * data.sequence_length)


def train_flops_per_token(model: ModelConfig, sequence_length: int, predictions: float) -> float:
    """FLOPs of forward and backward pass for one token of a row of `sequence_length`.

    With N layers, width D, feed-forward width F, S = sequence_length, P = predictions per row, V = vocab_size, E =
    embedding_size (0: E = D, without the matrix from E to D) and K_n = the keys that a token sees in layer n: S, or
    min(2·w + 1, S) with a window w, or `keys_per_token` with block-sparse attention:

        6·N·(4·D² + 2·D·F)            matmul parameters of the encoder: 2 FLOPs each forward, 4 backward; a gated MLP
                                      has 3·D·F, and grouped queries 2·D²·(1 + G / H), with G of H heads for keys
        + 12·D·(K_1 + ... + K_N)      attention scores and their product with the values: 4·D·K forward, twice backward
        + 6·N·(2·D² + D²/S)           separate projections for the global token (`global_tokens='first'`): keys and
                                      values of every token, one query; K_n grows by 2. A task's are not counted
        + 12·D·N·R                    relative positions: queries and keys times the vectors of a row's R distances
        + 6·C·D²                      convolution over C tokens, if any
        + 6·E·D                       projection of the embeddings to D, if embedding_size is set
        + 6·(N + 1)·D·W               projection of embeddings and layers to a teacher's width W, if it is set
        + 6·(D·E + E·V)·P/S           MLM transform and tied projection, on the P predicted positions only; D·V if the
                                      projection is not tied, and 2·D·mlm_inner_size for the two layers in front of it
        + 6·(D² + D)                  replaced-token head, on every token, if the family has one
        + 6·(D² + 2·D)/S              pooler and a head of two classes, on one token of the row; 0 without a pooler
        + 6·((2·D + 200)·D + D·E + E·V)·P/S   two layers and tied projection of the span boundary head, if any

    An enhanced decoder adds a layer to N if the family has an MLM head. A generator counts as another model, without
    the sampling of its tokens. Layers that share parameters count separately. V is the true vocabulary size. Not
    counted: padding rows of the table, look-ups, normalisation, the optimizer, scores outside a window (some backends
    compute and mask them) and rematerialisation. This is the convention of the published figures that bertjax is
    compared with (BERT-Base, length 128, 20 predictions: 0.546 GFLOP per token).
    """
    S, D, F = sequence_length, model.hidden_size, model.intermediate_size
    E = embedding_width(model)
    N, first = model.num_hidden_layers, model.global_tokens == "first"
    keys = sum(keys_with_globals(S, window, int(first)) if window else S for window in layer_windows(model))
    if model.attention_block:
        keys = N * keys_per_token(S, model.attention_block, model.random_blocks)
    global_projections = 6 * N * (2 * D * D + D * D / S) if first and model.global_projections else 0
    heads = get_family(model.family).heads
    # An enhanced decoder runs the last layer twice.
    runs = model.num_hidden_layers + (model.mlm_decoder == "enhanced" and "mlm_head" in heads)
    keys += (runs - model.num_hidden_layers) * S + runs * rows_in_reach(model, S)
    attention = 2 * D * D * (1 + model.key_value_heads / model.num_attention_heads)
    encoder = global_projections + 6 * (
        runs * (attention + (3 if model.mlp == "glu" else 2) * D * F) + model.conv_kernel * D * D
    )
    projection = 6 * E * D if model.embedding_size else 0
    transform = D * E if model.mlm_tied or model.mlm_transform == "gelu" else 2 * D * model.mlm_inner_size
    mlm = 6 * (transform + E * model.vocab_size) * predictions / S if "mlm_head" in heads else 0
    detection = 6 * (D * D + D) if "rtd_head" in heads else 0
    pooled = 6 * (D * D + 2 * D) / S if model.pooler == "tanh" else 0
    boundaries = ((2 * D + SboHead.WIDTH) * D + D * E + E * model.vocab_size) * predictions / S
    spans = 6 * boundaries if "sbo_head" in heads else 0
    generator = (
        train_flops_per_token(generator_config(model), sequence_length, predictions) if model.generator_width else 0
    )
    to_teacher = 6 * (model.num_hidden_layers + 1) * D * model.teacher_width
    return encoder + 12 * D * keys + projection + to_teacher + mlm + detection + pooled + spans + generator


def mfu(flops_per_second: float, peak: float) -> float:
    """Model FLOPs utilisation: `flops_per_second` as a share of the peak of all devices (`peak`, FLOP/s).

    `flops_per_second` is `train_flops_per_token` times tokens per second without padding.
    """
    return flops_per_second / peak


def peak_flops(device_kind: str) -> float | None:
    """Dense bf16 FLOP/s of an accelerator by its `device_kind`; None if it is not in the table, like every CPU."""
    for pattern, tflops in _PEAKS_TFLOPS:
        if re.search(pattern, device_kind):
            return tflops * 1e12
    return None


def measured_peak_flops(
    size: int = 1024, seconds: float = 0.3, dtype: str = "float32", *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Measure the FLOP/s of `size` × `size` matrix products on the default device, computed as in the layers.

    Takes `seconds` on `clock` plus one compilation. The fastest product counts, since other load on the machine can
    only slow it down. Several devices of one CPU share its cores, so each gets an equal part of the result.
    """
    product = jax.jit(by_rows)
    x = jnp.full((size, size), 0.5, dtype)
    product(x, x).block_until_ready()
    fastest = float("inf")
    end = clock() + seconds
    while clock() < end:
        start = clock()
        product(x, x).block_until_ready()
        fastest = min(fastest, clock() - start)
    sharing = jax.local_device_count() if jax.default_backend() == "cpu" else 1
    return 2 * size**3 / fastest / sharing


def matmul_peak(device: Device, dtype: str, seconds: float = 2.0) -> Peak:
    """Measure the fastest matmul on this device: in `dtype` on a CPU, in bfloat16 elsewhere."""
    dtype, size = (dtype, 2048) if device.platform == "cpu" else ("bfloat16", 8192)
    return Peak(measured_peak_flops(size, seconds, dtype), _fastest(dtype, device))


def device_peak(device: Device, dtype: str) -> Peak:
    """The peak that a device's MFU refers to: from the table, or measured if the table lacks the device."""
    table_peak = peak_flops(device.device_kind)
    if table_peak is not None:
        return Peak(table_peak, f"data sheet of {device.device_kind}, bf16 dense")
    if device.platform != "cpu":
        return matmul_peak(device, dtype)
    return Peak(measured_peak_flops(dtype=dtype), _fastest(dtype, device))


def _fastest(dtype: str, device: Device) -> str:
    return f"fastest {dtype} matmul measured on this {device.device_kind}"
