"""Context of a run: join its processes, print in process 0 only, compare their configs, end at a signal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from bertjax.config import Config, flatten, to_dict
from bertjax.run.train_job import Say
from bertjax.runtime.compilation import disable_unshared_cache, set_compilation_cache
from bertjax.runtime.connections import EXIT_CODES
from bertjax.runtime.processes import Processes, Stopped, join
from bertjax.storage.progress import SIGNS

# Keys that may differ between hosts.
_HOST_KEYS = {
    "data.root",
    "data.cache_dir",
    "data.cache_gb",
    "data.workers",
    "data.threads",
    "compilation_cache",
    "hosts.process",
}


@contextmanager
def session(config: Config, *, ends_process: bool) -> Iterator[tuple[Processes, Say]]:
    """Join the processes of a run; yields them and a function that prints a line in process 0.

    With `ends_process`, a signal may end this Python process when no work would be lost, as a verb's process should;
    otherwise it raises an exception. Raises like `join`.
    """
    cache_folder = set_compilation_cache(config.compilation_cache)
    with SIGNS.speaking("working"), ExitStack() as leaving:
        with SIGNS.doing("starting the processes"):
            processes = leaving.enter_context(join(config.hosts, ends_process=ends_process))
        why_not = disable_unshared_cache(cache_folder, processes)
        if processes.first:
            if why_not:
                print_now(why_not)
            yield processes, print_now
            return
        with SIGNS.by(_say_nothing):
            yield processes, _say_nothing


def print_now(line: str) -> None:
    """Print and flush."""
    print(line, flush=True)
    SIGNS.spoke()


def _say_nothing(line: str) -> None:
    pass


def raise_stopped(exit_code: int, message: str) -> NoReturn:
    """Raise Stopped for a run that ended with the exit code of a signal."""
    (number,) = (number for number, code in EXIT_CODES.items() if code == exit_code)
    raise Stopped(number, message)


def require_same_config(config: Config, processes: Processes) -> None:
    """Raise ValueError naming the keys that differ between processes and are not specific to a host."""
    flat = {key: repr(value) for key, value in flatten(to_dict(config)).items() if key not in _HOST_KEYS}
    digest = hashlib.sha256(json.dumps(flat).encode()).hexdigest()[:16]
    digests = processes.gather("digest of the config", digest)
    other = next((number for number, value in enumerate(digests) if value != digests[0]), None)
    if other is None:
        return
    # Only these two send their config, because every process receives what all processes send.
    texts = processes.gather("config", json.dumps(flat) if processes.number in (0, other) else "")
    ours, theirs = json.loads(texts[0]), json.loads(texts[other])
    differing = [f"{key}={theirs[key]} (process 0: {ours[key]})" for key in ours if theirs[key] != ours[key]]
    raise ValueError(
        f"{processes.describe([other])} was started with another config: {', '.join(differing)}; "
        "start all processes with the same recipe and overrides"
    )
