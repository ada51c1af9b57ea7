"""Machines by name, such as `v5p:8x8x8` or `h100:8`: their chips, and devices for ahead-of-time compilation."""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.storage.lean_import import WITHOUT_TPU

if TYPE_CHECKING:
    from bertjax.training.flops import Peak

GIB = 1 << 30
_GPU_SHARE = 0.75  # jax's default share of a GPU's memory (XLA_PYTHON_CLIENT_MEM_FRACTION)


@dataclass(frozen=True)
class Chip:
    """Properties of one jax device of a kind; sizes in bytes, rates in bytes/s."""

    name: str
    device_kind: str  # as jax calls it
    memory: float
    memory_bandwidth: float
    link: float  # one direction: one link of a TPU's torus, or all NVLinks of a GPU
    dims: int  # of the torus; 0 for a switch
    network: float  # this device's share of its host's network, one direction
    cores_of_a_chip: int = 1  # jax devices that share a chip and its links
    measured: Peak | None = None  # for a device without a data sheet

    @property
    def flops(self) -> float:
        """Dense bf16 FLOP/s from the data sheet, or as measured."""
        if self.measured is not None:
            return self.measured.flops
        from bertjax.training.flops import peak_flops  # imports jax, which must wait for `set_environment`

        peak = peak_flops(self.device_kind)
        assert peak is not None, f"flops.py has no peak for {self.device_kind}"
        return peak

    @property
    def is_tpu(self) -> bool:
        """Whether the chip is a TPU rather than a GPU."""
        return self.dims > 0

    @property
    def usable(self) -> float:
        """Bytes that a program may use."""
        return self.memory if self.is_tpu else self.memory * gpu_memory_share()


def gpu_memory_share() -> float:
    """Return the share of a GPU's memory that jax uses."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", _GPU_SHARE))


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 30.75 * GIB, 1.228e12, 4.5e10, 3, 6.25e9),
        Chip("v5e", "TPU v5 lite", 15.75 * GIB, 8.19e11, 4.5e10, 2, 3.125e9),
        Chip("v5p", "TPU v5", 95.73 * GIB, 2.765e12, 9e10, 3, 6.25e9),
        Chip("v6e", "TPU v6 lite", 31.24 * GIB, 1.64e12, 9e10, 2, 1.25e10),
        # A jax device is one of the chip's two halves.
        Chip("tpu7x", "TPU7x", 94.74 * GIB, 3.69e12, 9e10, 3, 6.25e9, cores_of_a_chip=2),
        Chip("h100", "NVIDIA H100 80GB HBM3", 80e9, 3.35e12, 4.5e11, 0, 5e10),
        Chip("h200", "NVIDIA H200", 141e9, 4.8e12, 4.5e11, 0, 5e10),
        Chip("b200", "NVIDIA B200", 180e9, 7.7e12, 9e11, 0, 5e10),
    )
}


def find_chip(device_kind: str) -> Chip | None:
    """Return the chip with this jax device kind, or None if it is not in the table."""
    # A real TPU v5p is "TPU v5p", a planned one "TPU v5".
    kind = {"TPU v5p": "TPU v5", "TPU v5e": "TPU v5 lite", "TPU v6e": "TPU v6 lite"}.get(device_kind, device_kind)
    for chip in CHIPS.values():
        # The variant of a GPU may follow the chip's name, but TPU v5 lite is not TPU v5.
        if kind == chip.device_kind or (kind.startswith(chip.device_kind) and not chip.is_tpu):
            return chip
    return None


LOCAL = "local"
# Usual shapes, to suggest for an unknown name; the compiler accepts others too.
SHAPES = {
    "v4": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"),
    "v5e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"),
    "v6e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "tpu7x": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
    "h100": ("8", "2x8", "4x8", "8x8", "16x8", "32x8"),
    "h200": ("8", "2x8", "4x8", "8x8", "16x8", "32x8"),
    "b200": ("8", "2x8", "4x8", "8x8", "16x8", "32x8"),
}
# Aliases of kinds, for the same suggestions.
ALIASES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "trillium": "v6e",
    "ironwood": "tpu7x",
    "v7x": "tpu7x",
    "tpu7": "tpu7x",
}
_CORES_IN_TYPES = ("v4", "v5p")  # accelerator types such as v5p-16 count two cores per chip
_FULL_TORUS = 16  # chips along a dim of a v5e or v6e slice that closes into a ring
_CUBE = 4  # chips along each dim of the blocks in v4, v5p and tpu7x; whole blocks close into rings
_MEGACORE = ("v4", "v5p")  # where both cores of a chip are one jax device
_LIBTPU = "LIBTPU_INIT_ARGS"  # the variable with libtpu's flags, which it reads when it is loaded
_DUMP = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=^final_bundles"
_QUIET = WITHOUT_TPU | {
    # No TPU is used, so any number of compilers may run at once.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_ID": "0",
    "TPU_STDERR_LOG_LEVEL": "3",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}

# Descriptions of GPUs for XLA's compiler on a machine without one (`GpuTargetConfigProto` as text). Figures: NVIDIA's
# data sheets and the CUDA C++ Programming Guide's table of compute capabilities.
_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  fpus_per_core: 128 core_count: {cores} clock_rate_ghz: {clock} l2_cache_size: {l2}
  memory_bandwidth: {bandwidth} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{name}"
"""


