"""Rebuild a step of a run on this machine, with the text and the sources of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
from jax.sharding import Mesh

from bertjax.config import Config, FinetuneConfig, MeshConfig, from_dict
from bertjax.convert.adapt import adapt
from bertjax.convert.sources import read_source
from bertjax.convert.teacher import fit_teacher, read_teacher
from bertjax.families.registry import get_family
from bertjax.input.provenance import origins
from bertjax.inspect.row_figures import RowKind, join_pieces, pairs_of_row
from bertjax.model.parameters import named_arrays
from bertjax.parallel.mesh import batch_shards, mesh_sharing, without_mesh
from bertjax.parallel.sharding import put_on_devices
from bertjax.run.checkpoint import DIRECTORY, read_metadata, restore_arrays, saved_steps
from bertjax.run.checkpoint_metadata import version_notices
from bertjax.run.compatibility import check_compatible
from bertjax.run.hooks.spike_recovery import with_skips
from bertjax.run.job import Job, assemble
from bertjax.run.replay import Replayed, replay
from bertjax.run.run_data import open_data
from bertjax.run.run_directory import CONFIG_FILE, open_run_plugins
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.runtime.compilation import set_compilation_cache
from bertjax.storage.json_documents import read_json
from bertjax.storage.progress import Progress
from bertjax.storage.remote import AnyPath, to_path
from bertjax.training.stages import make_stages, training_mesh
from bertjax.training.state import TrainState, init_state, new_state

_BITS = "the last bits may differ from the run's"


@dataclass(frozen=True)
class RowText:
    """A row of the batch as readable text."""

    origins: tuple[str, ...]  # sources of its segments, or its record
    text: str


@dataclass(frozen=True)
class ReplayOfRun:
    """A rebuilt step, with the text of its rows and notices on differences from the original run."""

    replayed: Replayed
    texts: tuple[RowText, ...]  # for each row of the batch
    notices: tuple[str, ...]


def replay_step(directory: str, step: int, progress: Progress) -> ReplayOfRun:
    """Rebuild step `step` of a run; the first step is 1, as in its log.

    Raises ValueError for a folder without a run, a step outside the run, and data that differs from the run's.
    """
    run = to_path(directory)
    start, saved = _checkpoint_before(run, step)
    config = _read_config(run, saved)
    stages = make_stages(config)
    if not 1 <= step <= stages[-1].stop:
        raise ValueError(f"--step {step}: {run} has steps 1 to {stages[-1].stop:,}")
    skips = config.training.skips
    set_compilation_cache(config.compilation_cache)
    config, mesh, notices = _for_this_machine(config, saved)
    content = open_data(config, progress, saved["data_fingerprint"] if saved else "")
    source = read_teacher(config)
    teacher = None if source is None else fit_teacher(source, config, content.tokenizer)
    job = with_skips(assemble(config, content, teacher=teacher, mesh=mesh), skips)
    if saved is not None:
        expected = saved["config"] | {"training": saved["config"]["training"] | {"skips": list(skips)}}
        notices += check_compatible(saved | {"config": expected}, job.metadata)
        notices += version_notices(saved, job.metadata)
    logged = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).exists() else []
    with jax.set_mesh(job.mesh):
        state = _state(job, run, start, saved)
        total = step - start

        def done(number: int) -> None:
            progress("repeating steps", min(number - start, total), total)

        replayed = replay(job, state, step, logged, done)
    return ReplayOfRun(replayed, _texts(job, replayed), tuple(notices))


def _checkpoint_before(run: AnyPath, step: int) -> tuple[int, dict | None]:
    """The newest checkpoint from which the step can be rebuilt, and its metadata; 0 and None for the first state."""
    steps = saved_steps(run)
    if not steps and not (run / CONFIG_FILE).exists():
        raise ValueError(f"{run}: no run there; give a run's directory")
    before = [saved for saved in steps if saved < step]
    return (before[-1], read_metadata(run / DIRECTORY / str(before[-1]))) if before else (0, None)


def _read_config(run: AnyPath, saved: dict | None) -> Config:
    """The config of the step: the checkpoint's, with the batches that the run has skipped since."""
    now = from_dict(read_json(run / CONFIG_FILE)) if (run / CONFIG_FILE).exists() else None
    config = now if saved is None else from_dict(saved["config"])
    assert config is not None, "a run without a checkpoint has its config"
    if isinstance(config, FinetuneConfig):
        raise ValueError(f"{run} was fine-tuned; replay rebuilds the steps of a pretraining run")
    skips = config.training.skips if now is None else now.training.skips
    open_run_plugins(run, config)
    return replace(config, run_dir=str(run), training=replace(config.training, skips=skips))


