"""The files of a run's directory, and reading a trained model from it.

config.json   the resolved config            metrics.jsonl, tensorboard/   the curves
vocab.txt     or other vocabulary files      checkpoints/<step>/           weights, moments, metadata
report.html   the page about the run         huggingface/                  the exported model
profile/      traces of steps, if enabled    owner.json                    whose run it is, in object storage
best/<step>/  the weights to use, where training stops early
plugins/      copies of the plug-in files that the run uses
SHA256SUMS    the digests of those files, of a finished run
"""

from __future__ import annotations

import contextlib
import functools
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
from bertjax.run.checkpoint import containing_run, read_metadata, restore_params, saved_steps
from bertjax.run.checkpoint_metadata import DRAWN, DamagedCheckpoint
from bertjax.run.compatibility import RULES, check_compatible
from bertjax.run.telemetry import LOGGED_AS_FILE, METRICS_FILE
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_bytes, replace_text
from bertjax.storage.progress import Progress
from bertjax.storage.remote import AnyPath, RemotePath, to_path
from bertjax.storage.remote_run import StagingDir, refuse_a_second, staging_dir
from bertjax.storage.sums import SUMS_FILE, write_sums
from bertjax.text.prepare import text_changes
from bertjax.text.store.local_copy import reopen_store
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES, load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.training.stages import as_of_stage, make_stages, open_data, stage_objectives

CONFIG_FILE = "config.json"
_OWN_FILES = (CONFIG_FILE, METRICS_FILE, LOGGED_AS_FILE, "report.html", "results.json")
_LOCK_FILE = ".lock"
_TOGETHER_FILE = ".together"  # while several processes start
_REMEMBERED_SECONDS = 10.0


@dataclass(frozen=True)
class TrainedModel:
    """A model read from a run: verified float32 weights on the first device, its config and its tokenizer."""

    directory: AnyPath
    step: int
    config: Config
    tokenizer: Tokenizer
    graphdef: nnx.GraphDef
    params: Params
    untrained: tuple[str, ...] = ()  # names in `params` of heads, or of the pooler, that nothing has trained

    @property
    def kind(self) -> str:
        """The kind of task that it was fine-tuned for; empty for a model that was only pretrained."""
        return self.config.training.objectives[0] if network_class(self.config.model).of_task else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of that task's labels, in the order of the network's outputs; none for numbers and spans."""
        return self.config.task.labels if isinstance(self.config, FinetuneConfig) else ()

    @property
    def generator(self) -> TrainedModel | None:
        """The generator that it was trained with, as a model of its own; None if there is none."""
        if GENERATOR not in self.params:
            return None
        net, params = extract_generator(self.config.model, self.params)
        objectives = get_family(net.family).objectives
        config = replace(self.config, model=net, training=replace(self.config.training, objectives=objectives))
        return replace(self, config=config, graphdef=abstract_network(net, config.execution)[0], params=params)

    @functools.cached_property
    def max_length(self) -> int:
        """Tokens in the longest rows that it was trained on."""
        return max(stage.data.sequence_length for stage in make_stages(self.config) if stage.start < max(self.step, 1))


def extract_generator(config: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """The generator of a model as a network of its own, with the tables that it shares."""
    own, alone = params[GENERATOR], ("projection", DIFFERENCE)
    shared = {name: part for name, part in params["encoder"]["embeddings"].items() if name not in alone}
    embeddings = shared | own["encoder"].get("embeddings", {})
    return generator_config(config), own | {"encoder": own["encoder"] | {"embeddings": embeddings}}


@contextlib.contextmanager
def own_directory(directory: AnyPath, cache_dir: str = "", process: int = 0) -> Iterator[StagingDir | None]:
    """Make a run's directory and lock it against a second trainer.

    `process` 0 does so for all processes of a run. If the directory is a URL, every process gets a staging directory
    below `cache_dir`. Raises ValueError while another process of this machine trains in it.
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
    """Check that all processes share the run's directory: process 0 writes a token there that all must read.

    Raises ValueError, in all of them, naming those that cannot read it.
    """
    if processes.count == 1:
        return
    probe = directory / _TOGETHER_FILE
    word = secrets.token_hex(8)
    if processes.first:
        replace_text(probe, word)
    word = processes.broadcast("word in the run's directory", word)
    wrong = processes.gather("what is wrong with the run's directory", _why_unread(probe, word))
    if processes.first:
        probe.unlink(missing_ok=True)
    strangers = [number for number, why in enumerate(wrong) if why]
    if strangers:
        advice = "mount one under the same name everywhere, or use object storage, and name it with --run-dir"
        if isinstance(directory, RemotePath):
            advice = "give every host what it needs to reach it"
        raise ValueError(
            f"run_dir={directory}: {processes.describe(strangers)} cannot read what {processes.describe([0])} writes "
            f"there ({wrong[strangers[0]]}), and checkpoints need a directory that all hosts share; {advice}"
        )