def _target(name: str, major: int, cores: int, clock: float, l2_mib: int, bandwidth: int, memory: int) -> str:
    return _TARGET.format(
        name=name, major=major, cores=cores, clock=clock, l2=l2_mib << 20, bandwidth=bandwidth, memory=memory
    )


_GPU_TARGETS = {
    "h100": _target("NVIDIA H100 80GB HBM3", 9, 132, 1.98, 50, 3_352_000_000_000, 84_978_434_048),
    "h200": _target("NVIDIA H200", 9, 132, 1.98, 50, 4_800_000_000_000, 150_000_000_000),
    "b200": _target("NVIDIA B200", 10, 148, 1.965, 126, 7_700_000_000_000, 191_000_000_000),
}


@dataclass(frozen=True)
class Name:
    """A parsed name: kind of chip, shape, and number of slices."""

    chip: Chip
    shape: tuple[int, ...]
    slices: int

    def __str__(self) -> str:
        shape = "x".join(str(size) for size in self.shape)
        return f"{self.chip.name}:{shape}" + (f", {self.slices} slices" if self.slices > 1 else "")

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether the links along each dim of a TPU slice close into a ring."""
        if self.chip.dims == 3:
            return (all(size % _CUBE == 0 for size in self.shape),) * len(self.shape)
        return tuple(size == _FULL_TORUS for size in self.shape)


@dataclass(frozen=True)
class Topology:
    """Devices to plan for. `chip` is None for a kind that is not in the table, such as a CPU."""

    name: str
    devices: tuple[Any, ...]
    chip: Chip | None
    wraps: tuple[bool, ...]
    capacity: float | None  # bytes that a program may use on each device; None: no limit
    slices: tuple[int, ...] = ()  # per device: its TPU slice or GPU host

    @property
    def platform(self) -> str:
        """The jax platform: tpu, gpu or cpu."""
        return self.devices[0].platform

    @property
    def chips(self) -> float:
        """The number of chips, each of which may be several jax devices."""
        return len(self.devices) / (self.chip.cores_of_a_chip if self.chip else 1)


def planning_environment(name: str, environment: Mapping[str, str], dump: Path | None = None) -> dict[str, str]:
    """Return the environment variables to set before jax is imported, to plan for a machine that is not available.

    Without them jax would look for the accelerator and libtpu would print warnings. With `dump`, libtpu writes the
    schedule of what it compiles into that folder.
    """
    if name == LOCAL:
        return {}
    variables = {"JAX_PLATFORMS": "cpu"} | {key: value for key, value in _QUIET.items() if key not in environment}
    if dump is not None:
        variables[_LIBTPU] = f"{environment.get(_LIBTPU, '')} {_DUMP.format(folder=dump)}".strip()
    return variables


def empty_dump(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Empty the folder of schedules and return it; None if libtpu writes no schedules.

    Instructions of earlier programs may have the same names as the next program's.
    """
    folders = re.findall(r"--xla_jf_dump_to=(\S+)", environment.get(_LIBTPU, ""))
    if not folders:
        return None
    folder = Path(folders[-1])  # libtpu takes the last of equal flags
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()
    return folder


def parse_name(name: str, slices: int = 1) -> Name:
    """Parse a name. Raises ValueError with the nearest names for an unknown one."""
    kind, _, shape = name.partition(":")
    chip = CHIPS.get(kind)
    if chip is None or not re.fullmatch(r"\d+(x\d+)*", shape) or "0" in shape.split("x"):
        raise ValueError(f"--topology {name}: unknown; {_suggest_names(name)}")
    sizes = tuple(int(size) for size in shape.split("x"))
    if chip.is_tpu and len(sizes) != chip.dims:
        raise ValueError(f"--topology {name}: a {kind} slice has {chip.dims} dims; {_suggest_names(name)}")
    if not chip.is_tpu and len(sizes) > 2:
        raise ValueError(
            f"--topology {name}: GPUs are counted as HOSTSxGPUS, or GPUS of one host; {_suggest_names(name)}"
        )
    if slices < 1 or (slices > 1 and not chip.is_tpu):
        raise ValueError(
            f"--slices {slices} with --topology {name}: a number of TPU slices, 1 or more; "
            "hosts of GPUs are part of the name, as in h100:8x8"
        )
    return Name(chip, sizes, slices)


