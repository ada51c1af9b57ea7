"""The session of a run: its processes, their output, the config they agree on, and its end by a signal."""

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

# Keys that may differ between hosts: paths, and the number of the process.
_OF_A_HOST = {
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

    `ends_process`: a signal may end this Python process, as a verb's, where nothing would be lost; without it the
    signal becomes an exception. Raises as `join` does.
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


def raise_stopped(exit_code: int, words: str) -> NoReturn:
    """Raise Stopped with this message for a run that ended with the exit code of a signal."""
    (number,) = (number for number, code in EXIT_CODES.items() if code == exit_code)
    raise Stopped(number, words)


def require_same_config(config: Config, processes: Processes) -> None:
    """Raise ValueError naming the keys that differ between the processes, other than those of one host."""
    flat = {key: repr(value) for key, value in flatten(to_dict(config)).items() if key not in _OF_A_HOST}
    digest = hashlib.sha256(json.dumps(flat).encode()).hexdigest()[:16]
    digests = processes.gather("digest of the config", digest)
    other = next((number for number, value in enumerate(digests) if value != digests[0]), None)
    if other is None:
        return
    # Only those two, as everybody gets what everybody gives.
    texts = processes.gather("config", json.dumps(flat) if processes.number in (0, other) else "")
    first, its = json.loads(texts[0]), json.loads(texts[other])
    differing = [f"{key}={its[key]} (process 0: {first[key]})" for key in first if its[key] != first[key]]
    raise ValueError(
        f"{processes.describe([other])} was started with another config: {', '.join(differing)}; "
        "start all processes with the same recipe and overrides"
    )