def _why_unread(probe: AnyPath, word: str) -> str:
    """Why a file lacks this content, after the time for which a network disk may cache an older state; else ''."""
    deadline = time.monotonic() + _REMEMBERED_SECONDS
    while True:
        try:
            if probe.read_text() == word:
                return ""
            why = f"{probe} holds something else"
        except OSError as error:
            why = str(error)
        if time.monotonic() > deadline:
            return why
        time.sleep(0.2)


def describe_run(config: Config, tokenizer: Tokenizer, staging: StagingDir | None = None) -> str | None:
    """Write the resolved config and the vocabulary into the run's directory, which this process must own.

    In object storage this job first claims the directory. Returns a line to print if another job may have owned it.
    """
    notice = staging.claim.take() if staging is not None and staging.claim is not None else None
    directory = to_path(config.directory)
    (directory / SUMS_FILE).unlink(missing_ok=True)
    write_config(directory, config)
    for name in {*VOCABULARY_FILES, *COMPANIONS} - tokenizer.files.keys():
        (directory / name).unlink(missing_ok=True)  # of a run with another tokenizer that never saved
    for name, content in tokenizer.files.items():
        replace_bytes(directory / name, content)
    for name, (recorded, content) in plug_ins.files().items():
        if recorded in config.plugins:
            (directory / plug_ins.FOLDER).mkdir(exist_ok=True)
            replace_bytes(directory / plug_ins.FOLDER / name, content)
    return notice


def seal(directory: AnyPath) -> None:
    """List the digests of a finished run's own files in `SHA256SUMS`, for `bertjax run verify`; resuming removes it.

    Checkpoints and exports have digests of their own.
    """
    names = [name for name in (*_OWN_FILES, *VOCABULARY_FILES, *COMPANIONS) if (directory / name).is_file()]
    if isinstance(directory, Path):
        folders = ("predictions/**/*", f"{plug_ins.FOLDER}/*.py")
        within = (path for folder in folders for path in directory.glob(folder) if path.is_file())
        names += [path.relative_to(directory).as_posix() for path in within]
    write_sums(directory, names)


def write_config(directory: AnyPath, config: Config) -> None:
    """Write the resolved config of the run in a directory, replacing an older one."""
    replace_text(directory / CONFIG_FILE, json.dumps(to_dict(config), indent=2) + "\n")


def require_own_run(config: Config) -> None:
    """Raise ValueError if the directory holds another run, or if it or data.root cannot be written.

    Checked without the data. A damaged checkpoint is ignored here: restoring reports it.
    """
    directory = to_path(config.directory)
    _require_writable("--run-dir", directory)
    _require_writable("--data.root", to_path(config.data.root))
    try:
        saved = read_metadata(directory) if saved_steps(directory) else None
    except DamagedCheckpoint:
        return
    if saved is None:
        return
    there = saved["config"]["model"]
    model = replace(config.model, **{key: there[key] for key in FROM_VOCABULARY if key in there})
    now = replace(config, model=model)
    check_compatible(saved, saved | {"config": to_dict(now)})


def _require_writable(option: str, directory: AnyPath) -> None:
    """Raise ValueError if a local folder can neither be written nor made."""
    if not isinstance(directory, Path):
        return
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {directory}: {there} is a file, not a folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(
            f"{option} {directory}: {there} is not writable; name another folder, or change its permissions"
        )


