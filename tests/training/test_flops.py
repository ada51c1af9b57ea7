"""FLOPs of a step against numbers worked out by hand, and the table of peaks."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from bertjax.config import Config, DataConfig, ModelConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.plan.compiling import compiler_flops
from bertjax.training.flops import device_peak, measured_peak_flops, mfu, peak_flops, train_flops_per_token
from bertjax.training.stages import make_stages
from bertjax.training.teacher import stage_flops

BASE = ModelConfig()
LARGE = ModelConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


def test_base_at_128_by_hand():
    # One layer: q, k, v, o 4 x 768 x 768 = 2,359,296; feed-forward 2 x 768 x 3,072 = 4,718,592; together 7,077,888.
    # Encoder: 12 layers = 84,934,656 parameters, times 6 = 509,607,936.
    # Attention: 12 x 12 layers x 768 x 128 = 14,155,776.
    # MLM: 768 x 768 + 768 x 30,522 = 24,030,720 parameters, times 6 x 20 predictions / 128 tokens = 22,528,800.
    # Pooler and NSP: 768 x 768 + 768 x 2 = 591,360 parameters, times 6 / 128 tokens = 27,720.
    assert train_flops_per_token(BASE, 128, 20) == 509_607_936 + 14_155_776 + 22_528_800 + 27_720


def test_stage_without_a_teacher_counts_no_teacher_flops():
    config = Config(
        training=TrainingConfig(steps=20, objectives=("distil_cosine", "mlm")),
        optimizer=OptimizerConfig(warmup_steps=1),
        data=DataConfig(rows="full_sentences"),
        stages=(StageConfig(start=10, objectives=("mlm",)),),
    )
    taught, alone = make_stages(config)
    teacher = replace(BASE, num_hidden_layers=24)
    assert stage_flops(config, alone, teacher) == stage_flops(config, taught, None)
    teacher_flops = train_flops_per_token(teacher, 128, 0) / 3
    assert stage_flops(config, taught, teacher) == stage_flops(config, taught, None) + teacher_flops


SMALL = ModelConfig(
    vocab_size=1000, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=256
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        # 64 x 16 parameters of the projection for every token; 48 columns fewer in the transform (of 64 rows) and the
        # table (of 1,000), at 4 of 32 tokens.
        ({"embedding_size": 16}, 6 * 64 * 16 - 6 * (64 + 1000) * 48 * 4 / 32),
        ({"embedding_size": 64}, 6 * 64 * 64),
        # Layers 1, 2, 4 and 5 of 0 to 5 see 11 keys instead of 32.
        ({"window": 5, "global_every": 3}, -12 * 64 * 4 * 21),
        ({"window": 5, "global_every": 0}, -12 * 64 * 6 * 21),
        ({"window": 5}, 0),
        ({"window": 100, "global_every": 0}, 0),
        # The window; a global first token is one more key for all and sees all; its projections are 64 x 64.
        ({"window": 5, "global_every": 0, "global_tokens": "marked", "global_projections": True}, -12 * 64 * 6 * 21),
        ({"window": 5, "global_every": 0, "global_tokens": "first"}, -12 * 64 * 6 * 19),
        (
            {"window": 5, "global_every": 0, "global_tokens": "first", "global_projections": True},
            -12 * 64 * 6 * 19 + 6 * 6 * 64 * 64 * (2 + 1 / 32),
        ),
        # Among 16 blocks of 2 tokens, two see all 32 keys, two see 5 blocks and the others 6.
        ({"attention_block": 2, "random_blocks": 1}, -12 * 64 * 6 * (32 - (2 * 32 + 2 * 10 + 12 * 12) / 16)),
        ({"attention_block": 16, "random_blocks": 1}, 0),
        # A third matrix of 64 x 256 in each layer; no transform of 64 x 64 at 4 of 32 tokens.
        ({"mlp": "glu"}, 6 * 6 * 64 * 256),
        ({"mlm_tied": False}, -6 * 64 * 64 * 4 / 32),
        ({"norm_place": "pre", "first_norm": False, "position_embedding": "rope", "attention_bias": "none"}, 0),
        ({"layer_groups": 2}, 0),
        ({"type_vocab_size": 0}, 0),
        ({"pooler": "none"}, -6 * (64 * 64 + 2 * 64) / 32),
        # No MLM and no pooler; 64 x 65 parameters for every token.
        ({"family": "electra", "pooler": "gelu"}, 6 * 64 * (65 - (1064 * 4 + 66) / 32)),
        # 32 tokens use all 24 rows of the table.
        ({"position_embedding": "relative", "relative_max": 12}, 12 * 64 * 6 * 24),
        # One more run of a layer, which sees 32 keys.
        ({"mlm_decoder": "enhanced"}, 6 * (4 * 64 * 64 + 2 * 64 * 256) + 12 * 64 * 32),
        ({"conv_kernel": 3}, 6 * 3 * 64 * 64),
        # Without a pooler; 328 x 64, 64 x 64 and 64 x 1,000 parameters of span boundaries at 4 of 32 tokens.
        ({"family": "spanbert", "pooler": "none"}, 6 * 64 * ((328 + 64 + 1000) * 4 - 66) / 32),
    ],
    ids=str,
)
def test_options_by_hand(change, difference):
    actual = train_flops_per_token(replace(SMALL, **change), 32, 4) - train_flops_per_token(SMALL, 32, 4)
    assert actual == pytest.approx(difference, abs=1e-6)


def test_generator_counts_as_a_separate_model():
    whole = replace(SMALL, family="electra", pooler="gelu", generator_width=0.25)
    generator = replace(
        SMALL, family="electra-generator", pooler="gelu", hidden_size=16, embedding_size=64, num_attention_heads=1,
        intermediate_size=64,
    )  # fmt: skip
    alone = train_flops_per_token(replace(whole, generator_width=0.0), 32, 4)
    assert train_flops_per_token(whole, 32, 4) == alone + train_flops_per_token(generator, 32, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_groups": 2, "embedding_size": 32},
        *(pytest.param(one, marks=pytest.mark.long) for one in ({}, {"embedding_size": 32}, {"layer_groups": 1})),
    ],
    ids=str,
)
def test_products_are_most_of_what_xla_counts(change):
    """XLA adds look-ups, normalisation, activations and the optimizer to the same products."""
    model = replace(SMALL, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, **change)
    data = DataConfig(sequence_length=64, max_predictions=8)
    config = Config(model=model, data=data, training=TrainingConfig(global_batch_size=16))
    (stage,) = make_stages(config)
    ours = 16 * 64 * train_flops_per_token(model, 64, 8)
    assert 1.0 < compiler_flops(config, stage) / ours < 1.1


@pytest.mark.parametrize(
    ("model", "length", "predictions", "gigaflops"),
    [(BASE, 128, 20, 0.546), (BASE, 512, 77, 0.588), (LARGE, 128, 20, 1.880), (LARGE, 512, 77, 1.992)],
)
def test_published_convention(model, length, predictions, gigaflops):
    assert round(train_flops_per_token(model, length, predictions) / 1e9, 3) == gigaflops


def test_table_padding_does_not_count():
    padded = ModelConfig(vocab_pad_multiple=4096)
    assert train_flops_per_token(padded, 128, 20) == train_flops_per_token(BASE, 128, 20)


def test_mfu_is_a_share_of_the_peak():
    # BERT-Large at 128: 1,850 rows a second on one H200 are 45 % of its 989.5 TFLOP/s.
    rate = train_flops_per_token(LARGE, 128, 20) * 128 * 1850
    assert mfu(rate, 989.5e12) == pytest.approx(0.45, abs=1e-3)


@pytest.mark.parametrize(
    ("device_kind", "tflops"),
    [
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 3090", 71),
    ],
)
def test_table_of_peaks(device_kind, tflops):
    assert peak_flops(device_kind) == tflops * 1e12


@pytest.mark.parametrize("device_kind", ["cpu", "NVIDIA L400", "TPU v50"])
def test_unknown_device_has_no_peak(device_kind):
    assert peak_flops(device_kind) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpu_peak_is_measured_in_the_dtype_of_the_run(monkeypatch, dtype):
    figures = {"float32": 3e10, "bfloat16": 7e10}
    monkeypatch.setattr("bertjax.training.flops.measured_peak_flops", lambda *, dtype: figures[dtype])
    peak = device_peak(jax.devices("cpu")[0], dtype)
    assert peak.flops == figures[dtype]
    assert f"fastest {dtype} matmul measured" in str(peak)


def test_peak_of_an_unknown_accelerator_is_measured_in_bfloat16(monkeypatch):
    monkeypatch.setattr("bertjax.training.flops.measured_peak_flops", lambda size, seconds, dtype: 1e14)
    peak = device_peak(SimpleNamespace(platform="gpu", device_kind="NVIDIA A2000"), "float32")
    assert "fastest bfloat16 matmul measured on this NVIDIA A2000" in str(peak)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_measured_peak_is_the_fastest_product(dtype):
    """On a fake clock, where three products take a second, half a second, and a second."""
    readings = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.5, 6.0, 7.0, 8.0, 100.0])
    peak = measured_peak_flops(size=64, seconds=9.0, dtype=dtype, clock=lambda: next(readings))
    assert peak == 2 * 64**3 / 0.5 / jax.local_device_count()
    assert next(readings, None) is None, "products are measured until the time is over, and none after it"
