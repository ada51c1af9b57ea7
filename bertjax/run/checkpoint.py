"""Checkpoints of a run: written by Orbax in the background, and verified before they are used.

`<directory>/<step>/` contains `state` (the arrays, in Orbax's format) and `metadata` (JSON with its own SHA-256:
the result of `run_metadata`, and the shape, dtype and digest of every array).

What a crash leaves behind, by the moment at which it happens:
1. Before a save starts, or while arrays are digested and copied to the host: the earlier checkpoints.
2. While files are written: the same, and a temporary directory that does not count as a checkpoint; the first save of
   the next process removes it. The last action of a save renames this directory to its step.
3. While an old checkpoint is deleted, which follows that rename: the new one, and perhaps a part of the old one. The
   old one is never the newest, and is refused like any damaged checkpoint.
4. After power loss, when files had not reached the disk: a checkpoint that is refused by name.
If the directory is a URL, `remote_checkpoint` describes how it is written; 1, 3 and the digests apply there too.
A damaged checkpoint is never used, overwritten or deleted silently: `restore` stops and names it. Only with `previous`
it restores an older one and renames the damaged one to `<step>.damaged`.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bertjax.model.parameters import named_arrays
from bertjax.run import remote_checkpoint
from bertjax.run.checkpoint_metadata import (
    DamagedCheckpoint,
    all_or_none,
    make_document,
    parse_document,
    version_notices,
)
from bertjax.run.compatibility import check_compatible
from bertjax.storage.remote import AnyPath, RemotePath, to_path
from bertjax.storage.remote_run import LostClaim, StagingDir
from bertjax.storage.terminal import first_names
from bertjax.training.digest import digest_arrays

DIRECTORY = "checkpoints"  # folder in the run's directory
BEST = "best"  # folder next to it with the weights of the best evaluation, for early stopping
_STATE, _METADATA = remote_checkpoint.STATE, remote_checkpoint.METADATA
_PARAMS = "params"  # the part of the state that --init-from reads
_MOST_CHARACTERS = 500  # of an Orbax error in our message


@dataclass(frozen=True)
class Restored:
    """A verified checkpoint, with its state on the requested shardings and notices to print."""

    step: int
    state: Any
    metadata: dict[str, Any]
    notices: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run, by step.

    The `keep_last` newest are kept, and those whose step is a multiple of `keep_every` (0 = none) are kept forever. A
    state is any pytree of jax arrays. Every process calls every method. Saving to a URL requires `staging`.
    """

    def __init__(
        self, directory: str | AnyPath, *, keep_last: int, keep_every: int = 0, staging: StagingDir | None = None
    ) -> None:
        self.directory = _absolute(directory)
        self._keep_last, self._keep_every = keep_last, keep_every
        self._staging = staging
        self._last_save: int | None = None
        self._saving = contextlib.ExitStack()  # entered by `save`, left by `wait`
        remote_checkpoint.hide_expected_logs()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending, whether or not it verifies."""
        return _steps(self.directory)

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Start saving the state; returns False, and changes nothing, if the step already has a checkpoint.

        Returns once the arrays are copied, so the caller may donate them; files are written in the background. Raises
        ValueError for a state that is not finite and OSError for a state that does not fit on the disk (nothing is
        written, older checkpoints stay), and OSError if the previous save failed.
        """
        self.wait()
        if step in _agreed(self.steps()):
            return False
        arrays = named_arrays(state)
        document = self._document(step, arrays, metadata)
        self._require_space(step, sum(array.nbytes for array in arrays.values()))
        self._last_save = step
        self._saving.enter_context(_loops_that_wait())
        with self._explain_failure():
            if isinstance(self._manager, remote_checkpoint.RemoteCheckpoints):
                self._manager.save(step, _nested(arrays), document)
            else:
                items = {_STATE: ocp.args.StandardSave(_nested(arrays)), _METADATA: ocp.args.JsonSave(document)}
                self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        return True

    def restore(
        self, abstract_state: Any, metadata: Mapping[str, Any], which: Literal["newest", "previous"] = "newest"
    ) -> Restored | None:
        """Verify and restore the newest checkpoint onto the shardings of `abstract_state`; None without a checkpoint.

        `abstract_state` has a jax.ShapeDtypeStruct for every array (without a sharding: the first device). `metadata`
        describes the run that resumes. `previous` skips checkpoints that do not verify and renames them to
        `<step>.damaged`; if the newest verifies, it acts like `newest`, so it may stay in a command that is run again.
        Raises DamagedCheckpoint naming directory and array, and ValueError for a checkpoint of another run.
        """
        damaged: dict[int, DamagedCheckpoint] = {}
        for step in reversed(_agreed(self.steps())):
            directory = self.directory / str(step)
            try:
                with all_or_none(directory, jax.process_count() > 1):
                    saved = read_metadata(directory)
                notices = version_notices(saved, metadata) + check_compatible(saved, dict(metadata))
                targets = named_arrays(abstract_state)
                arrays = restore_arrays(directory, saved, targets, self._staging and self._staging.folder)
            except DamagedCheckpoint as error:
                damaged[step] = error
                if which == "newest":
                    break
                continue
            asides = [f"{error}; set aside as {self._set_aside(at)}" for at, error in damaged.items()]
            tree = jax.tree.unflatten(jax.tree.structure(abstract_state), arrays.values())
            return Restored(step, tree, saved, (*asides, *notices))
        if damaged:
            raise self._nothing_usable(damaged) from next(iter(damaged.values()))
        return None

    def wait(self) -> None:
        """Wait until the files of the last save are written. Raises OSError naming the checkpoint if that failed."""
        if self._last_save is not None:
            with self._saving, self._explain_failure():
                self._manager.wait_until_finished()

    @property
    def is_saving(self) -> bool:
        """Whether files of the last save are still being written."""
        return self._last_save is not None and self._manager.is_saving_in_progress()

    def close(self) -> None:
        """`wait`, and stop the background threads."""
        if self._last_save is not None:
            with self._saving, self._explain_failure():
                self._manager.close()

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager | remote_checkpoint.RemoteCheckpoints:
        """Created by the first save, because it changes the directory and `restore` may still refuse the run."""
        if isinstance(self.directory, RemotePath):
            assert self._staging is not None, "saving to object storage requires a staging directory"
            return remote_checkpoint.RemoteCheckpoints(
                self.directory, self._staging, keep_last=self._keep_last, keep_every=self._keep_every
            )
        policies: list[preservation_policy.PreservationPolicy] = [preservation_policy.LatestN(self._keep_last)]
        if self._keep_every:
            policies.append(preservation_policy.EveryNSteps(self._keep_every))
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
                # `restore` checks the metadata of existing steps; damage in it must not stop a save.
                lightweight_initialize=True,
                # In the background, a failing mkdir is noticed only after a barrier's 300 seconds.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
        )

    def _document(self, step: int, arrays: Mapping[str, jax.Array], metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Make the JSON item of a checkpoint. Raises ValueError for arrays that are not finite."""
        digests = digest_arrays(arrays)
        bad = [f"{name} ({digest.nonfinite} elements)" for name, digest in digests.items() if digest.nonfinite]
        if bad:
            raise ValueError(
                f"the state at step {step} has NaN or infinity in {first_names(bad)}; it was not saved. "
                f"Checkpoints in {self.directory}: {first_names(self.steps())}. Start again from one of them with "
                "a lower learning rate"
            )
        records = {
            name: {"shape": list(array.shape), "dtype": str(array.dtype), "digest": digests[name].hex}
            for name, array in arrays.items()
        }
        return make_document({**metadata, "step": step, "arrays": records})

    @property
    def _disk(self) -> Path:
        """The local folder that a save writes to."""
        if isinstance(self.directory, Path):
            return self.directory
        assert self._staging is not None, "saving to object storage requires a staging directory"
        return self._staging.folder

    def _require_space(self, step: int, needed: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._disk).free
        if needed > free:
            disk = "the disk" if self._disk == self.directory else f"{self._disk}, where it is staged,"
            raise OSError(
                f"checkpoint {self.directory / str(step)} needs {needed:,} bytes and {disk} has {free:,} free; "
                "nothing was written. Make room (see training.keep_last, keep_every) and run the same command again"
            )

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        """Raise OSError naming the checkpoint and the remaining ones if a save fails inside."""
        try:
            yield
        except LostClaim:
            raise
        except Exception as error:
            free = shutil.disk_usage(self._disk).free
            raise OSError(
                f"checkpoint {self.directory / str(self._last_save)} was not written: {_brief(error)} ({free:,} bytes "
                f"are free on the disk). Written before: {first_names(self.steps())}; the same command "
                "continues from there"
            ) from error

    def leave_out(self, after: int) -> None:
        """Rename the checkpoints of steps > `after` to `<step>.left_out`, so that `restore` ignores them."""
        for step in _agreed(self.steps()):
            if step > after:
                self._set_aside(step, "left_out")

    def _set_aside(self, step: int, why: str = "damaged") -> AnyPath:
        """Rename a checkpoint, so that training can save this step again; returns its new path."""
        source, number = self.directory / str(step), 1
        target = source.with_name(f"{step}.{why}")
        while target.exists():
            number += 1
            target = source.with_name(f"{step}.{why}.{number}")
        multihost_utils.sync_global_devices(f"checkpoint {step} has been read by every process")
        if jax.process_index() == 0:
            if isinstance(source, RemotePath):
                assert isinstance(target, RemotePath)
                remote_checkpoint.set_aside(source, target)
            else:
                source.rename(str(target))
        multihost_utils.sync_global_devices(f"checkpoint {step} has been set aside")
        return target

    def _nothing_usable(self, damaged: Mapping[int, DamagedCheckpoint]) -> DamagedCheckpoint:
        older = [step for step in self.steps() if step not in damaged]
        advice = (
            f"replace it with an intact copy, or add --restore previous to resume from an older one "
            f"({first_names(older)}); the damaged one is then renamed, not deleted"
            if older
            else "there is no other checkpoint; replace it with an intact copy, or start over in another directory "
            "(--run-dir)"
        )
        return DamagedCheckpoint("\n".join(str(error) for error in damaged.values()) + f"\n{advice}")


def read_metadata(path: str | AnyPath) -> dict[str, Any]:
    """Read the metadata of a checkpoint, or of the newest checkpoint of a run.

    The keys are those of `run_metadata`, `step`, and `arrays` (name -> shape, dtype, digest). Raises ValueError if
    there is no checkpoint, DamagedCheckpoint if its metadata is missing or was changed.
    """
    directory = _checkpoint_directory(_absolute(path))
    file = f"{_METADATA}/metadata"
    try:
        written = (directory / file).read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpoint(f"checkpoint {directory} is damaged: {file} is missing") from None
    except OSError as error:
        damage = f"checkpoint {directory} is damaged: {file} cannot be read"
        raise DamagedCheckpoint(f"{damage}: {_brief(error)}") from error
    return parse_document(written, directory, file)


def read_newest_metadata(run_dir: str | AnyPath) -> dict[str, Any] | None:
    """Read the metadata of a run's newest undamaged checkpoint, which records what the run began with.

    Returns None if there is none. Damaged checkpoints are ignored here; restoring reports them. Raises ValueError for a
    config with unknown keys.
    """
    for step in reversed(saved_steps(run_dir)):
        with contextlib.suppress(DamagedCheckpoint):
            return read_metadata(to_path(str(run_dir)) / DIRECTORY / str(step))
    return None


def restore_params(path: str | AnyPath, abstract_params: Any) -> Any:
    """Restore and verify only the parameters of a checkpoint, or of a run's newest, on `abstract_params`' shardings.

    Raises DamagedCheckpoint, and ValueError if an array is missing, left over, or has another shape or dtype.
    """
    directory = _checkpoint_directory(_absolute(path))
    saved = read_metadata(directory)
    saved["arrays"] = {name: array for name, array in saved["arrays"].items() if name.startswith(f"{_PARAMS}/")}
    try:
        arrays = restore_arrays(directory, saved, named_arrays({_PARAMS: abstract_params}))
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(
            f"{error}\ngive the directory of another checkpoint: {directory.parent}/<step>"
        ) from error
    return jax.tree.unflatten(jax.tree.structure(abstract_params), arrays.values())


def restore_named(path: str | AnyPath, targets: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Restore and verify some arrays of a checkpoint, or of a run's newest, by their names in its metadata.

    Raises DamagedCheckpoint, and ValueError if an array is missing or has another shape or dtype.
    """
    directory = _checkpoint_directory(_absolute(path))
    saved = read_metadata(directory)
    saved["arrays"] = {name: array for name, array in saved["arrays"].items() if name in targets}
    return restore_arrays(directory, saved, targets)


def _nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Convert paths to plain nested dicts, which Orbax can store, and which are readable without bertjax."""
    tree: dict[str, Any] = {}
    for name, leaf in arrays.items():
        *parents, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = leaf
    return tree


def restore_arrays(
    directory: AnyPath, saved: Mapping[str, Any], targets: Mapping[str, Any], staging: Path | None = None
) -> dict[str, jax.Array]:
    """Restore the arrays in `targets`, in this order, after checking their shapes, dtypes and digests."""
    _check_shapes(directory, saved["arrays"], targets)
    together = not all(x.sharding is None or x.sharding.is_fully_addressable for x in targets.values())
    with all_or_none(directory, together), remote_checkpoint.local_state(directory / _STATE, targets, staging) as state:
        try:
            arrays = _read(state, targets)
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            bad = [name for name, x in targets.items() if not _readable(state, name, x)]
            part = _STATE if len(bad) == len(targets) else first_names(bad)
            raise DamagedCheckpoint(
                f"checkpoint {directory} is damaged: {part} cannot be read: {_brief(error)}"
            ) from error
    digests = digest_arrays(arrays)
    bad = [name for name in targets if digests[name].hex != saved["arrays"][name]["digest"]]
    if bad:
        raise DamagedCheckpoint(f"checkpoint {directory} is damaged: digest mismatch in {first_names(bad)}")
    return arrays


def _read(state: Path, targets: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Read arrays with Orbax. Raises its exceptions, and ValueError for a missing array.

    Does not wait for other processes, which may fail meanwhile.
    """
    first = SingleDeviceSharding(jax.local_devices()[0])
    item = _nested(
        {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or first) for name, x in targets.items()}
    )
    request = ocp.args.PyTreeRestore(
        item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
    )
    with _loops_that_wait(), _reader() as reader:
        arrays = named_arrays(reader.restore(state.absolute(), args=request))
    # For a missing array, Orbax returns the request.
    absent = [name for name in targets if not isinstance(arrays.get(name), jax.Array)]
    if absent:
        raise ValueError(f"{first_names(absent)} not found in the files")
    return {name: arrays[name] for name in targets}


