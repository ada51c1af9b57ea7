"""The reference of attention: its masks, gradients and memory; and cuDNN, where there is a GPU."""

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
    backend: str, ids: jax.Array, packed: bool, causal: bool, dtype=jnp.float32, window: int = 0
) -> list[np.ndarray]:
    settings = {"packed": packed, "causal": causal, "window": window, "dropout_keys": None, "dropout_rate": 0.0}
    attention = functools.partial(attend, backend, sequence_ids=ids, **settings)
    return attention_sides.outputs_and_gradients(attention, ids, dtype, head_dim=HEAD_DIM)


def assert_near(found, reference, tolerance: float) -> None:
    for name, ours, theirs in zip(("out", "dq", "dk", "dv"), found, reference, strict=True):
        assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs), name


def test_a_window_has_both_of_its_ends() -> None:
    sequence_ids = jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 0]])
    seen = np.asarray(visible(sequence_ids, causal=False, window=2))[0].astype(int)
    assert ["".join(map(str, row)) for row in seen] == [
        "11100000", "11110000", "11111000", "01111000", "00111000", "00000110", "00000110", "00000001",
    ]  # fmt: skip
    seen = np.asarray(visible(sequence_ids, causal=True, window=2))[0].astype(int)
    assert "".join(map(str, seen[3])) == "01110000"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gradient_in(dtype, scores: jax.Array) -> jax.Array:
    """The scores, whose gradient is rounded to the dtype of the factors, as fused attention does too."""
    return scores


gradient_in.defvjp(lambda dtype, scores: (scores, None), lambda dtype, _, g: (g.astype(dtype).astype(g.dtype),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def softmax_in(dtype, scores: jax.Array) -> jax.Array:
    """The softmax in a dtype, whose derivative is the matrix diag(p) - p p^T of that result."""
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

    def all_of(function) -> list[np.ndarray]:
        gradients, out = jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(dtype)}
        return [np.asarray(x, np.float64) for x in (out, *gradients)]

    assert_near(all_of(reference), all_of(formula), 1e-6)


def test_bfloat16_gradients_are_half_a_percent_off() -> None:
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
def test_a_scan_stacks_probabilities_in_their_dtype_alone(dtype) -> None:
    """Scores, masks and dropped probabilities of the layers stay inside the scan, or are computed again."""
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


def test_the_comparison_sees_a_wrong_mask() -> None:
    sequence_ids = some_ids(128, packed=True)
    right = outputs_and_gradients("xla", sequence_ids, True, False)
    for wrong in (some_ids(128, packed=False), np.roll(sequence_ids, 1, axis=1)):
        with pytest.raises(AssertionError, match="out"):
            assert_near(outputs_and_gradients("xla", wrong, True, False), right, 1e-2)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: cuDNN runs nowhere else")
@pytest.mark.parametrize(("packed", "causal"), [(False, False), (False, True), (True, False), (True, True)])
def test_cudnn_is_the_reference(packed: bool, causal: bool) -> None:
    if packed and jax.__version_info__ < (0, 11, 2):
        pytest.skip("packed rows need jax 0.11.2")
    sequence_ids = some_ids(512, packed)
    found = outputs_and_gradients("cudnn", sequence_ids, packed, causal, jnp.bfloat16)
    reference = outputs_and_gradients("xla", sequence_ids, packed, causal, jnp.float32)
    assert all(np.isfinite(x).all() for x in found)
    # The reference in bfloat16 is as far from float32; the inputs of both are the same draws, rounded.
    assert_near(found, reference, 2e-2)


@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_is_lowered_for_a_gpu(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # jax asks the installed cuDNN for its version before it lowers anything; here there is none.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_100)
    x = jax.ShapeDtypeStruct((ROWS, 512, HEADS, HEAD_DIM), jnp.bfloat16)
    of_tokens = jax.ShapeDtypeStruct((ROWS, 512), jnp.int32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        return jnp.sum(cudnn_attention(q, k, v, sequence_ids, packed=packed, causal=False).astype(jnp.float32))

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    text = gradient.trace(x, x, x, of_tokens).lower(lowering_platforms=("cuda",)).as_text()
    assert "fmha" in text and "Backward" in text
    assert ("ScaleBias" in text) == packed


def test_a_row_of_padding_is_not_passed_as_a_row_of_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, jax.Array] = {}
    monkeypatch.setattr("jax.nn.dot_product_attention", lambda q, k, v, **how: told.update(how))
    x, sequence_ids = jnp.zeros((3, 4, 1, 8), jnp.bfloat16), jnp.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    cudnn_attention(x, x, x, sequence_ids, packed=False, causal=False)
    for side in ("query", "key_value"):
        assert told[f"{side}_seq_lengths"].tolist() == [3, 1, 1]


def test_settings_of_dropout_do_not_reach_a_fused_back_end() -> None:
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
