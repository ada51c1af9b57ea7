"""The choice of the attention backend: what each supports, and the errors for unsupported requests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.choice import choose_attention, compute_capability

NEW, OLD = (0, 12, 0, 1), (0, 10, 2)
MODEL, BFLOAT16 = ModelConfig(attention_probs_dropout_prob=0.0), ExecutionConfig(dtype="bfloat16")

MULTIPLE = "mosaic takes rows of a multiple of 128 tokens up to 65,536, not 520"


def configs(change: dict) -> tuple[ModelConfig, ExecutionConfig]:
    execution = {key: value for key, value in change.items() if hasattr(BFLOAT16, key)}
    model = {key: value for key, value in change.items() if key not in execution}
    return replace(MODEL, **model), replace(BFLOAT16, **execution)


@pytest.mark.parametrize(
    ("platform", "length", "packed", "change", "jax_version", "expected"),
    [
        ("cpu", 512, False, {}, NEW, "xla (the only backend for cpu)"),
        ("rocm", 512, False, {}, NEW, "xla (the only backend for rocm)"),
        ("tpu", 512, False, {}, OLD, "mosaic (rows of 512 tokens on tpu)"),
        ("tpu", 512, True, {}, OLD, "mosaic (rows of 512 tokens on tpu)"),
        ("tpu", 512, True, {"dtype": "float32"}, OLD, "mosaic (rows of 512 tokens on tpu)"),
        ("tpu", 8192, True, {}, NEW, "mosaic (rows of 8192 tokens on tpu)"),
        ("tpu", 32768, True, {"window": 128}, NEW, "mosaic (rows of 32768 tokens on tpu)"),
        ("tpu", 128, False, {}, NEW, "xla (rows of 128 tokens; mosaic is for 512 or more)"),
        ("tpu", 520, False, {}, NEW, f"xla ({MULTIPLE})"),
        (
            "tpu",
            512,
            False,
            {"attention_probs_dropout_prob": 0.1, "position_embedding": "alibi"},
            NEW,
            "mosaic (rows of 512 tokens on tpu)",
        ),
        ("tpu", 512, False, {"num_attention_heads": 8}, NEW, "mosaic (rows of 512 tokens on tpu)"),
        (
            "tpu",
            512,
            False,
            {"num_attention_heads": 4},
            NEW,
            "xla (mosaic takes heads of at most 128 dims, not 192)",
        ),
        *(
            (
                platform,
                512,
                False,
                {"position_embedding": positions},
                NEW,
                f"xla (model.position_embedding={positions!r} adds to the scores; {backend} cannot do that)",
            )
            for platform, backend, positions in (
                ("gpu", "cudnn", "alibi"),
                ("gpu", "cudnn", "relative"),
            )
        ),
        ("tpu", 512, True, {"position_embedding": "rope"}, NEW, "mosaic (rows of 512 tokens on tpu)"),
        ("tpu", 512, True, {"position_embedding": "relative"}, NEW, "mosaic (rows of 512 tokens on tpu)"),
        (
            "tpu",
            4096,
            True,
            {"position_embedding": "relative"},
            NEW,
            "xla (mosaic takes rows of a multiple of 128 tokens up to 2,048, not 4096)",
        ),
        (
            "tpu",
            512,
            True,
            {"window": 64, "global_every": 0, "global_tokens": "marked"},
            NEW,
            "mosaic (rows of 512 tokens on tpu)",
        ),
        (
            "tpu",
            512,
            False,
            {"window": 256, "global_every": 0, "global_tokens": "first"},
            NEW,
            "xla (model.global_tokens='first' and model.attention_block=0 in rows of 512 tokens are computed by XLA)",
        ),
        (
            "tpu",
            1024,
            False,
            {"attention_block": 64, "random_blocks": 3},
            NEW,
            "mosaic (rows of 1024 tokens on tpu; blocks of 64 tokens)",
        ),
        (
            "tpu",
            4096,
            False,
            {"attention_block": 84, "random_blocks": 3},
            NEW,
            "xla (mosaic takes blocks of 16 or 32 or 64 tokens, not 84; blocks of 84 tokens)",
        ),
        ("tpu", 512, True, {"attention_block": 64, "random_blocks": 3}, NEW, "mosaic (rows of 512 tokens on tpu)"),
        ("gpu", 512, False, {}, OLD, "cudnn (rows of 512 tokens on gpu)"),
        ("cuda", 512, False, {}, OLD, "cudnn (rows of 512 tokens on cuda)"),
        ("gpu", 512, True, {}, NEW, "cudnn (rows of 512 tokens on gpu)"),
        ("gpu", 512, True, {}, (0, 11, 2), "cudnn (rows of 512 tokens on gpu)"),
        ("gpu", 512, True, {}, OLD, "xla (with packed rows cudnn needs jax 0.11.2, and this is 0.10.2)"),
        ("gpu", 513, True, {}, NEW, "xla (cudnn takes packed rows of an even length only, not 513)"),
        ("gpu", 513, False, {}, NEW, "cudnn (rows of 513 tokens on gpu)"),
        ("gpu", 128, False, {}, NEW, "xla (rows of 128 tokens; cudnn is for 512 or more)"),
        ("gpu", 512, False, {"dtype": "float32"}, NEW, "xla (cudnn computes in bfloat16, not float32)"),
        (
            "gpu",
            512,
            False,
            {"num_attention_heads": 4},
            NEW,
            "xla (cudnn takes heads of a multiple of 8 and at most 128 dims, not 192)",
        ),
        (
            "gpu",
            512,
            False,
            {"attention_probs_dropout_prob": 0.1},
            NEW,
            "xla (attention dropout 0.1 needs the probabilities)",
        ),
        ("tpu", 512, True, {"window": 64, "global_every": 3}, OLD, "mosaic (rows of 512 tokens on tpu)"),
        ("gpu", 512, False, {"window": 64}, NEW, "cudnn (rows of 512 tokens on gpu)"),  # every layer is global
        (
            "gpu",
            512,
            False,
            {"window": 64, "global_every": 0},
            NEW,
            "xla (model.window=64: cudnn does not support two-sided windows; windows of 64 in XLA by blocks)",
        ),
        (
            "gpu",
            512,
            False,
            {"window": 64, "global_every": 3},
            NEW,
            "cudnn (rows of 512 tokens on gpu; windows of 64 in XLA by blocks)",
        ),
        (
            "cpu",
            512,
            False,
            {"window": 64, "global_every": 3},
            NEW,
            "xla (the only backend for cpu; windows of 64 in XLA by blocks)",
        ),
        ("cpu", 192, False, {"window": 64, "global_every": 3}, NEW, "xla (the only backend for cpu)"),
        (
            "tpu",
            520,
            False,
            {"window": 64, "global_every": 0},
            NEW,
            f"xla ({MULTIPLE}; windows of 64 in XLA by blocks)",
        ),
        ("gpu", 8192, False, {"attention": "xla"}, NEW, "xla (set by execution.attention)"),
        ("gpu", 128, False, {"attention": "cudnn"}, NEW, "cudnn (set by execution.attention)"),
        ("tpu", 128, True, {"attention": "mosaic"}, OLD, "mosaic (set by execution.attention)"),
    ],
)
def test_choose_attention_table(
    platform: str, length: int, packed: bool, change: dict, jax_version: tuple, expected: str
) -> None:
    assert str(choose_attention(*configs(change), platform, length, packed, "9.0", jax_version)) == expected


@pytest.mark.parametrize(
    ("platform", "length", "packed", "change", "message"),
    [
        (
            "cpu",
            512,
            False,
            {"attention": "mosaic"},
            "runs on a TPU, and this is compiled for cpu; set execution",
        ),
        ("tpu", 512, False, {"attention": "cudnn"}, "runs on an NVIDIA GPU, and this is compiled for tpu; set"),
        ("gpu", 512, False, {"attention": "mosaic"}, "runs on a TPU, and this is compiled for gpu"),
        (
            "gpu",
            512,
            False,
            {"attention": "cudnn", "attention_probs_dropout_prob": 0.1},
            "attention dropout 0.1 needs the probabilities; set model.attention_probs_dropout_prob=0, or use 'auto'",
        ),
        (
            "tpu",
            100,
            False,
            {"attention": "mosaic"},
            "multiple of 128 tokens up to 65,536, not 100; change data.sequence_length",
        ),
        (
            "gpu",
            512,
            False,
            {"attention": "cudnn", "dtype": "float32"},
            "set execution.dtype='bfloat16', or use 'auto'",
        ),
        (
            "gpu",
            512,
            False,
            {"attention": "cudnn", "window": 64, "global_every": 0},
            "model.window=64: cudnn does not support two-sided windows; set execution.attention='xla', or use 'auto'",
        ),
        ("gpu", 512, True, {"attention": "cudnn"}, "needs jax 0.11.2, and this is 0.10.2; update jax or set data.pack"),
    ],
)
def test_choose_attention_refuses_unsupported_backends(
    platform: str, length: int, packed: bool, change: dict, message: str
) -> None:
    with pytest.raises(ValueError) as error:
        choose_attention(*configs(change), platform, length, packed, "9.0", OLD)
    assert f"execution.attention={change['attention']!r}: " in str(error.value) and message in str(error.value)


def test_longest_mosaic_rows_depend_on_tpu_kind() -> None:
    block = {"attention_block": 64, "random_blocks": 3}
    for length, dtype, kind, change, backend in (
        (8192, "float32", "TPU v4", {}, "mosaic"),
        (16384, "bfloat16", "TPU v4", {}, "xla"),
        (32768, "float32", "TPU v5p", {}, "mosaic"),
        (65536, "bfloat16", "TPU v5p", {}, "xla"),
        (65536, "float32", "TPU v5 lite", {}, "mosaic"),
        (1024, "bfloat16", "TPU v4", block, "mosaic"),
        (1024, "float32", "TPU v4", block, "xla"),
        (1024, "float32", "TPU v4", {"position_embedding": "relative"}, "xla"),
    ):
        choice = choose_attention(replace(MODEL, **change), replace(BFLOAT16, dtype=dtype), "tpu", length, False, kind)
        assert choice.backend == backend, (length, dtype, kind)


@pytest.mark.parametrize(
    ("capability", "has"), [("7.5", "7.5"), ("7.0", "7.0"), ("gfx90a", "gfx90a"), (None, "none"), ("8", "8")]
)
def test_gpu_without_cudnn_support_uses_xla(capability: str | None, has: str) -> None:
    reason = f"cudnn needs an NVIDIA GPU of compute capability 8.0 or more, and this one has {has}"
    assert str(choose_attention(MODEL, BFLOAT16, "gpu", 512, False, capability)) == f"xla ({reason})"
    with pytest.raises(ValueError, match=reason):
        choose_attention(MODEL, replace(BFLOAT16, attention="cudnn"), "gpu", 512, False, capability)


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0"])
def test_gpu_with_cudnn_support_uses_cudnn(capability: str) -> None:
    assert choose_attention(MODEL, BFLOAT16, "gpu", 512, False, capability).backend == "cudnn"


def test_compute_capability_is_queried_or_known() -> None:
    assert (
        compute_capability(SimpleNamespace(platform="gpu", compute_capability="7.5", device_kind="Tesla T4")) == "7.5"
    )
    assert compute_capability(SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")) == "9.0"
    assert compute_capability(SimpleNamespace(platform="gpu", device_kind="NVIDIA V100")) is None
    assert compute_capability(SimpleNamespace(platform="tpu", device_kind="TPU v4")) == "TPU v4"
