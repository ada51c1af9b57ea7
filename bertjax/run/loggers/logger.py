"""The interface of a logger, and the data it gets about a run: its name, config without secrets, and id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.config import Config, flatten, to_dict
from bertjax.run.telemetry import LOGGED_AS_FILE, Writer
from bertjax.storage.files import replace_text

# user:password@ or token@ in a URL, and everything after its ?, where object storage puts signatures.
_USER_INFO, _QUERY = re.compile(r"(?<=://)[^/\s@]*@"), re.compile(r"(?<=\w)\?\S*")
_HIDDEN = "***"


@dataclass(frozen=True)
class LoggedRun:
    """The data about a run that is passed to loggers."""

    name: str
    config: Mapping[str, Any]  # dotted key -> plain JSON value, without secrets


@dataclass(frozen=True)
class Logger:
    """A service for the curves of runs. To add one: an object in its own module, a line in `bertjax.run.loggers`."""

    package: str  # imported by `open`; "" if it needs none
    open: Callable[[LoggedRun, Path, int], Writer]  # (run, folder for files, step to resume at; 0 for a new run)
    extra: str = ""  # the extra of bertjax that installs the package; "" if every installation has it
    require_ready: Callable[[], None] = lambda: None  # raises ValueError if the user must do something first


def logged_run(config: Config) -> LoggedRun:
    """Describe the run of a config for loggers, without secrets."""
    return LoggedRun(config.name, {key: without_secrets(value) for key, value in flatten(to_dict(config)).items()})


def without_secrets(value: Any) -> Any:
    """Replace user, password and query in URLs within a JSON value by ***."""
    if isinstance(value, str) and "://" in value:
        return _QUERY.sub(f"?{_HIDDEN}", _USER_INFO.sub(f"{_HIDDEN}@", value))
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items()}
    return value


def logged_id(folder: Path, logger: str) -> str:
    """The id of this folder's run in a logger's service; "" for a new run. Raises ValueError for a damaged file."""
    return _read(folder / LOGGED_AS_FILE).get(logger, "")


def remember_id(folder: Path, logger: str, identity: str) -> None:
    """Store the id, so that a resumed run continues the same run of the logger."""
    path = folder / LOGGED_AS_FILE
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(_read(path) | {logger: identity}, indent=1) + "\n")


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        identities = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); remove the file to log as a new run") from None
    if not isinstance(identities, dict) or not all(isinstance(identity, str) for identity in identities.values()):
        raise ValueError(f"{path}: not an object of names and ids; remove the file to log as a new run")
    return identities
