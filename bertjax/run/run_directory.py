"""The directory of a run: write its files, and read a trained model from it.

config.json   the resolved config            metrics.jsonl, tensorboard/   the curves
vocab.txt     or other vocabulary files      checkpoints/<step>/           weights, moments, metadata
report.html   the report                     huggingface/                  the exported model
profile/      traces of steps, if enabled    owner.json                    the owning job, in object storage
best/<step>/  the weights of the best evaluation, for early stopping
plugins/      copies of the plug-in files that the run uses
SHA256SUMS    digests of these files, once the run is finished
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from bertjax.config import FROM_VOCABULARY, Config, FinetuneConfig, ModelConfig, from_dict, to_dict
from bertjax.config import plugins as plug_ins
from bertjax.families.networks import abstract_network
from bertjax.families.registry import generator_config, get_family
from bertjax.input.tfrecords.records import are_records
from bertjax.input.training_data import TrainingData, store_fingerprint
from bertjax.model.network import GENERATOR, Params, network_class
from bertjax.model.shared_tables import DIFFERENCE
from bertjax.run.checkpoint import containing_run, read_metadata, read_newest_metadata, restore_params
from bertjax.run.checkpoint_metadata import DRAWN
from bertjax.run.compatibility import RULES, check_compatible
from bertjax.run.run_data import open_data
from bertjax.run.telemetry import LOGGED_AS_FILE, METRICS_FILE
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_bytes, replace_text
from bertjax.storage.progress import Progress
from bertjax.storage.remote import AnyPath, RemotePath, to_path
from bertjax.storage.remote_run import StagingDir, refuse_a_second, staging_dir
from bertjax.storage.sums import SUMS_FILE, write_sums
from bertjax.text.open_store import reopen_store
from bertjax.text.prepare import text_changes
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.training.stages import as_of_stage, make_stages, stage_objectives

CONFIG_FILE = "config.json"
_OWN_FILES = (CONFIG_FILE, METRICS_FILE, LOGGED_AS_FILE, "report.html", "results.json")
_LOCK_FILE = ".lock"
_PROBE_FILE = ".together"  # exists while several processes start
_CACHED_SECONDS = 10.0  # for which a network disk may show an older state


@dataclass(frozen=True)
class TrainedModel:
    """A model loaded from a run: verified float32 weights on the first device, config and tokenizer."""

    directory: AnyPath
    step: int
    config: Config
    tokenizer: Tokenizer
    graphdef: nnx.GraphDef
    params: Params
    untrained: tuple[str, ...] = ()  # names in `params` of heads, or the pooler, with random weights

    @property
    def kind(self) -> str:
        """The kind of task that the model was fine-tuned for; empty for a pretrained model."""
        return self.config.training.objectives[0] if network_class(self.config.model).of_task else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the task's labels in the order of the network's outputs; none for numbers and spans."""
        return self.config.task.labels if isinstance(self.config, FinetuneConfig) else ()

    @property
    def generator(self) -> TrainedModel | None:
        """The generator of an ELECTRA-like model as a separate model; None without a generator."""
        if GENERATOR not in self.params:
            return None
        model, params = extract_generator(self.config.model, self.params)
        objectives = get_family(model.family).objectives
        config = replace(self.config, model=model, training=replace(self.config.training, objectives=objectives))
        return replace(self, config=config, graphdef=abstract_network(model, config.execution)[0], params=params)

    @functools.cached_property
    def max_length(self) -> int:
        """Length of the longest rows that the model was trained on, in tokens."""
        return max(stage.data.sequence_length for stage in make_stages(self.config) if stage.start < max(self.step, 1))


def extract_generator(config: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """Extract the generator of a model as a separate network, including the embedding tables that it shares."""
    generator, unshared = params[GENERATOR], ("projection", DIFFERENCE)
    shared = {name: part for name, part in params["encoder"]["embeddings"].items() if name not in unshared}
    embeddings = shared | generator["encoder"].get("embeddings", {})
    return generator_config(config), generator | {"encoder": generator["encoder"] | {"embeddings": embeddings}}


@contextlib.contextmanager
def own_directory(directory: AnyPath, cache_dir: str = "", process: int = 0) -> Iterator[StagingDir | None]:
    """Create a run's directory and lock it against a second trainer.

    `process` 0 locks it for all processes of a run. If the directory is a URL, every process gets a staging directory
    below `cache_dir`. Raises ValueError while another process on this machine trains in it.
    """
    if isinstance(directory, RemotePath):
        with staging_dir(directory, cache_dir, process) as staging:
            yield staging
        return
    if process:
        yield None
        return
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK_FILE).open("w") as lock:
        refuse_a_second(lock, directory)
        yield None


