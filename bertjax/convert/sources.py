"""Where a model may come from: a run of ours, or a folder of a format that bertjax reads."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import jax
import numpy as np

from bertjax.config import Config, DataConfig, FinetuneConfig, TaskConfig, TrainingConfig, to_dict
from bertjax.convert.folder import folder_of
from bertjax.convert.foreign import ForeignModel, module_label
from bertjax.convert.format import Format
from bertjax.convert.formats import format_of, source_kinds
from bertjax.model.families.registry import family_of
from bertjax.model.network import GENERATOR, abstract_network
from bertjax.parallel.mesh import make_mesh
from bertjax.storage.remote import Place, place_of
from bertjax.training.checkpoint import DIRECTORY, Checkpoints, run_metadata
from bertjax.training.run_directory import TrainedModel, describe_run, load_run, own_directory

_USED = ("pooler", "mlm_head")  # modules that vectors of texts and the filling of masks ask for


def require_source(source: str) -> None:
    """Raise ValueError at once if a source is plainly not there, long before it is read."""
    kind, _, place = source.partition(":")
    kinds = source_kinds()
    folder = Path(place) if kind in kinds else place_of(source)
    if not folder.is_dir():
        forms = [f"{kind}:DIR" for kind in kinds]
        raise ValueError(f"{source}: no such directory; give a run, {', '.join(forms[:-1])} or {forms[-1]}")


def source_format(source: str) -> Format | None:
    """The format of a source such as hf:DIR; None for a run of ours."""
    name = source_kinds().get(source.partition(":")[0])
    return None if name is None else format_of(name)


def read_source(source: str) -> ForeignModel:
    """Read `hf:DIR`, `tf1:DIR`, or a run's directory (or one of its checkpoints).

    Raises ValueError naming the file and what is wrong with it.
    """
    _, _, place = source.partition(":")
    if (form := source_format(source)) is not None:
        assert form.read is not None, "a format with a kind of source reads"
        return form.read(place)
    _require_ours(source)
    run = load_run(source)
    params = jax.tree.map(np.asarray, jax.device_get(run.params))
    task = run.config.task if isinstance(run.config, FinetuneConfig) else TaskConfig()
    threshold = task.no_answer_threshold
    return ForeignModel(source, run.config.model, run.tokenizer, params, (), (), run.kind, run.labels, threshold)


def open_source(source: str) -> tuple[TrainedModel, tuple[str, ...]]:
    """A model to use as it is, and the modules that its source lacks, which are random or not there.

    `source` is a run's directory or one of its checkpoints, `hf:DIR` or `tf1:DIR`. Raises ValueError as `read_source`.
    """
    kind, _, place = source.partition(":")
    if kind in source_kinds():
        foreign = read_source(source)
        model, drawn = _trained(foreign, Path(place)), foreign.drawn
    else:
        _require_ours(source)
        model, drawn = load_run(source), ()
    modules = dict.fromkeys((*_USED, *family_of(model.config.model.family).heads))
    there = {*model.params, *model.params.get(GENERATOR, {})}
    return model, (*drawn, *(module_label(name) for name in modules if name not in there))


def as_run(model: ForeignModel, directory: str | Place) -> TrainedModel:
    """The model as a run at step 0, whose directory is yet to be written. Raises ValueError if that holds anything."""
    directory = place_of(str(directory))
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"import to {directory}: it is not empty; choose another (--output), or move it away")
    return _trained(model, directory)


def _require_ours(source: str) -> None:
    path = place_of(source)
    if (path / "config.json").is_file() and not (path / DIRECTORY).is_dir() and not path.name.isdecimal():
        raise ValueError(f"{source} is not a run of bertjax; for a folder of Hugging Face's layout write hf:{source}")


def _trained(model: ForeignModel, directory: Place) -> TrainedModel:
    """The model as if it had been trained in a directory, on rows as long as its position table."""
    length = model.config.max_position_embeddings
    data = DataConfig(
        tokenizer=model.tokenizer.kind,
        vocab_size=model.tokenizer.vocab_size,
        **asdict(model.tokenizer.rules),
        sequence_length=length,
        max_predictions=max(1, round(0.15 * length)),
        predict="next" if model.config.causal else "masked",
    )
    name = folder_of(directory).name
    training = TrainingConfig(objectives=family_of(model.config.family).objectives)
    config = Config(
        name=name, run_dir=str(directory), init_from=model.origin, model=model.config, data=data, training=training
    )
    if model.kind:
        config = FinetuneConfig(
            **{field.name: getattr(config, field.name) for field in fields(config)},
            task=_task(model, length),
        )
        config = replace(config, training=replace(config.training, objectives=(model.kind,)))
    params = jax.device_put(model.params, jax.devices()[0])
    return TrainedModel(directory, 0, config, model.tokenizer, abstract_network(model.config)[0], params)


def _task(model: ForeignModel, length: int) -> TaskConfig:
    task = TaskConfig(name=model.kind, labels=model.labels, max_query=min(TaskConfig.max_query, length // 2))
    if model.null_threshold is None:
        return task
    return replace(task, name="squad2", null_threshold=model.null_threshold)


def write_run(model: TrainedModel) -> Place:
    """Write its config, its vocabulary, and the weights as checkpoint 0, without moments; returns its directory.

    `fill-mask`, `export` and `--init-from` take it as any run; `evaluate` needs text, which it does not have.
    """
    metadata = run_metadata(
        to_dict(model.config),
        tokenizer_fingerprint=model.tokenizer.fingerprint,
        data_fingerprint=f"imported from {model.config.init_from.partition(':')[0]}",
        mesh=make_mesh(model.config.mesh, jax.devices()[:1]),
    )
    with own_directory(model.directory) as staging:
        describe_run(model.config, model.tokenizer, staging)
        with Checkpoints(model.directory / DIRECTORY, keep_last=1, staging=staging) as saved:
            saved.save(0, {"params": model.params}, metadata)
    return model.directory