def _reader() -> ocp.Checkpointer:
    """An Orbax reader for this process's shards, which does not wait for other processes."""
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    options = remote_checkpoint.alone()
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=options), multiprocessing_options=options
    )


def _agreed(steps: list[int]) -> list[int]:
    """The steps that process 0 sees; another process may see an older state of a network disk, but all must agree."""
    if jax.process_count() == 1:
        return steps
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(steps))))
    padded = np.zeros(count, np.int32)
    padded[: min(count, len(steps))] = steps[:count]
    return multihost_utils.broadcast_one_to_all(padded).tolist() if count else []


def _readable(state: Path, name: str, target: Any) -> bool:
    """Whether one array can be read; Orbax does not always name the array that made a read fail."""
    try:
        _read(state, {name: target})
    except Exception:
        return False
    return True


def _check_shapes(directory: AnyPath, saved: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    """Raise ValueError naming arrays whose shape or dtype differs between checkpoint and model; nothing is cast."""
    theirs = {name: f"{array['dtype']}{array['shape']}" for name, array in saved.items()}
    ours = {name: f"{x.dtype}{list(x.shape)}" for name, x in targets.items()}
    differing = [
        f"{name} (checkpoint: {theirs.get(name, 'none')}, model: {ours.get(name, 'none')})"
        for name in (theirs | ours)
        if theirs.get(name) != ours.get(name)
    ]
    if differing:
        raise ValueError(
            f"checkpoint {directory} belongs to another model: {first_names(differing)}; restore the checkpoint's "
            f"config (in its {_METADATA}/metadata), or train in another directory (--run-dir)"
        )


def _absolute(path: str | AnyPath) -> AnyPath:
    """Parse a path or URL; paths are made absolute."""
    path = to_path(str(path))
    return path.absolute() if isinstance(path, Path) else path


def _checkpoint_directory(path: AnyPath) -> AnyPath:
    """Find a checkpoint: `path` itself, the newest in a folder of checkpoints, or a run's (the best, if it has one)."""
    if is_checkpoint(path) and path.is_dir():
        return path
    for parent in (path / BEST, path / DIRECTORY, path):
        if steps := _steps(parent):
            return parent / str(steps[-1])
    raise ValueError(f"{path}: no checkpoint there; {_where_else(path)}")


def _where_else(path: AnyPath) -> str:
    """Advice for a path without a checkpoint: what is wrong with it, and which run may be meant."""
    usual = f"give a run's directory, or one of {path / DIRECTORY}/<step>"
    if not isinstance(path, Path):
        return usual
    if path.is_dir():
        below = sorted(folder.parent for depth in ("*", "*/*") for folder in path.glob(f"{depth}/{DIRECTORY}"))
        return f"its runs are in folders below it, such as {below[0]}" if below else usual
    if _steps(path.parent / DIRECTORY):
        return f"there is no such folder; did you mean {path.parent}?"  # a run of a single seed has no subfolder
    parents = path.parent, path.parent / "runs"
    siblings = [folder.parent for parent in parents for folder in parent.glob(f"*/{DIRECTORY}")]
    near = difflib.get_close_matches(path.name, [run.name for run in siblings], 1)
    suggestion = next((run for run in siblings if near and run.name == near[0]), None)
    return f"{'this is a file' if path.exists() else 'there is no such folder'}; " + (
        f"did you mean {suggestion}?" if suggestion else usual
    )


def is_checkpoint(path: AnyPath) -> bool:
    """Whether a path is a checkpoint, `<run>/checkpoints/<step>`, rather than a run whose name is a number."""
    return path.name.isdecimal() and not (path / DIRECTORY).is_dir()


def containing_run(path: AnyPath) -> AnyPath:
    """The directory of the run that a path names or contains, if it is a checkpoint."""
    return path.parent.parent if is_checkpoint(path) else path


def saved_steps(run_dir: str | AnyPath) -> list[int]:
    """Steps of a run with a checkpoint, ascending."""
    return _steps(to_path(str(run_dir)) / DIRECTORY)


def _steps(directory: AnyPath) -> list[int]:
    if isinstance(directory, RemotePath):
        return remote_checkpoint.steps(directory)
    if not directory.is_dir():
        return []
    return sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal() and entry.is_dir())


def _brief(error: Exception) -> str:
    """The first line of an error without tensorstore's specification; only both ends if it is long.

    tensorstore repeats the path, and puts the reason last.
    """
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0].partition(" [tensorstore_spec")[0].partition(" [os_error_code")[0]
    half = _MOST_CHARACTERS // 2
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:half]} ... {line[-half:]}"


@contextlib.contextmanager
def _loops_that_wait() -> Iterator[None]:
    """Inside, a new event loop waits for all of its tasks before it closes.

    Orbax reads or writes all arrays of a checkpoint concurrently and closes the loop at the first error. The other
    tasks continue in tensorstore's threads, and each prints a traceback ("Event loop is closed") when it finds the loop
    closed. After an error the policy stays, because threads that Orbax does not wait for may be about to make loops.
    """
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    yield
    asyncio.set_event_loop_policy(before)


class _Loop(asyncio.SelectorEventLoop):
    def close(self) -> None:
        while not self.is_closed() and (tasks := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        super().close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do not log tasks whose error was never retrieved: the first error is raised, and the others are like it."""
        if "was never retrieved" not in context.get("message", ""):
            super().call_exception_handler(context)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()