def require_shared(directory: AnyPath, processes: Processes) -> None:
    """Check that all processes share the run's directory: process 0 writes a token there that all others must read.

    Raises ValueError, in all processes, naming those that cannot read it.
    """
    if processes.count == 1:
        return
    probe = directory / _PROBE_FILE
    token = secrets.token_hex(8)
    if processes.first:
        replace_text(probe, token)
    token = processes.broadcast("token in the run's directory", token)
    errors = processes.gather("errors with the run's directory", _read_error(probe, token))
    if processes.first:
        probe.unlink(missing_ok=True)
    failed = [number for number, error in enumerate(errors) if error]
    if failed:
        advice = "mount one under the same name everywhere, or use object storage, and name it with --run-dir"
        if isinstance(directory, RemotePath):
            advice = "give every host access to it"
        raise ValueError(
            f"run_dir={directory}: {processes.describe(failed)} cannot read what {processes.describe([0])} writes "
            f"there ({errors[failed[0]]}), but checkpoints need a directory that all hosts share; {advice}"
        )


def _read_error(probe: AnyPath, token: str) -> str:
    """Why a file does not contain the token; empty if it does. Retries while a network disk may show an older state."""
    deadline = time.monotonic() + _CACHED_SECONDS
    while True:
        try:
            if probe.read_text() == token:
                return ""
            reason = f"{probe} has other content"
        except OSError as error:
            reason = str(error)
        if time.monotonic() > deadline:
            return reason
        time.sleep(0.2)


def describe_run(config: Config, tokenizer: Tokenizer, staging: StagingDir | None = None) -> str | None:
    """Write the resolved config, the vocabulary and the plug-ins into the run's directory, which must be locked.

    In object storage, this job first claims the directory. Returns a notice if another job may have owned it.
    """
    notice = staging.claim.take() if staging is not None and staging.claim is not None else None
    directory = to_path(config.directory)
    (directory / SUMS_FILE).unlink(missing_ok=True)
    write_config(directory, config)
    for name in {*VOCABULARY_FILES, *COMPANIONS} - tokenizer.files.keys():
        (directory / name).unlink(missing_ok=True)  # left by a run with another tokenizer, before its first save
    for name, content in tokenizer.files.items():
        replace_bytes(directory / name, content)
    for name, (recorded, content) in plug_ins.files().items():
        if recorded in config.plugins:
            (directory / plug_ins.FOLDER).mkdir(exist_ok=True)
            copy = directory / plug_ins.FOLDER / name
            if copy.is_file() and (earlier := copy.read_bytes()) != content:  # checkpoints may record it
                replace_bytes(directory / plug_ins.earlier_copy(name, hashlib.sha256(earlier).hexdigest()), earlier)
            replace_bytes(copy, content)
    return notice


def seal(directory: AnyPath) -> None:
    """Write the digests of a finished run's files to `SHA256SUMS`, for `bertjax run verify`; resuming removes it.

    Checkpoints and exports are left out, because they contain their own digests.
    """
    names = [name for name in (*_OWN_FILES, *VOCABULARY_FILES, *COMPANIONS) if (directory / name).is_file()]
    if isinstance(directory, Path):
        folders = ("predictions/**/*", f"{plug_ins.FOLDER}/*.py")
        within = (path for folder in folders for path in directory.glob(folder) if path.is_file())
        names += [path.relative_to(directory).as_posix() for path in within]
    write_sums(directory, names)


def write_config(directory: AnyPath, config: Config) -> None:
    """Write or replace the resolved config in a run's directory."""
    replace_text(directory / CONFIG_FILE, json.dumps(to_dict(config), indent=2) + "\n")


def require_own_run(config: Config) -> None:
    """Raise ValueError if the directory holds another run, or if it or data.root is not writable.

    Does not need the data.
    """
    _require_writable("--run-dir", to_path(config.directory))
    _require_writable("--data.root", to_path(config.data.root))
    saved = read_newest_metadata(config.directory)
    if saved is None:
        return
    saved_model = saved["config"]["model"]
    model = replace(config.model, **{key: saved_model[key] for key in FROM_VOCABULARY if key in saved_model})
    check_compatible(saved, saved | {"config": to_dict(replace(config, model=model))})


def _require_writable(option: str, directory: AnyPath) -> None:
    """Raise ValueError if a local folder cannot be created or written to."""
    if not isinstance(directory, Path):
        return
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{option} {directory}: {existing} is a file, not a folder; name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"{option} {directory}: {existing} is not writable; name another folder, or change its permissions"
        )


