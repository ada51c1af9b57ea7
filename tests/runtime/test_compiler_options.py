"""Compiler options: the installed XLA supports them, and environment variables take precedence."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.runtime import compilation
from bertjax.runtime.compilation import FLAGS, compiler_options, known_options


def test_installed_xla_supports_every_gpu_flag() -> None:
    # XLA supports the options of the GPU compiler on every platform.
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    options = compiler_options("gpu", 8, deterministic=True, environ={})
    assert "xla_gpu_deterministic_ops" in options
    assert known_options(options, mesh) == options


@pytest.mark.long  # loads libtpu; the suite tests another compiler below
def test_tpu_compiler_drops_unknown_options() -> None:
    # In a new process, since libtpu stays loaded.
    pytest.importorskip("libtpu", reason="needs the TPU's compiler: pip install libtpu")
    program = (
        "import os; os.environ |= {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': 'true'}\n"
        "from jax.experimental import topologies\n"
        "from bertjax.config import MeshConfig\n"
        "from bertjax.parallel.mesh import make_mesh\n"
        "from bertjax.runtime.compilation import compiler_options, known_options\n"
        "devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices\n"
        "options = compiler_options('tpu', 4, environ={}) | {'xla_tpu_enable_latency_hiding_scheduler': True}\n"
        "requested = options | {'xla_tpu_nonsense': True}\n"
        "assert known_options(requested, make_mesh(MeshConfig(), devices)) == options\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "xla_tpu_nonsense is not an option of this XLA version" in done.stderr


def test_unknown_options_are_dropped_with_a_warning() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.warns(UserWarning, match="xla_gpu_nonsense is not an option of this XLA version"):
        assert known_options({"xla_gpu_nonsense": True, "xla_gpu_deterministic_ops": True}, mesh) == {
            "xla_gpu_deterministic_ops": True
        }
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid"):
        known_options({"xla_gpu_deterministic_ops": "perhaps"}, mesh)


@pytest.mark.parametrize("setting", ["--xla_gpu_deterministic_ops=false", "--a=b --xla_gpu_deterministic_ops --c"])
def test_environment_options_take_precedence(setting: str) -> None:
    options = compiler_options("gpu", 8, deterministic=True, environ={"XLA_FLAGS": setting})
    assert "xla_gpu_deterministic_ops" not in options and len(options) == len(FLAGS["gpu"])
    longer = {"XLA_FLAGS": "--xla_gpu_deterministic_ops_of_another_name=1"}
    assert "xla_gpu_deterministic_ops" in compiler_options("gpu", 8, deterministic=True, environ=longer)
    assert "xla_gpu_deterministic_ops" not in compiler_options(
        "gpu", 8, deterministic=True, environ={"LIBTPU_INIT_ARGS": setting}
    )


def test_deterministic_changes_nothing_on_cpu_and_tpu() -> None:
    for platform in ("cpu", "tpu"):
        assert compiler_options(platform, 8, deterministic=True) == compiler_options(platform, 8)
    assert compiler_options("cpu", 8) == {}


def test_one_device_gets_no_traffic_options() -> None:
    assert compiler_options("gpu", 1, environ={}) == {}
    assert compiler_options("gpu", 1, deterministic=True, environ={}) == {"xla_gpu_deterministic_ops": True}


def test_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compilation.FLAGS, "cpu", (compilation.Flag("xla_cpu_nonsense", True, ""),))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_nonsense"):
        jax.jit(jnp.negative, compiler_options=compiler_options("cpu", 2))(1.0)