def _for_this_machine(config: Config, saved: dict | None) -> tuple[Config, Mesh, list[str]]:
    """Adapt the config to the attention and the devices of this machine; also returns a mesh and notices of changes."""
    notices: list[str] = []
    rows = [stage.training.rows_at_a_time for stage in make_stages(config)]
    try:
        mesh = training_mesh(config)
    except ValueError as error:
        config = replace(config, mesh=MeshConfig())
        mesh = mesh_sharing(rows)
        notices.append(f"{error}; here the devices share the batch: {_BITS}")
    if any(number % batch_shards(mesh) for number in rows):
        mesh = mesh_sharing(rows)
    here = {"device_kind": mesh.devices.flat[0].device_kind, "mesh": {axis: int(n) for axis, n in mesh.shape.items()}}
    if saved is None:
        return config, mesh, [*notices, f"no checkpoint records the devices of the run; on others {_BITS}"]
    if saved["device_kind"] != here["device_kind"]:
        config = replace(config, execution=replace(config.execution, attention="auto"))
        notices.append(f"the run used {saved['device_kind']}, this machine has {here['device_kind']}: {_BITS}")
    elif saved["mesh"] != here["mesh"] and not notices:
        notices.append(f"the run had mesh {saved['mesh']}, and here is {here['mesh']}: {_BITS}")
    return config, mesh, notices


def _state(job: Job, run: AnyPath, start: int, saved: dict | None) -> TrainState:
    """The state of the checkpoint, verified, or the run's first one."""
    blueprint, config = job.blueprint, job.config
    if saved is not None:
        arrays = restore_arrays(run / DIRECTORY / str(start), saved, named_arrays(blueprint.state))
        return jax.tree.unflatten(jax.tree.structure(blueprint.state), arrays.values())
    if not config.init_from:
        return init_state(blueprint, config.model, job.optimizer, config.training.seed)
    with without_mesh():
        params, _ = adapt(read_source(config.init_from), config.model, job.tokenizer, config.init_layers)
    make = jax.jit(lambda params: new_state(params, job.optimizer), out_shardings=blueprint.shardings)
    return make(put_on_devices(params, blueprint.shardings.params))


def _texts(job: Job, replayed: Replayed) -> tuple[RowText, ...]:
    """The text of each row, and its source."""
    stage = next(stage for stage in job.stages if stage.start < replayed.step <= stage.stop)
    config = job.config
    template = get_family(config.model.family).template
    kind = RowKind("", stage.data, stage.seed, stage.training.objectives, template)
    sources = origins(stage.batches, replayed.rows_read, stage.data.mixed)
    texts = []
    for number, row_origins in enumerate(sources):
        row = {name: values[number] for name, values in replayed.batch.items()}
        pairs = pairs_of_row(number, row, job.tokenizer, kind)
        parts = [
            f"({pair.label}) {join_pieces(pair.a)}" + (f"  |  {join_pieces(pair.b)}" if pair.b else "")
            for pair in pairs
        ]
        texts.append(RowText(tuple(row_origins), "\n".join(parts)))
    return tuple(texts)
