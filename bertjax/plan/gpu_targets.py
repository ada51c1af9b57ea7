"""GPUs as XLA's compiler has them described when none is here (`GpuTargetConfigProto` as text).

Figures: NVIDIA's data sheets and the CUDA C++ Programming Guide's table of compute capabilities.
"""

from __future__ import annotations

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


TARGETS = {
    "h100": _target("NVIDIA H100 80GB HBM3", 9, 132, 1.98, 50, 3_352_000_000_000, 84_978_434_048),
    "h200": _target("NVIDIA H200", 9, 132, 1.98, 50, 4_800_000_000_000, 150_000_000_000),
    "b200": _target("NVIDIA B200", 10, 148, 1.965, 126, 7_700_000_000_000, 191_000_000_000),
}
