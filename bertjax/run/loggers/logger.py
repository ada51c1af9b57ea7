"""The interface of a logger, and what it gets of a run: its name, its config without secrets, its id at the service."""

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

# user:password@ or token@ of a URL; everything after its ?, where object storage puts signatures.
_USER_INFO, _QUERY = re.compile(r"(?<=://)[^/\s@]*@"), re.compile(r"(?<=\w)\?\S*")
_HIDDEN = "***"


@dataclass(frozen=True)
class LoggedRun:
    """A run as loggers show it."""

    name: str
    config: Mapping[str, Any]  # dotted key -> plain JSON value, without secrets


@dataclass(frozen=True)
class Logger:
    """A service that shows the curves of runs: one object in one module, one line in `bertjax.run.loggers`."""

    package: str  # that it imports, when it opens
    # Takes the run, the folder that it may write into, and the step that the run resumes at (0: it starts).
    open: Callable[[LoggedRun, Path, int], Writer]
    extra: str = ""  # of bertjax, which installs the package; "" for what every installation has
    require_ready: Callable[[], None] = lambda: None  # raises ValueError if the user has to do something first


def logged_run(config: Config) -> LoggedRun:
    """The run of a config."""
    return LoggedRun(config.name, {key: without_secrets(value) for key, value in flatten(to_dict(config)).items()})


def without_secrets(value: Any) -> Any:
    """A plain JSON value; in the URLs of its texts, user, password and query are replaced by ***."""
    if isinstance(value, str) and "://" in value:
        return _QUERY.sub(f"?{_HIDDEN}", _USER_INFO.sub(f"{_HIDDEN}@", value))
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items()}
    return value


def logged_id(folder: Path, logger: str) -> str:
    """The id under which the run of this folder is known to a logger; "" for a run that it has not seen.

    Raises ValueError for a file that is damaged.
    """
    return _read(folder / LOGGED_AS_FILE).get(logger, "")


def remember_id(folder: Path, logger: str, identity: str) -> None:
    """Write the id down, so that a resumed run continues the same run of the logger."""
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
