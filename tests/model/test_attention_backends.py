"""The XLA reference of attention: masks, gradients and memory; and cuDNN, if there is a GPU."""

from __future__ import annotations

import functools
import re

import attention_sides
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import HEADS, ROWS, some_ids

from bertjax.model.attention.backends import attend, cudnn_attention, visible, xla_attention

HEAD_DIM = 16
HAS_GPU = jax.default_backend() == "gpu"


def outputs_and_gradients(
    backend: str, ids: jax.Array, packed: bool, causal: bool, dtype=jnp.float32
) -> list[np.ndarray]:
    settings = {"packed": packed, "causal": causal, "dropout_keys": None, "dropout_rate": 0.0}
    attention = functools.partial(attend, backend, sequence_ids=ids, **settings)
    return attention_sides.outputs_and_gradients(attention, ids, dtype, head_dim=HEAD_DIM)


def assert_near(actual, reference, tolerance: float) -> None:
    for name, ours, theirs in zip(("out", "dq", "dk", "dv"), actual, reference, strict=True):
        assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs), name


def test_visible_window_includes_both_ends() -> None:
    sequence_ids = jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 0]])
    seen = np.asarray(visible(sequence_ids, causal=False, window=2))[0].astype(int)
    assert ["".join(map(str, row)) for row in seen] == [
        "11100000", "11110000", "11111000", "01111000", "00111000", "00000110", "00000110", "00000001",
    ]  # fmt: skip
    seen = np.asarray(visible(sequence_ids, causal=True, window=2))[0].astype(int)
    assert "".join(map(str, seen[3])) == "01110000"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gradient_in(dtype, scores: jax.Array) -> jax.Array:
    """Return the scores; their gradient is rounded to `dtype`, that of the factors, as in fused attention."""
    return scores


