"""Attention on a TPU as one Pallas kernel with its backward pass: dropout inside, nothing of [L, L] in main memory.

Let s_ij = q_i k_j / sqrt(K) (minus slope |i - j| with ALiBi) where token i sees token j, and minus infinity elsewhere:

    forward    lse_i = log sum_j exp(s_ij), p_ij = exp(s_ij - lse_i), o_i = sum_j r_ij v_j; one block of keys at a time,
               with running sums of exp(s_ij - m_i) that are rescaled when the running maximum m_i grows
    dropout    r_ij = p_ij / (1 - rate) where kept, else 0; kept by the hash of model/dropout.py, to the bit
    backward   dv_j = sum_i r_ij do_i, delta_i = do_i o_i (which is sum_j r_ij do_i v_j)
               ds_ij = r_ij (do_i v_j) - p_ij delta_i
               dq_i = sum_j ds_ij k_j / sqrt(K), dk_j = sum_i ds_ij q_i / sqrt(K)

The backward pass keeps q, k, v, o and lse, and recomputes p and the mask. DeBERTa's relative terms and their gradients
are in mosaic_distances.py; with them the scale 1 / sqrt(K) becomes 1 / sqrt(3 K). Scores, softmax and sums are float32
whatever the dtype of q; the factors of products have the dtype of q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from bertjax.model.attention import mosaic_chosen
from bertjax.model.attention.kernels import BLOCKS, DISTANCES, FUSED_ATTENTION, QKV, TOKENS, per_device
from bertjax.model.attention.mosaic_blocks import (
    LANES,
    LOWEST,
    Block,
    Blocks,
    Scalars,
    Settings,
    each_dim,
    each_group,
    group_slice,
    head_gradients,
    id_spans,
    if_chunk,
    make_block,
    only,
    operand,
    over_chunks,
    product,
    query_slice,
    run_loop,
)
from bertjax.model.attention.mosaic_distances import Tables
from bertjax.model.attention.mosaic_grid import call_kernel, in_parts
from bertjax.model.dropout import ATTENTION_PROBS, fold


def mosaic_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    slopes: tuple[float, ...],
    settings: Settings,
    tables: tuple[jax.Array, ...] = (),
    chosen: jax.Array | None = None,
) -> jax.Array:
    """Run the kernel on each device's rows and heads: q, k, v [B, L, H, K], sequence_ids int32 [B, L] -> [B, L, H, K].

    L is a multiple of LANES, K at most MOSAIC_HEAD_DIM. Without `dropout_keys`, uint32 [B], the rate must be 0.
    `tables` are the results of `ordered_tables` if `settings.relative`, and `chosen`, int32 [H, n - 2, random], the
    random blocks if `settings.block`.
    """
    B, _, H, _ = q.shape
    keys = jnp.zeros(B, jnp.uint32) if dropout_keys is None else fold(dropout_keys, ATTENTION_PROBS)
    per_head = jnp.arange(H, dtype=jnp.int32), jnp.asarray(slopes or (0.0,) * H, jnp.float32)
    operands = (q, QKV), (k, QKV), (v, QKV), (sequence_ids, TOKENS), (keys, TOKENS[:1])
    blocks = jnp.zeros((H, 1, 1), jnp.int32) if chosen is None else chosen
    operands += *((x, ("row_heads",)) for x in per_head), (blocks, BLOCKS), *((x, DISTANCES) for x in tables)
    return per_device(functools.partial(_on_device, settings), *operands)


def _on_device(
    settings: Settings,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    keys: jax.Array,
    heads: jax.Array,
    slopes: jax.Array,
    chosen: jax.Array,
    *tables: jax.Array,
) -> jax.Array:
    B, L, H, K = q.shape
    settings = in_parts(settings, L, q.dtype.itemsize)
    missing, zeros = -H % len(settings.heads), settings.width - K  # to pad: heads of the last group, dims of each head
    if missing or zeros:
        q, k, v = (jnp.pad(x, [(0, 0), (0, 0), (0, missing), (0, zeros)]) for x in (q, k, v))
        heads, slopes = (jnp.pad(x, (0, missing)) for x in (heads, slopes))
        chosen = jnp.pad(chosen, [(0, missing), (0, 0), (0, 0)])
        tables = tuple(jnp.pad(x, [(0, missing), (0, 0), (0, zeros)]) for x in tables)
    # `project` splits one product into these; the compiler removes the split and the stack, and makes the transpose a
    # layout of the product.
    qkv = jnp.stack([x.reshape(B, L, -1) for x in (q, k, v)], axis=2).swapaxes(1, 2)
    spans = id_spans(sequence_ids, Blocks.choose(settings, qkv.shape, qkv.dtype.itemsize).queries)
    scalars = Scalars(jax.lax.bitcast_convert_type(keys, jnp.int32), heads, slopes, chosen.reshape(-1), spans)
    grouped = None
    if tables:  # [2, groups, 2 L, LANES]
        grouped = jnp.stack(tables).reshape(2, -1, len(settings.heads), 2 * L, settings.width)
        grouped = grouped.swapaxes(2, 3).reshape(2, -1, 2 * L, LANES)
    o = cast(jax.Array, _attention(qkv, sequence_ids, scalars, grouped, settings))
    return o.reshape(B, L, -1, settings.width)[:, :, :H, :K]


def _scores(head: int, k: jax.Array, q: jax.Array, block: Block, slope: Any, tables: Tables | None) -> jax.Array:
    """Compute the masked scores of a head, float32 [keys, queries]; `slope` is None without ALiBi."""
    s = product(k, q, 1, 1)
    if tables is not None:
        s += tables.terms(q, only(head, k, 1, tables.settings), block)
    if slope is not None:
        s -= slope * jnp.abs(block.i - block.j).astype(jnp.float32)
    return jnp.where(block.seen, s, LOWEST)


def forward_kernel(scalars: Scalars, refs: dict[str, Any], settings: Settings, blocks: Blocks) -> None:
    """Write o and lse."""
    ids_ref, o_ref, lse_ref, columns_ref = (refs[name] for name in ("ids", "o", "lse", "columns"))
    (q_ref, q_at), (k_ref, k_at), (v_ref, v_at) = (operand(refs, "qkv", n) for n in range(3))

    def compute(row: Any, group: Any, _: Any, slope: Callable, drop: Callable, over_keys: Callable) -> None:
        lanes = group_slice(group)
        tables = Tables(refs["tables"], group, settings) if settings.relative else None

        def each_block(number: Any, _: None) -> None:
            queries = query_slice(number, blocks)
            q = q_ref[row, q_at, queries, lanes] * settings.scale

            def each_key_block(key_number: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
                ms, totals, o = sums
                block = make_block(number, key_number, row, ids_ref, columns_ref, settings, blocks)
                k, v = k_ref[row, k_at, block.keys, lanes], v_ref[row, v_at, block.keys, lanes]
                v_t, new_ms, new_totals, shrinks, outs = v.T, [], [], [], []
                for head in settings.heads:
                    s = _scores(head, k, only(head, q, 1, settings), block, slope(head), tables)
                    m = jnp.maximum(ms[head], jnp.max(s, axis=0, keepdims=True))
                    e = jnp.exp(s - m)
                    shrinks.append(jnp.exp(ms[head] - m))
                    new_ms.append(m)
                    new_totals.append(totals[head] * shrinks[-1] + jnp.sum(e, axis=0, keepdims=True))
                    outs.append(product(only(head, v_t, 0, settings), drop(head, block, e).astype(v.dtype), 1, 0))
                return tuple(new_ms), tuple(new_totals), o * each_dim(shrinks, settings) + sum(outs[1:], outs[0])

            m, total, o = (jnp.full((n, blocks.queries), x) for n, x in ((1, LOWEST), (1, 0.0), (LANES, 0.0)))
            start = (m,) * len(settings.heads), (total,) * len(settings.heads), o

            def finish(sums: tuple[Any, ...]) -> None:
                ms, totals, o = sums
                shares = [1.0 / (total * (1.0 - settings.rate)) for total in totals]
                o_ref[row, queries, lanes] = (o * each_dim(shares, settings)).T.astype(o_ref.dtype)
                lse_ref[row, group, :, queries] = jnp.concatenate(ms) + jnp.log(jnp.concatenate(totals))

            over_chunks(refs, queries, blocks, start, lambda sums: over_keys(number, each_key_block, sums), finish)

        count = ids_ref.shape[-1] // blocks.queries
        run_loop(count, each_block, unrolled=blocks.unrolled, first=blocks.first_queries)

    each_group(settings, blocks, refs, scalars, compute)


def backward_kernel(scalars: Scalars, refs: dict[str, Any], settings: Settings, blocks: Blocks) -> None:
    """Write the gradients of q, k, v and the tables."""
    ids_ref, o_ref, lse_ref, columns_ref = (refs[name] for name in ("ids", "o", "lse", "columns"))
    do_ref, dk_ref, dv_ref = (refs[name] for name in ("do", "dk", "dv"))
    (q_ref, q_at), (k_ref, k_at), (v_ref, v_at) = (operand(refs, "qkv", n) for n in range(3))
    if settings.relative:

        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            refs["dtables"][...] = jnp.zeros_like(refs["dtables"])

    def compute(row: Any, group: Any, _: Any, slope: Callable, drop: Callable, over_keys: Callable) -> None:
        lanes = group_slice(group)
        tables = Tables(refs["tables"], group, settings) if settings.relative else None
        reverse = Tables(refs["reverse_tables"], group, settings) if settings.relative else None

        def clear() -> None:
            for ref in (dk_ref, dv_ref):
                ref[blocks.chunk_keys] = jnp.zeros((ids_ref.shape[-1], LANES), jnp.float32)

        if_chunk(blocks.chunk[0], 0, clear)

        def each_block(number: Any, _: None) -> None:
            queries = query_slice(number, blocks)
            q = q_ref[row, q_at, queries, lanes] * settings.scale
            do, o = do_ref[row, queries, lanes], o_ref[row, queries, lanes]
            products = (do.astype(jnp.float32) * o.astype(jnp.float32)).T

            def each_key_block(key_number: Any, dq: jax.Array) -> jax.Array:
                block = make_block(number, key_number, row, ids_ref, columns_ref, settings, blocks)
                k, v = k_ref[row, k_at, block.keys, lanes], v_ref[row, v_at, block.keys, lanes]
                k_t, dqs, dk, dv = k.T, [dq], [], []
                for head in settings.heads:
                    lse = lse_ref[row, group, head : head + 1, queries]
                    own_q, own_do = (only(head, x, 1, settings) for x in (q, do))
                    s = _scores(head, k, own_q, block, slope(head), tables)
                    ds, more_dv = head_gradients(head, s, lse, v, own_do, products, block, drop, settings)
                    dv.append(more_dv)
                    dk.append(product(ds, own_q, 1, 0))
                    dqs.append(product(only(head, k_t, 0, settings), ds, 1, 0))
                    if reverse is not None:
                        own_k = only(head, k, 1, settings)
                        more_dq, more_dk = reverse.gradients(head, ds, own_q, own_k, block, refs["dtables"])
                        dqs.append(more_dq.T)
                        dk.append(more_dk)
                dk_ref[block.row_keys] += sum(dk[1:], dk[0])
                dv_ref[block.row_keys] += sum(dv[1:], dv[0])
                return sum(dqs[1:], dqs[0])

            def finish(dq: jax.Array) -> None:
                ref, at = operand(refs, "dqkv", 0)
                ref[row, at, queries, lanes] = (dq.T * settings.scale).astype(ref.dtype)

            start = jnp.zeros((LANES, blocks.queries), jnp.float32)
            over_chunks(refs, queries, blocks, start, lambda dq: over_keys(number, each_key_block, dq), finish)

        count = ids_ref.shape[-1] // blocks.queries
        run_loop(count, each_block, unrolled=blocks.unrolled, first=blocks.first_queries)

        def write() -> None:
            for number, sums_ref in ((1, dk_ref), (2, dv_ref)):
                ref, at = operand(refs, "dqkv", number)
                ref[row, at, :, lanes] = sums_ref[blocks.chunk_keys].astype(ref.dtype)

        if_chunk(blocks.chunk[0], blocks.chunks - 1, write)

    each_group(settings, blocks, refs, scalars, compute)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention(
    qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, tables: jax.Array | None, settings: Settings
) -> jax.Array:
    """[B, 3, L, E] -> [B, L, E]."""
    return _run_forward(qkv, sequence_ids, scalars, tables, settings)[0]


def _run_forward(
    qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, tables: jax.Array | None, settings: Settings
) -> list[jax.Array]:
    """Compute o [B, L, E] and lse, float32 [B, groups, heads of a group, L]."""
    B, _, L, E = qkv.shape
    inputs = {"ids": sequence_ids[:, None], "qkv": qkv} | ({} if tables is None else {"tables": tables})
    outputs = {
        "o": jax.ShapeDtypeStruct((B, L, E), qkv.dtype),
        "lse": jax.ShapeDtypeStruct((B, E // LANES, len(settings.heads), L), jnp.float32),
    }
    kernel = mosaic_chosen.forward_kernel if settings.block else forward_kernel
    return call_kernel(kernel, settings, scalars, inputs, outputs)


def _forward(
    qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, tables: jax.Array | None, settings: Settings
) -> tuple[Any, Any]:
    results = _run_forward(qkv, sequence_ids, scalars, tables, settings)
    o, lse = (checkpoint_name(x, FUSED_ATTENTION) for x in results)
    return o, (qkv, sequence_ids, scalars, tables, o, lse)


def _backward(
    settings: Settings, residuals: tuple[Any, ...], do: jax.Array
) -> tuple[jax.Array, None, None, jax.Array | None]:
    qkv, sequence_ids, scalars, tables, o, lse = residuals
    inputs = {"ids": sequence_ids[:, None], "qkv": qkv, "o": o, "do": do, "lse": lse}
    outputs = {"dqkv": jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)}
    if tables is not None:
        inputs |= {"tables": tables, "reverse_tables": jnp.flip(tables, axis=2)}
        two, groups, distances, lanes = tables.shape
        outputs["dtables"] = jax.ShapeDtypeStruct((two, groups, lanes, distances), jnp.float32)
    kernel = mosaic_chosen.backward_kernel if settings.block else backward_kernel
    dqkv, *dtables = call_kernel(kernel, settings, scalars, inputs, outputs, sums=("dk", "dv"))
    if tables is None:
        return dqkv, None, None, None
    return dqkv, None, None, jnp.flip(dtables[0], axis=3).swapaxes(2, 3).astype(tables.dtype)


_attention.defvjp(_forward, _backward)
