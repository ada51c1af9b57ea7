"""Run a function on units of text with Apache Beam: on Dask, Dataflow, Flink, Spark, or locally (DirectRunner).

A pipeline returns nothing to the program that starts it, so each unit's result or error is a file in a directory that
the workers share with that program.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bertjax.config.plugins import Plugins, activate, active
from bertjax.storage.atomic_directories import remove_tree, scratch_dir
from bertjax.storage.remote import AnyPath
from bertjax.storage.utf8 import UnreadableFileError
from bertjax.text.corpus import Unit
from bertjax.text.pool import file_names
from bertjax.text.screening import publish_files

Result = TypeVar("Result")

_DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
_DASK = re.compile(r"^(--runner=|)DaskRunner$")
_TOKENIZER = threading.Lock()  # a worker's threads share its tokenizer, which is not thread-safe


def run_units(
    function: Callable[[Unit], Result], units: Iterable[Unit], what: str, *, options: Sequence[str], folder: AnyPath
) -> Iterator[tuple[Unit, Result]]:
    """A `Runner` that starts a pipeline with `options` (`--runner=FlinkRunner` and so on); yields after it has ended.

    The workers need bertjax installed and must see `folder` under the same name. Raises ValueError if Apache Beam is
    not installed here.
    """
    beam = _import_beam()
    units = list(units)
    if not units:
        return
    for leftover in folder.glob("beam-*.partial"):  # left by a killed program
        remove_tree(leftover)
    # A new name: the pipeline of a killed program may still write to the previous one.
    results = folder / f"beam-{secrets.token_hex(4)}.partial"
    results.mkdir(parents=True)
    try:
        try:
            _run_pipeline(beam, partial(_with_plugins, active(), function), units, results, options)
        except Exception as error:
            raise _failure(results, what, error) from error
        yield from ((unit, _read_result(unit, results, what)) for unit in units)
    finally:
        remove_tree(results)


def _import_beam() -> ModuleType:
    try:
        import apache_beam
    except ModuleNotFoundError:
        raise ValueError(
            "--runner beam: Apache Beam is not installed; pip install 'bertjax[beam]', or leave --runner out to use "
            "the processes of this machine"
        ) from None
    return apache_beam


def _run_pipeline(
    beam: ModuleType,
    function: Callable[[Unit], Any],
    units: Sequence[Unit],
    results: AnyPath,
    options: Sequence[str],
) -> None:
    from apache_beam.options.pipeline_options import PipelineOptions

    pipeline = beam.Pipeline(options=PipelineOptions(_with_defaults(options)))
    # Reshuffle, or the runner may fuse the steps and give all units to one worker.
    _ = pipeline | beam.Create(list(units)) | beam.Reshuffle() | beam.Map(_run_unit, function, results)
    state = pipeline.run().wait_until_finish()
    if state != "DONE":
        raise RuntimeError(f"it ended as {state}")


def _with_defaults(options: Sequence[str]) -> list[str]:
    """Expand `DaskRunner` to its full class name, and run one unit per task on it.

    Beam has no short name for this runner. By default it puts 128 units in a task, so one worker would run them all.
    """
    named = [_DASK.sub(rf"\g<1>{_DASK_RUNNER}", option) for option in options]
    is_dask = any(_DASK_RUNNER in option for option in named)
    if is_dask and not any(option.startswith(("--dask_partition_size", "--dask_npartitions")) for option in named):
        named.append("--dask_partition_size=1")
    return named


def _with_plugins(plugins: Plugins, function: Callable[[Unit], Any], unit: Unit) -> Any:
    activate(plugins)
    return function(unit)


def _run_unit(unit: Unit, function: Callable[[Unit], Any], results: AnyPath) -> None:
    try:
        with _TOKENIZER:
            result = function(unit)
    except Exception as error:
        kinds = {"is_value": isinstance(error, ValueError), "is_unreadable": isinstance(error, UnreadableFileError)}
        failure = kinds | {"message": str(error), "kind": type(error).__name__}
        _publish(f"failed-{unit.number:05}.json", failure | {"files": file_names([unit])}, results)
        raise
    _publish(f"{unit.name}.json", result, results)


def _publish(name: str, content: Any, results: AnyPath) -> None:
    """Write a JSON file atomically: a runner may give the same unit to two workers."""
    with scratch_dir(results) as scratch:
        publish_files({name: json.dumps(content).encode()}, Path(scratch), results)


def _read_result(unit: Unit, results: AnyPath, what: str) -> Any:
    try:
        return json.loads((results / f"{unit.name}.json").read_bytes())
    except FileNotFoundError:
        raise RuntimeError(
            f"{what}: the pipeline succeeded, but its workers left nothing in {results}; set data.root to a folder "
            "or URL that has the same absolute name on the workers and on this machine"
        ) from None


def _failure(results: AnyPath, what: str, error: Exception) -> Exception:
    """Translate the error of a pipeline into the error that a failed unit reported, if there is one."""
    for path in sorted(results.glob("failed-*.json")):
        failure = json.loads(path.read_bytes())
        if failure["is_unreadable"]:
            return UnreadableFileError(failure["message"])
        if failure["is_value"]:
            return ValueError(failure["message"])
        return RuntimeError(
            f"{what}: {failure['kind']}: {failure['message']} (in one of: {failure['files']}); run the command again "
            "to continue from what is finished"
        )
    return RuntimeError(
        f"{what}: the Beam pipeline failed: {error}; run the command again to continue from what is finished"
    )
