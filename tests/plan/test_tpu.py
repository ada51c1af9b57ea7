"""`bertjax plan` through the command line, with the real compilers, on a machine without a TPU or a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.plan.topologies import planning_environment

RECIPE = """
from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, OptimizerConfig, TrainingConfig

def config():
    return Config(
        name="tiny",
        model=ModelConfig(hidden_size=128, num_hidden_layers=1, num_attention_heads=1,
                          intermediate_size=128, max_position_embeddings=128),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(vocab_size=4000, sequence_length=128, max_predictions=20),
        optimizer=OptimizerConfig(name="lamb", warmup_steps=10),  # its state has a counter too
        training=TrainingConfig(steps=1000, global_batch_size=64, grad_accum_steps=2),
    )
"""
NO_COMPILER = importlib.util.find_spec("libtpu") is None


CONFIGS = Path(__file__).parents[2] / "configs"


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    recipe = folder / "tiny.py"
    recipe.write_text(RECIPE)
    return run_plan(str(recipe), *arguments)


def run_plan(recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bertjax", "plan", recipe, *arguments]
    # The environment of a user: without the variables that the tests set for CPU devices.
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
def test_small_plan_for_a_tpu(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    ended = plan(tmp_path, "--topology", "v5e:2x2", "--price", "1.5", "--html", str(page))
    assert ended.returncode == 0, ended.stderr
    # No warnings about a missing TPU.
    assert ended.stderr == "compiling stage 1 of 1 for v5e:2x2 in 2 microbatches\n"
    output = ended.stdout
    assert "mesh data=2 fsdp=2 tensor=1 of TPU v5 lite (4 devices)" in output
    assert "stage 1: 1,000 steps of 64 rows of 128 tokens, 8 a device at a time, in 2 microbatches" in output
    assert re.search(r"^  stage 1 .* 15\.75 +fits$", output, re.M)
    assert re.search(r"tiny fits v5e:2x2 and takes at least .*; by the compiler's schedule [\d.]+ hours\.", output)
    times = re.search(r"^  stage 1 .* ([\d.]+) to [\d.]+ .*% +([\d.]+), [\d.]+%$", output, re.M)
    least, estimate = times.groups()
    assert float(least) < float(estimate)  # milliseconds
    # On TPUs the mesh shards weights by default: weights are gathered and gradients scattered over fsdp, and summed
    # over data.
    kinds = set(
        re.findall(r"^  (all-gather|reduce-scatter|all-reduce|all-to-all|collective-permute) +(\S.*?)  ", output, re.M)
    )
    assert ("all-gather", "fsdp") in kinds
    assert kinds & {("reduce-scatter", "fsdp"), ("all-reduce", "fsdp")}
    assert kinds <= {
        (kind, axes) for kind in ("all-gather", "reduce-scatter", "all-reduce") for axes in ("fsdp", "data")
    }
    written = page.read_text()
    assert "<script" not in written
    assert "Plan: tiny on v5e:2x2" in written


NO_GPU_COMPILER = importlib.util.find_spec("jax_cuda12_plugin") is None


@pytest.mark.skipif(NO_GPU_COMPILER, reason="jax's CUDA plug-in is not installed; pip install 'bertjax[cuda]'")
def test_small_plan_for_gpus(tmp_path: Path) -> None:
    ended = plan(tmp_path, "--topology", "h100:8", "--mesh.fsdp", "2", "--price", "1.5")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"mesh data=4 fsdp=2 tensor=1 of .*H100.* \(8 devices\)", ended.stdout)
    assert re.search(r"^  stage 1 .* fits$", ended.stdout, re.M)
    assert "tiny fits h100:8" in ended.stdout


SMALL = (
    *("--model.num-hidden-layers", "1", "--model.hidden-size", "256", "--model.num-attention-heads", "2"),
    *("--model.intermediate-size", "256", "--data.vocab-size", "1000", "--data.sequence-length", "128"),
    *("--training.global-batch-size", "64", "--training.grad-accum-steps", "2", "--topology", "v5e:2x2"),
)


@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
@pytest.mark.long
@pytest.mark.parametrize("recipe", ["roberta", "albert"])
def test_family_recipe_compiles_for_a_tpu(recipe: str) -> None:
    ended = run_plan(str(CONFIGS / f"{recipe}.py"), *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^  stage 1 .* 15\.75 +fits$", ended.stdout, re.M)
    assert f"{recipe}_base fits v5e:2x2" in ended.stdout


@pytest.mark.long
@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
@pytest.mark.parametrize(
    "recipe",
    [
        *(f"roberta.py:{variant}" for variant in ("base", "large", "xlm-base", "camembert")),
        *(f"albert.py:{variant}" for variant in ("base", "xxlarge-v2")),
        "bert_base.py",
    ],
)
def test_full_size_recipe_fits_a_tpu(recipe: str) -> None:
    ended = run_plan(str(CONFIGS / recipe), "--topology", "v5e:8x8")
    assert ended.returncode == 0, ended.stderr
    print(*re.findall(r"^(?:  stage \d .*|.* fits v5e:8x8 and .*)$", ended.stdout, re.M), sep="\n")
    assert re.search(r" fits v5e:8x8 and takes at least ", ended.stdout)


def window_on_a_tpu(length: int) -> tuple[int, int, str]:
    """For the gradient of windowed attention: bytes of temporaries, number of kernel calls, the chosen backend."""
    script = str(Path(__file__).with_name("window_on_tpu.py"))
    environment = os.environ | planning_environment("v5e:1x1", os.environ)
    command = [sys.executable, script, str(length)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    _, temporaries, kernels, choice = ended.stdout.split(maxsplit=3)
    return int(temporaries), int(kernels), choice.strip()


@pytest.mark.long  # the suite lowers one, in tests/training/test_fused_attention.py
@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
def test_window_compiles_to_a_kernel_on_one_tpu() -> None:
    temporaries, kernels, choice = window_on_a_tpu(8192)
    assert choice == "mosaic (rows of 8192 tokens on tpu)"
    assert kernels == 2  # forward and backward
    assert temporaries < 8 * 12 * 8192 * 8192 * 2 / 4  # a quarter of the square in bfloat16


@pytest.mark.long
@pytest.mark.skipif(NO_COMPILER, reason="libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
@pytest.mark.parametrize(
    ("short", "long"), [(4096, 8192), (4000, 8000)]
)  # the kernel, and blocks where it is not legal
def test_tpu_memory_under_a_window_is_linear_in_the_length(short: int, long: int) -> None:
    assert window_on_a_tpu(long)[0] <= 2.02 * window_on_a_tpu(short)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v5:4x4"], "unknown; nearest: v5e:4x4"),
        (["--topology", "v5e:2x2", "--mesh.data", "3"], "mesh data=3 fsdp=1 tensor=1 does not fit the 4 tpu devices"),
        pytest.param(
            ["--topology", "v5e:2x2", "--slices", "2", "--mesh.dcn-data", "3"],
            "does not match the 2 slice(s)",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["--topology", "v5e:16x16"],
            "training.global_batch_size=64 with training.grad_accum_steps=2 gives 32 rows",
            marks=pytest.mark.long,
        ),
        pytest.param(["--topology", "v5e:2x2", "--stage", "2"], "--stage 2: the recipe has 1", marks=pytest.mark.long),
        pytest.param(["--topology", "v5e:3x5"], "the TPU compiler has no such slice", marks=pytest.mark.long),
    ],
)
def test_plan_that_does_not_fit_is_refused_early(arguments: list[str], message: str, tmp_path: Path) -> None:
    if NO_COMPILER and "v5:4x4" not in arguments:
        pytest.skip("libtpu, the TPU compiler, is not installed; pip install 'bertjax[tpu]'")
    ended = plan(tmp_path, *arguments)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
