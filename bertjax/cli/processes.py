"""What the verbs share that several processes run together."""

from __future__ import annotations

import hashlib
import json

from bertjax.config import Config, flatten, to_dict
from bertjax.runtime.processes import Processes
from bertjax.training.trainer import Say

# Where files lie on a host, and the number of the process.
_OF_A_HOST = {"data.root", "data.cache_dir", "data.workers", "data.threads", "compilation_cache", "hosts.process"}


def speaker(processes: Processes) -> Say:
    """The function that prints a line in the first process and does nothing in the others."""
    return print_now if processes.first else _say_nothing


def print_now(line: str) -> None:
    """Print and flush, for readers of a log that grows."""
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    pass


def require_same_config(config: Config, processes: Processes) -> None:
    """Raise ValueError naming the keys that differ between the processes, other than those of one host."""
    flat = {key: repr(value) for key, value in flatten(to_dict(config)).items() if key not in _OF_A_HOST}
    digest = hashlib.sha256(json.dumps(flat).encode()).hexdigest()[:16]
    if len(set(processes.gather("digest of the config", digest))) == 1:
        return
    first, *others = [json.loads(text) for text in processes.gather("config", json.dumps(flat))]
    for number, other in enumerate(others, 1):
        differing = [f"{key}={other[key]} (process 0: {first[key]})" for key in first if other[key] != first[key]]
        if differing:
            raise ValueError(
                f"{processes.called([number])} was started with another config: {', '.join(differing)}; "
                "start all processes with the same recipe and overrides"
            )