def _suggest_names(name: str) -> str:
    known = [f"{kind}:{shape}" for kind, shapes in SHAPES.items() for shape in shapes]
    name = name.lower()
    shape = name.lstrip(string.ascii_lowercase + string.digits)
    kind = name.removesuffix(shape)
    kind = ALIASES.get(kind, kind)
    name = f"{kind}{shape}"
    count = re.fullmatch(r"-(\d+)", shape)
    if kind in CHIPS and count:
        chips = int(count.group(1)) // (2 if kind in _CORES_IN_TYPES else 1)
        equal = [one for one in SHAPES[kind] if math.prod(int(size) for size in one.split("x")) == chips]
        if equal:
            return f"with as many chips: {', '.join(f'{kind}:{one}' for one in equal)}"
    near = [one for one in known if one.startswith(f"{kind}:")] if kind in CHIPS else []
    near = difflib.get_close_matches(name, near or known, 4, 0.6 if not near else 0.3) or near[:4]
    near.sort(key=lambda one: (not one.startswith(name), known.index(one) if one.startswith(name) else 0))
    kinds = ", ".join(f"{chip}:{shapes[-1]}" for chip, shapes in SHAPES.items())
    return f"nearest: {', '.join(near)}" if near else f"names are local, or like {kinds}"


def open_topology(name: str, slices: int = 1) -> Topology:
    """Open the devices of a machine. Needs the compiler of its platform: libtpu or jax's CUDA plug-in.

    Raises ValueError for an unknown name or a shape that the compiler does not support, and ModuleNotFoundError without
    the compiler.
    """
    from bertjax.parallel.mesh import slice_numbers

    if name == LOCAL:
        if slices != 1:
            raise ValueError(
                f"--slices {slices} with --topology local: the slices of this machine are known; leave --slices out"
            )
        return _local()
    parsed = parse_name(name, slices)
    devices = _tpu_devices(parsed) if parsed.chip.is_tpu else _gpu_devices(parsed)
    # The compiler does not assign slices to GPU hosts.
    numbers = slice_numbers(devices) if parsed.chip.is_tpu else tuple(device.process_index for device in devices)
    return Topology(str(parsed), devices, parsed.chip, parsed.wraps, parsed.chip.usable, numbers)


def _local() -> Topology:
    import jax

    from bertjax.parallel.mesh import slice_numbers
    from bertjax.runtime.host_memory import device_memory

    devices = tuple(jax.devices())
    chip = find_chip(devices[0].device_kind)
    limit = device_memory(jax.local_devices()[0]) or (chip.usable if chip else None)
    name = f"local: {len(devices)} × {devices[0].device_kind}"
    dims = chip.dims if chip else 0
    return Topology(name, devices, chip, (False,) * dims, limit, slice_numbers(devices))


def with_measured_speed(topology: Topology, dtype: str) -> Topology:
    """Give an unknown chip the rate of its fastest measured matmul in a dtype.

    Memory, links and network count as infinitely fast, so that times are lower bounds: a CPU's caches hold an unknown
    part of its kernels' traffic.
    """
    from bertjax.training.flops import device_peak

    device = topology.devices[0]
    fast = math.inf
    measured = device_peak(device, dtype)
    kind = device.device_kind
    return replace(topology, chip=Chip(kind, kind, fast, fast, fast, 0, fast, measured=measured))


def _tpu_devices(name: Name) -> tuple[Any, ...]:
    if importlib.util.find_spec("libtpu") is None:
        raise ModuleNotFoundError(
            f"planning for {name} needs the TPU compiler, which runs without a TPU: pip install 'bertjax[tpu]'"
        )
    from jax.experimental import topologies

    options: dict[str, Any] = {"wrap": name.wraps + (False,) * (3 - len(name.wraps))} if any(name.wraps) else {}
    if name.chip.name in _MEGACORE:
        options["chip_config_name"] = "megacore"
    if name.slices > 1:
        options["num_slices"] = name.slices
    if math.prod(name.shape) == 1:  # the default host has 2 x 2 chips
        options["chips_per_host_bounds"] = (1, 1, 1)
    shape = "x".join(str(size) for size in name.shape)
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=f"{name.chip.name}:{shape}", **options)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--topology {name.chip.name}:{shape}: the TPU compiler has no such slice ({reason}); "
            f"{_suggest_names(f'{name.chip.name}:{shape}')}"
        ) from error
    return tuple(described.devices)


def _gpu_devices(name: Name) -> tuple[Any, ...]:
    if importlib.util.find_spec("jax_cuda12_plugin") is None:
        raise ModuleNotFoundError(
            f"planning for {name} needs jax's CUDA compiler, which runs without a GPU: pip install 'bertjax[cuda]' "
            "(5.5 GB)"
        )
    from jax.experimental import topologies

    hosts, gpus = name.shape if len(name.shape) == 2 else (1, name.shape[0])
    described = topologies.get_topology_desc(
        platform="cuda",
        topology_name=name.chip.name,
        topology=f"{hosts}x1x{gpus}",
        target_config=_GPU_TARGETS[name.chip.name],
    )
    assert len(described.devices) == math.prod(name.shape)
    return tuple(described.devices)


def set_environment(name: str, dump: Path | None = None) -> None:
    """Put `planning_environment` into this process's environment."""
    os.environ.update(planning_environment(name, os.environ, dump))