gradient_in.defvjp(lambda dtype, scores: (scores, None), lambda dtype, _, g: (g.astype(dtype).astype(g.dtype),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def softmax_in(dtype, scores: jax.Array) -> jax.Array:
    """Softmax rounded to `dtype`, with the derivative diag(p) - p p^T of the rounded result."""
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_in_backward(dtype, probs: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = probs.astype(jnp.float32)
    jacobian = wide[..., :, None] * jnp.eye(wide.shape[-1]) - wide[..., :, None] * wide[..., None, :]
    return (jnp.einsum("...mn,...m->...n", jacobian, g.astype(jnp.float32)),)


softmax_in.defvjp(lambda dtype, scores: 2 * (softmax_in(dtype, scores),), _softmax_in_backward)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_reference_gradients_equal_derived_gradients(dtype) -> None:
    q, k, v, read = jax.random.normal(jax.random.key(1), (4, ROWS, 24, HEADS, HEAD_DIM), dtype)
    seen = visible(some_ids(24 + 27, packed=True)[:, :24], causal=False)

    def formula(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = jnp.einsum("blhk,bmhk->bhlm", q * HEAD_DIM**-0.5, k, preferred_element_type=jnp.float32)
        scores = gradient_in(dtype, scores)
        probs = softmax_in(dtype, jnp.where(seen[:, None], scores, -jnp.inf))
        out = jnp.einsum("bhlm,bmhk->blhk", probs, v)
        return jnp.sum(out * read, dtype=jnp.float32), out

    def reference(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = xla_attention(q, k, v, seen, None, 0.0)
        return jnp.sum(out * read, dtype=jnp.float32), out

    def run(function) -> list[np.ndarray]:
        gradients, out = jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(dtype)}
        return [np.asarray(x, np.float64) for x in (out, *gradients)]

    assert_near(run(reference), run(formula), 1e-6)


def test_bfloat16_gradients_are_within_half_a_percent() -> None:
    q, k, v, read = jax.random.normal(jax.random.key(2), (4, ROWS, 128, HEADS, HEAD_DIM), jnp.bfloat16)
    seen, keys = visible(some_ids(128, packed=True), causal=False), jnp.arange(ROWS, dtype=jnp.uint32)

    def gradients(dtype) -> list[np.ndarray]:
        def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return jnp.sum(xla_attention(q, k, v, seen, keys, 0.1) * read.astype(dtype), dtype=jnp.float32)

        inputs = (x.astype(dtype) for x in (q, k, v))
        return [np.asarray(x, np.float64) for x in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)]

    for rough, exact in zip(gradients(jnp.bfloat16), gradients(jnp.float32), strict=True):
        assert 0 < np.linalg.norm(rough - exact) / np.linalg.norm(exact) < 0.006


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_scan_stacks_only_probabilities_in_their_dtype(dtype) -> None:
    """Scores, masks and dropped probabilities stay inside the scan over layers, or are recomputed."""
    layers, length = 3, 48
    row = jnp.zeros((ROWS, length, HEADS, HEAD_DIM), dtype)
    sequence_ids, keys = some_ids(128, packed=True)[:, :length], jnp.arange(ROWS, dtype=jnp.uint32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            seen = visible(sequence_ids, causal=False)
            return xla_attention(q * x, k, v, seen, keys, 0.1), None

        return jnp.sum(jax.lax.scan(layer, q, length=layers)[0], dtype=jnp.float32)

    program = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(row, row, row))
    stacked = set(re.findall(rf"(\w+)\[{layers},{ROWS},(?:{HEADS}|1),{length},{length}\]", program))
    assert stacked == {"f32" if dtype == jnp.float32 else "bf16"}


def test_comparison_detects_a_wrong_mask() -> None:
    sequence_ids = some_ids(128, packed=True)
    right = outputs_and_gradients("xla", sequence_ids, True, False)
    for wrong in (some_ids(128, packed=False), np.roll(sequence_ids, 1, axis=1)):
        with pytest.raises(AssertionError, match="out"):
            assert_near(outputs_and_gradients("xla", wrong, True, False), right, 1e-2)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: cuDNN runs nowhere else")
@pytest.mark.parametrize(("packed", "causal"), [(False, False), (False, True), (True, False), (True, True)])
def test_cudnn_matches_reference(packed: bool, causal: bool) -> None:
    if packed and jax.__version_info__ < (0, 11, 2):
        pytest.skip("packed rows need jax 0.11.2")
    sequence_ids = some_ids(512, packed)
    actual = outputs_and_gradients("cudnn", sequence_ids, packed, causal, jnp.bfloat16)
    reference = outputs_and_gradients("xla", sequence_ids, packed, causal, jnp.float32)
    assert all(np.isfinite(x).all() for x in actual)
    # The reference in bfloat16 is as far from float32; the inputs of both are the same draws, rounded.
    assert_near(actual, reference, 2e-2)


@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_lowers_for_gpu(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # jax checks the version of the installed cuDNN before lowering; none is installed here.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_100)
    x = jax.ShapeDtypeStruct((ROWS, 512, HEADS, HEAD_DIM), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((ROWS, 512), jnp.int32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        return jnp.sum(cudnn_attention(q, k, v, sequence_ids, packed=packed, causal=False).astype(jnp.float32))

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    text = gradient.trace(x, x, x, ids).lower(lowering_platforms=("cuda",)).as_text()
    assert "fmha" in text and "Backward" in text
    assert ("ScaleBias" in text) == packed


def test_cudnn_row_of_padding_has_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, jax.Array] = {}
    monkeypatch.setattr("jax.nn.dot_product_attention", lambda q, k, v, **kwargs: arguments.update(kwargs))
    x, sequence_ids = jnp.zeros((3, 4, 1, 8), jnp.bfloat16), jnp.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    cudnn_attention(x, x, x, sequence_ids, packed=False, causal=False)
    for side in ("query", "key_value"):
        assert arguments[f"{side}_seq_lengths"].tolist() == [3, 1, 1]


def test_cudnn_refuses_dropout() -> None:
    x = jnp.zeros((1, 128, 2, 16))
    with pytest.raises(AssertionError, match="does not support dropout"):
        attend(
            "cudnn",
            x,
            x,
            x,
            jnp.ones((1, 128), jnp.int32),
            packed=False,
            causal=False,
            dropout_keys=jnp.zeros(1, jnp.uint32),
            dropout_rate=0.1,
        )
