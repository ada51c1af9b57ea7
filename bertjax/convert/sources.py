"""Read a model from a source: a run, or a folder or download in a format that bertjax reads."""

from __future__ import annotations

import difflib
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import Config, DataConfig, FinetuneConfig, TaskConfig, TrainingConfig, from_dict, to_dict
from bertjax.convert.folder import resolve_folder
from bertjax.convert.foreign import ForeignModel, module_label
from bertjax.convert.formats import Format, load_format, source_kinds
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.model.network import GENERATOR
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, containing_run, is_checkpoint, read_metadata
from bertjax.run.checkpoint_metadata import DRAWN, run_metadata
from bertjax.run.run_directory import TrainedModel, describe_run, load_run, load_run_tokenizer, own_directory, seal
from bertjax.storage.hub import is_repository
from bertjax.storage.remote import AnyPath, to_path
from bertjax.tokenization.tokenizer import TextRules

_INFERENCE_MODULES = ("pooler", "mlm_head")  # needed by text vectors and fill-mask


@dataclass(frozen=True)
class ForeignFolder:
    """A folder of another system's format on this machine."""

    form: Format
    path: Path
    origin: str  # kind:path, or kind:name@commit of a download


def require_source(source: str) -> None:
    """Raise ValueError early if a source does not exist; downloads a source from the Hub."""
    if foreign_folder(source) is None and not to_path(source).is_dir():
        _require_kind(source)
        raise _not_found(source)


def foreign_folder(source: str) -> ForeignFolder | None:
    """Resolve a source such as hf:DIR or hf:NAME to its folder, downloading it if needed; None for a run.

    `~` at the start of DIR is the home directory. Raises ValueError naming what does not exist.
    """
    kind, colon, name_or_path = source.partition(":")
    if not colon or (name := source_kinds().get(kind)) is None:
        return None
    form, path = load_format(name), Path(os.path.expanduser(name_or_path))
    if path.is_dir():
        return ForeignFolder(form, path, source)
    if form.fetch is None:
        raise _not_found(source)
    path, fetched = form.fetch(str(path) if name_or_path.startswith("~") else name_or_path)
    return ForeignFolder(form, path, f"{kind}:{fetched}")


def _not_found(source: str) -> ValueError:
    forms = [f"{kind}:DIR" for kind in source_kinds()]
    hub = f"; for the Hub: {name}" if (name := _hub_source(source)) else ""
    return ValueError(f"{source}: no such directory; give a run, {', '.join(forms[:-1])} or {forms[-1]}{hub}")


def _hub_source(source: str) -> str:
    """Suggest hf:NAME for a missing source that looks like a repository of the Hub; else ""."""
    owner = source.rpartition("/")[0]
    is_name = is_repository(source) and not (owner and Path(owner).is_dir()) and not Path(source).exists()
    return f"hf:{source}" if is_name else ""


def require_own(source: str) -> None:
    """Raise ValueError for a model of another system, naming the command that imports it."""
    if ":" in source and source.partition(":")[0] in source_kinds():
        raise ValueError(f"{source} is not a run; import it first: bertjax import {source} --output runs/NAME")


def load_own_run(source: str) -> TrainedModel:
    """Call `load_run`. Also raises ValueError as `require_own` does."""
    require_own(source)
    try:
        return load_run(source)
    except ValueError as error:
        if not (name := _hub_source(source)):
            raise
        raise ValueError(f"{error}; for the Hub: {name}") from None


def read_source(source: str) -> ForeignModel:
    """Read `hf:DIR`, `hf:NAME` on the Hub, `tf1:DIR`, or a run's directory (or one of its checkpoints).

    Raises ValueError naming the file and what is wrong with it.
    """
    if (folder := foreign_folder(source)) is not None:
        return read_folder(folder)
    _require_ours(source)
    run = load_own_run(source)
    params = jax.tree.map(np.asarray, jax.device_get(run.params))
    threshold = run.config.task.no_answer_threshold if isinstance(run.config, FinetuneConfig) else None
    untrained = tuple(map(module_label, run.untrained))
    return ForeignModel(source, run.config.model, run.tokenizer, params, untrained, (), run.kind, run.labels, threshold)


def source_vocabulary(source: str) -> dict[str, Any]:
    """DataConfig fields for the vocabulary of the model that a run starts from.

    Raises ValueError for a source that does not exist.
    """
    require_source(source)
    if (folder := foreign_folder(source)) is not None:
        assert folder.form.vocabulary is not None, "a format with a kind of source has vocabularies"
        return dict(folder.form.vocabulary(folder.origin, folder.path))
    _require_ours(source)
    path, config = to_path(source), from_dict(read_metadata(to_path(source))["config"])
    directory = containing_run(path)
    tokenizer = load_run_tokenizer(directory, TextRules.of(config.data))
    return {"vocab": str(directory / tokenizer.main_file), "tokenizer": tokenizer.kind, **asdict(tokenizer.rules)}


