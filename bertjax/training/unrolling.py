"""Decide how many layers the scan runs in one iteration: `execution.scan_unroll=auto`.

The scan compiles one layer and runs it N times, but it stacks what the layers keep for the backward pass, and slices it
there. Unrolled layers save these copies, and the program compiles longer:

| step, in microbatches of 8 rows | scan | unrolled | compilation |
|---|---|---|---|
| ModernBERT-Base, 48 rows of 1,024, on one v5e | 428 ms, 202 GB | 381 ms, 123 GB | 1.3 times |
| RoBERTa-Base, 16 rows of 512, on one v5e | 47.0 ms, 21.1 GB | 44.2 ms, 18.7 GB | 3.7 times |
| BERT-Base in bfloat16, 8 rows of 128, on a CPU | 4.38 s | 3.87 s | 1.5 times |

Times on a v5e are by the compiler's schedule (`plan/schedule.py`), on a CPU processor seconds.
"""

from __future__ import annotations

from dataclasses import replace

from jax.sharding import Mesh

from bertjax.config import Config, ModelConfig
from bertjax.training.flops import peak_flops
from bertjax.training.stages import make_stages
from bertjax.training.teacher import stage_flops

# Seconds at the devices' peak, in practice about a day, from which a run on TPUs unrolls: 5 % of it is more than what
# the compiler takes longer, also if `training.grad_accum_steps=auto` compiles several programs.
_LONG_RUN = 12 * 3600.0


def decide_unrolling(config: Config, mesh: Mesh, teacher: ModelConfig | None) -> Config:
    """Replace `execution.scan_unroll=auto` by the number for this run on these devices.

    `teacher` is the model of the run's teacher. A resumed run keeps its first number (run/resume_choices.py). On a GPU
    it is 1.
    """
    if config.execution.scan_unroll != "auto":
        return config
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        unrolls = config.execution.dtype == "bfloat16"
    elif device.platform == "tpu":
        unrolls = _seconds_at_peak(config, mesh, teacher) >= _LONG_RUN
    else:
        unrolls = False
    depth = max(model.num_hidden_layers for model in (config.model, teacher) if model is not None)
    periods = depth if unrolls else 1
    return replace(config, execution=replace(config.execution, scan_unroll=periods))


def _seconds_at_peak(config: Config, mesh: Mesh, teacher: ModelConfig | None) -> float:
    """The least time of a run; 0 if the devices' peak is unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    if peak is None:
        return 0.0
    flops = sum(
        (stage.stop - stage.start) * stage.tokens_per_step * stage_flops(config, stage, teacher)
        for stage in make_stages(config)
    )
    return flops / (peak * mesh.devices.size)