def load_run(path: str | AnyPath) -> TrainedModel:
    """Load and verify a model from the newest checkpoint of a run, or from `<run>/checkpoints/<step>`.

    Modules that only training needs are left out (`TaskNetwork.served`). Raises ValueError if there is no checkpoint,
    if it is damaged, or if it was trained with another vocabulary than the run's.
    """
    path = to_path(str(path))
    metadata = read_metadata(path)
    config = from_dict(metadata["config"])
    directory = containing_run(path)
    open_run_plugins(directory, config)
    tokenizer = load_run_tokenizer(directory, TextRules.of(config.data))
    if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
        raise ValueError(
            f"{directory / tokenizer.main_file}: checkpoint {metadata['step']} was trained with another vocabulary; "
            "put the original back"
        )
    recorded = config
    if not isinstance(config, FinetuneConfig):
        config = as_of_stage(config, metadata["step"])
    graphdef, shapes, _ = abstract_network(config.model, config.execution)
    params = restore_params(path, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes))
    if served := network_class(config.model).served:
        config = replace(config, model=replace(config.model, head=served))
        graphdef, shapes, _ = abstract_network(config.model, config.execution)
        params = {name: params[name] for name in shapes}
    return TrainedModel(
        directory, metadata["step"], config, tokenizer, graphdef, params, _untrained(recorded, metadata, params)
    )


def open_run_plugins(directory: AnyPath, config: Config) -> None:
    """Import the plug-ins recorded in a run's config. Raises ValueError like `open_plugins`."""
    plug_ins.open_plugins(config.plugins, str(directory), lambda name: (directory / name).read_bytes())


def _untrained(config: Config, metadata: Mapping[str, Any], params: Params) -> tuple[str, ...]:
    """The heads of a checkpoint that still have their random initial weights.

    A run from scratch begins with random weights in all heads; objectives with a positive weight train their heads.
    """
    random_heads = metadata.get(DRAWN, () if config.init_from else get_family(config.model.family).heads)
    trained: set[str] = set()
    if not network_class(config.model).of_task and metadata["step"]:
        stages = [stage for stage in make_stages(config) if stage.start < metadata["step"]]
        used = [objective for stage in stages for objective in stage_objectives(config, stage)]
        trained.update(*(objective.heads for objective in used if objective.scale))
    heads = {"pooler", *get_family(config.model.family).heads} & params.keys() - trained
    return tuple(name for name in random_heads if name in heads)


def open_run_data(path: str | AnyPath, config: Config, progress: Progress) -> TrainingData:
    """Open the data that a run was trained on; `path` is its directory or a checkpoint.

    Uses the run's token store if it still exists, even if the sources have changed. Raises ValueError like `open_data`,
    and if the store is gone and the sources have changed.
    """
    saved = read_metadata(path)
    content = open_data(config, progress, saved["data_fingerprint"])
    now = {"tokenizer_fingerprint": content.tokenizer.fingerprint, "data_fingerprint": content.fingerprint}
    for (key, fingerprint), content_name in zip(now.items(), ("vocabulary", "text"), strict=True):
        if fingerprint != saved[key]:
            raise ValueError(
                f"{path}: the {content_name} has changed since this run began, and the run's token store is not below "
                f"data.root={config.data.root!r}. Run the command in the folder where the run was trained, with the "
                f"original files of data.sources={list(config.data.sources)}"
            )
    return content


def own_data_fingerprint(config: Config) -> str:
    """Fingerprint of the data of the run in the config's directory.

    Empty if the directory has no checkpoint that can be read, or if it has other data settings.
    """
    saved = read_newest_metadata(config.directory)
    if saved is None or _data_identity(saved["config"]) != _data_identity(to_dict(config)):
        return ""
    return saved["data_fingerprint"]


def _data_identity(config: dict[str, Any]) -> dict[str, Any]:
    """The data settings without file locations and reading speed."""
    rules = {key: RULES[f"data.{key}"] for key in config["data"]}
    return {key: value for key, value in config["data"].items() if not rules[key].allowed or rules[key].notice}


def data_to_resume(config: Config, progress: Progress) -> TrainingData:
    """Open the data of a run that begins or resumes.

    Raises ValueError like `open_data`, and if the text has changed since the run began, before preparing any.
    """
    fingerprint, data = own_data_fingerprint(config), config.data
    if not fingerprint or data.store or are_records(data):
        return open_data(config, progress)
    store = reopen_store(data, store_fingerprint(fingerprint), progress)
    if store is None:
        return open_data(config, progress)
    if changes := text_changes(store.manifest, data):
        raise ValueError(
            f"the text has changed since this run began ({'; '.join(changes)}). Use --run-dir NEW for a new run with "
            "this text, or restore the files or packages to continue this one"
        )
    # These files may have changed, which only the fingerprint of a new store reveals.
    has_files = data.vocab or data.units or data.entity_map
    return open_data(config, progress, "" if has_files else fingerprint)


def load_run_tokenizer(directory: AnyPath, rules: TextRules) -> Tokenizer:
    """Load the tokenizer from a run's directory. Raises ValueError if there is none."""
    if isinstance(directory, Path):
        return load_tokenizer(directory, rules)
    with tempfile.TemporaryDirectory() as folder:
        for name in (*VOCABULARY_FILES, *COMPANIONS):
            if (directory / name).is_file():
                (Path(folder) / name).write_bytes((directory / name).read_bytes())
        return load_tokenizer(folder, rules)
