"""Describe a run before its first step: devices, model, data, schedule and cost."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.model.attention.choice import AttentionChoice
from bertjax.model.encoder import embedding_width, padded_vocab_size
from bertjax.parallel.mesh import batch_shards
from bertjax.parallel.sharding import local_rows, replicated
from bertjax.run.checks import choose_stage_attention
from bertjax.run.job import Job, RunStage
from bertjax.runtime.compilation import DETERMINISTIC
from bertjax.storage.progress import duration
from bertjax.storage.terminal import bad, bold, three_digits

_LABEL_WIDTH = 10  # characters
_MOST_EPOCHS = 100  # more get a warning; BERT was trained for 40


def describe(job: Job, data: Sequence[str]) -> str:
    """Return a block of labelled lines for the log; `data` holds the lines about the data."""
    config, mesh = job.config, job.mesh
    parameters = sum(leaf.size for leaf in jax.tree.leaves(job.blueprint.state.params))
    padding = (padded_vocab_size(config.model) - config.model.vocab_size) * (embedding_width(config.model) + 1)
    device = f"{mesh.devices.size} × {mesh.devices.flat[0].device_kind}"
    if mesh.devices.size > 1:
        device += f", mesh {' '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}"
    attention = _describe_attention(choose_stage_attention(config, mesh, job.stages))
    block = {
        "Device": [f"{device}; peak {job.peak}", *_describe_deterministic(config, mesh)],
        "Model": [f"{parameters - padding:,} parameters; {attention}", *filter(None, [job.memory_fit])],
        "Data": [*data, *_describe_sources(config.data.mixed, job.stages[0].batches.shares)],
        "Schedule": [_describe_stage(stage, batch_shards(mesh)) for stage in job.stages],
        "Cost": [_describe_cost(job)],
    }
    lines = [
        f"{'' if number else bold(name):{_LABEL_WIDTH + (0 if number else len(bold(name)) - len(name))}}{line}"
        for name, section in block.items()
        for number, line in enumerate(section)
    ]
    whole = replicated(job.blueprint.state.params, mesh)
    warnings = [f"Warning: {whole}" if whole.is_much else "", epochs_warning(job)]
    return "\n".join([*lines, *map(bad, filter(None, warnings))])


def _describe_cost(job: Job) -> str:
    """The FLOPs of all steps, and a lower bound on their time."""
    flops = sum((stage.stop - stage.start) * stage.flops_per_step for stage in job.stages)
    peak = job.peak.flops * job.mesh.devices.size
    return f"{flops:.2g} FLOP" + (f", at least {duration(flops / peak)} at the peak" if peak else "")


def epochs_warning(job: Job) -> str:
    """Return a warning with advice for a run that repeats its text too often; empty for other runs."""
    epochs = [_epochs(stage) for stage in job.stages]
    if sum(epochs) <= _MOST_EPOCHS:
        return ""
    rows = job.stages[int(np.argmax(epochs))].batches.estimated_rows
    return f"Warning: {sum(epochs):,.0f} passes over {rows:,} rows; add text or lower --training.steps"


def _epochs(stage: RunStage) -> float:
    return (stage.stop - stage.start) * stage.training.global_batch_size / stage.batches.estimated_rows


def describe_process(job: Job) -> str:
    """The devices and rows of this process, as a line for the log."""
    mesh, training = job.mesh, job.stages[0].training
    rows = local_rows(mesh, training.global_batch_size)
    stretches = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    ranges = ", ".join(f"{stretch[0]}-{stretch[-1]}" for stretch in stretches)
    return (
        f"process {jax.process_index()}/{jax.process_count()}, {len(mesh.local_devices)}/{mesh.devices.size} devices, "
        f"reads rows {ranges} of each {training.global_batch_size}"
    )


def _describe_sources(sources: tuple[str, ...], shares: np.ndarray | None) -> list[str]:
    """A line for each source with its name in the log; none for a single source."""
    if len(sources) < 2:
        return []
    percentages = [""] * len(sources) if shares is None else [f", {share:.2%} of the tokens" for share in shares]
    return [f"source_{number}: {source}{percentages[number]}" for number, source in enumerate(sources)]


def _describe_attention(choices: list[AttentionChoice]) -> str:
    """The attention backend of each stage with its reason, repeated only if it changes."""
    return "attention: " + ", then ".join(dict.fromkeys(map(str, choices)))


def _describe_deterministic(config: Config, mesh: Mesh) -> list[str]:
    """A line on how `deterministic` is achieved; none if it is not set."""
    if not config.deterministic:
        return []
    platform = mesh.devices.flat[0].platform
    names = [flag.name for flag in DETERMINISTIC.get(platform, ())]
    how = f"by {', '.join(names)}" if names else f"every program on a {platform} is; no option is needed"
    return [f"deterministic: {how}"]


def _describe_stage(stage: RunStage, shards: int) -> str:
    training = stage.training
    parts = ""
    if training.microbatches > 1 or shards > 1:
        parts = f" ({training.rows_at_a_time // shards} rows a device"
        parts += f", {training.microbatches} times" * (training.microbatches > 1) + ")"
    return (
        f"steps {stage.start:,} to {stage.stop:,}: {training.global_batch_size:,} × {stage.data.sequence_length} tokens"
        f"{parts}; {three_digits(_epochs(stage))} epochs of {stage.batches.estimated_rows:,} rows"
    )
