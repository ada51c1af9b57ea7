"""What the verbs that several processes run together have in common."""

from __future__ import annotations

import hashlib
import json

from bertjax.config import Config, flatten, to_dict
from bertjax.runtime.processes import Processes
from bertjax.training.trainer import Say

# Where things lie on a host, and which one it is.
_OF_A_HOST = {"data.root", "data.cache_dir", "data.workers", "data.threads", "compilation_cache", "hosts.process"}


def speaker(processes: Processes) -> Say:
    """What the first process says is printed; it speaks for all."""
    return print_now if processes.first else _say_nothing


def print_now(line: str) -> None:
    """Print at once, for whoever reads a log as it grows."""
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    pass


def require_same_config(config: Config, processes: Processes) -> None:
    """Raises ValueError naming the keys on which processes of one run differ, but for those that are a host's own."""
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