def load_run(path: str | AnyPath) -> TrainedModel:
    """Read the newest checkpoint of a run, or a given one (`<run>/checkpoints/<step>`), verified.

    Modules that only training needs are left out (`TaskNetwork.served`). Raises ValueError if there is none, if it is
    damaged, or if the run's vocabulary is not the one it was trained with.
    """
    path = to_path(str(path))
    metadata = read_metadata(path)
    config = from_dict(metadata["config"])
    directory = containing_run(path)
    open_run_plugins(directory, config)
    tokenizer = load_run_tokenizer(directory, TextRules.of(config.data))
    if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
        raise ValueError(
            f"{directory / tokenizer.main_file} is not the vocabulary that checkpoint {metadata['step']} was trained "
            "with; put the original back"
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
    """Import the plug-ins that the config of a run records. Raises ValueError as `open_plugins` does."""
    plug_ins.open_plugins(config.plugins, str(directory), lambda name: (directory / name).read_bytes())


def _untrained(config: Config, metadata: Mapping[str, Any], params: Params) -> tuple[str, ...]:
    """The heads of a checkpoint that still have their random initial weights.

    A run from scratch begins with random weights in all heads; its objectives with a weight above 0 train some.
    """
    begun = metadata.get(DRAWN, () if config.init_from else get_family(config.model.family).heads)
    trained: set[str] = set()
    if not network_class(config.model).of_task and metadata["step"]:
        begun_stages = [stage for stage in make_stages(config) if stage.start < metadata["step"]]
        used = [objective for stage in begun_stages for objective in stage_objectives(config, stage)]
        trained.update(*(objective.heads for objective in used if objective.scale))
    heads = {"pooler", *get_family(config.model.family).heads} & params.keys() - trained
    return tuple(name for name in begun if name in heads)


def open_run_data(path: str | AnyPath, config: Config, progress: Progress) -> TrainingData:
    """Open the data that a run was trained on; `path` is its directory or a checkpoint.

    The run's own token store is used if it still exists, even if the sources have changed. Raises ValueError like
    `open_data`, and if that store is gone and the sources have changed.
    """
    saved = read_metadata(path)
    content = open_data(config, progress, saved["data_fingerprint"])
    now = {"tokenizer_fingerprint": content.tokenizer.fingerprint, "data_fingerprint": content.fingerprint}
    for (key, fingerprint), what in zip(now.items(), ("vocabulary", "text"), strict=True):
        if fingerprint != saved[key]:
            raise ValueError(
                f"{path}: the {what} has changed since this run began, and the run's token store is not below "
                f"data.root={config.data.root!r}. Run the command in the folder that it was trained in, with the files "
                f"of data.sources={list(config.data.sources)} as they were"
            )
    return content


def own_data_fingerprint(config: Config) -> str:
    """The fingerprint of the data that the run in the config's directory was trained on.

    Empty if no run has begun there, its newest checkpoint is damaged, or it has other settings of data.
    """
    directory = to_path(config.directory)
    try:
        saved = read_metadata(directory) if saved_steps(directory) else None
    except DamagedCheckpoint:
        return ""
    if saved is None or _data_identity(saved["config"]) != _data_identity(to_dict(config)):
        return ""
    return saved["data_fingerprint"]


def _data_identity(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of data, without those of file locations and reading speed."""
    rules = {key: RULES[f"data.{key}"] for key in config["data"]}
    return {key: value for key, value in config["data"].items() if not rules[key].allowed or rules[key].notice}


def data_to_resume(config: Config, progress: Progress) -> TrainingData:
    """Open the data of a run that begins or resumes.

    Raises ValueError like `open_data`, and, before text is prepared, if the text has changed since the run began.
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
            "this text, or put the files or packages back as they were to continue this one"
        )
    # The file of one of these keys may have changed, which only the fingerprint of a new store shows.
    has_files = data.vocab or data.units or data.entity_map
    return open_data(config, progress, "" if has_files else fingerprint)


def load_run_tokenizer(directory: AnyPath, rules: TextRules) -> Tokenizer:
    """The tokenizer in a run's directory. Raises ValueError if there is none."""
    if isinstance(directory, Path):
        return load_tokenizer(directory, rules)
    with tempfile.TemporaryDirectory() as folder:
        for name in (*VOCABULARY_FILES, *COMPANIONS):
            if (directory / name).is_file():
                (Path(folder) / name).write_bytes((directory / name).read_bytes())
        return load_tokenizer(folder, rules)