def read_folder(folder: ForeignFolder) -> ForeignModel:
    """Read the model of a folder. Raises ValueError naming the file and what is wrong with it."""
    assert folder.form.read is not None, "a format with a kind of source reads"
    return replace(folder.form.read(str(folder.path)), origin=folder.origin)


def open_source(source: str) -> tuple[TrainedModel, tuple[str, ...]]:
    """Open a model for inference; returns (model, labels of modules that are random or absent).

    `source` and ValueError as in `read_source`.
    """
    if (folder := foreign_folder(source)) is not None:
        foreign = read_folder(folder)
        # Absolute, because settings in the folder may be read after the working directory changes.
        model, untrained = _trained(foreign, folder.path.absolute()), foreign.untrained
    else:
        _require_ours(source)
        model = load_own_run(source)
        untrained = tuple(map(module_label, model.untrained))
    modules = dict.fromkeys((*_INFERENCE_MODULES, *get_family(model.config.model.family).heads))
    present = {*model.params, *model.params.get(GENERATOR, {})}
    return model, (*untrained, *(module_label(name) for name in modules if name not in present))


def as_run(model: ForeignModel, directory: str | AnyPath) -> TrainedModel:
    """The model as a run at step 0, not yet written. Raises ValueError if the directory is not empty."""
    directory = to_path(str(directory))
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"import to {directory}: it is not empty; choose another (--output), or move it away")
    return _trained(model, directory)


def _require_kind(source: str) -> None:
    """Raise ValueError for a path that does not exist and begins with an unknown kind of source."""
    kind, colon, name_or_path = source.partition(":")
    if colon and kind not in source_kinds() and not name_or_path.startswith("//") and not Path(source).exists():
        nearest = difflib.get_close_matches(kind, source_kinds(), 1) or source_kinds()
        forms = [f"{kind_name}:{name_or_path}" for kind_name in nearest]
        raise ValueError(f"{source}: unknown kind {kind!r}; did you mean {' or '.join(forms)}?")


def _require_ours(source: str) -> None:
    _require_kind(source)
    path = to_path(source)
    if (path / "config.json").is_file() and not (path / DIRECTORY).is_dir() and not is_checkpoint(path):
        raise ValueError(f"{source} is not a run of bertjax; for a folder of Hugging Face's layout write hf:{source}")


def _trained(model: ForeignModel, directory: AnyPath) -> TrainedModel:
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
    name = resolve_folder(directory).name
    training = TrainingConfig(objectives=get_family(model.config.family).objectives, grad_accum_steps=1)
    config = Config(
        name=name, run_dir=str(directory), init_from=model.origin, model=model.config, data=data, training=training
    )
    if model.kind:
        task = TaskConfig(name=model.kind, labels=model.labels, max_query=min(TaskConfig.max_query, length // 2))
        if model.null_threshold is not None:
            task = replace(task, name="squad2", null_threshold=model.null_threshold)
        config = FinetuneConfig(**{field.name: getattr(config, field.name) for field in fields(config)}, task=task)
        config = replace(config, training=replace(config.training, objectives=(model.kind,)))
    params = jax.device_put(model.params, jax.local_devices()[0])
    untrained = tuple(name for name in params if module_label(name) in model.untrained)
    return TrainedModel(directory, 0, config, model.tokenizer, abstract_network(model.config)[0], params, untrained)


def write_run(model: TrainedModel) -> AnyPath:
    """Write the config, the vocabulary, and the weights as checkpoint 0, without moments; returns the directory.

    The checkpoint names the random heads that the source lacked. `fill-mask`, `export` and `--init-from` accept it like
    any run; `evaluate` needs text, which it does not have.
    """
    metadata = run_metadata(
        to_dict(model.config),
        tokenizer_fingerprint=model.tokenizer.fingerprint,
        data_fingerprint=f"imported from {model.config.init_from.partition(':')[0]}",
        mesh=make_mesh(model.config.mesh, jax.local_devices()[:1]),
    )
    metadata[DRAWN] = list(model.untrained)
    with own_directory(model.directory) as staging:
        describe_run(model.config, model.tokenizer, staging)
        with Checkpoints(model.directory / DIRECTORY, keep_last=1, staging=staging) as checkpoints:
            checkpoints.save(0, {"params": model.params}, metadata)
        seal(model.directory)
    return model.directory
