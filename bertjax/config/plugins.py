"""Plug-ins: files and modules outside of bertjax that add members to its registries.

A run records its plug-ins as NAME@sha256:DIGEST and keeps a copy of each file. Opening a run never executes foreign
code: the copy is imported only if the user named a file of the same content on this machine before (`trusted_list`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from bertjax.config import registry
from bertjax.config.registry import MARK, Plugin, name_taken

Plugins = tuple[tuple[str, str, bytes | None], ...]  # name, digest and source of each, for another process

FOLDER = "plugins"  # in the directory of a run: the copies of its plug-in files
_SHOWN = 12  # digits of a digest in messages


def use_plugins(names: Sequence[str]) -> tuple[str, ...]:
    """Import plug-ins that the user names, and trust their content; returns them with their digests, for a config.

    Each is a file (`my_file.py`) or a module (`my_package.module`); either may be followed by `@sha256:DIGEST`, which
    must then match. A file is self-contained: its folder is not searched for modules. Raises ValueError if a plug-in is
    missing, has another digest or a name that is taken, and for an exception in its code, with the line.
    """
    return tuple(dict.fromkeys(str(_use(name)) for name in names))


def _use(name_with_digest: str) -> Plugin:
    place, _, digest = name_with_digest.partition(MARK)
    is_file = place.endswith(".py") or "/" in place
    name = Path(place).name if is_file else place
    previous = registry.loaded_plugins.get(name)
    if previous is not None and digest == previous.digest:
        return previous
    plugin = file_plugin(Path(place)) if is_file else Plugin(name, _digest_of_module(name))
    if digest and plugin.digest != digest:
        raise ValueError(
            f"plug-in {place}: its digest is {plugin.digest[:_SHOWN]}..., not {digest[:_SHOWN]}...; put the file back, "
            f"or name it without {MARK}"
        )
    if previous is not None and previous.digest == plugin.digest:
        plugin = previous
    else:
        plugin.named = True
        _import(plugin, place)
    trust(plugin)
    return plugin


def file_plugin(path: Path) -> Plugin:
    """Read a file as a plug-in, without importing it. Raises ValueError if it cannot be read."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"plug-in {path}: {error.strerror or error}; name the file where it is now") from None
    return Plugin(path.name, hashlib.sha256(source).hexdigest(), source)


def as_active(entries: Sequence[str]) -> tuple[str, ...]:
    """The opened plug-ins of a run's record, with the digests of the code that this process uses."""
    return tuple(str(registry.loaded_plugins[entry.partition(MARK)[0]]) for entry in entries)


def with_entry_points(entries: Sequence[str]) -> tuple[str, ...]:
    """Add the entry-point modules that this process uses, with their digests, to the plug-ins of a config."""
    modules = registry.used_points.keys() - {entry.partition(MARK)[0] for entry in entries}
    return (*entries, *(str(Plugin(name, _digest_of_module(name))) for name in sorted(modules)))


def open_plugins(entries: Sequence[str], run: str, read: Callable[[str], bytes]) -> None:
    """Import the plug-ins that a run records; a plug-in of the same name that the user named takes precedence.

    `run` is for messages; `read` returns the content of a file in the run's directory. Raises ValueError for a plug-in
    that the user has not named on this machine, and for a copy that is missing or damaged. Warns of a plug-in that has
    changed since.
    """
    for entry in entries:
        name, _, digest = entry.partition(MARK)
        active = registry.loaded_plugins.get(name)
        if active is None or not (active.named or active.digest == digest):
            active = _open(name, digest, run, read)
        if active.digest != digest:
            warnings.warn(
                f"{run} was trained with another {name} ({digest[:_SHOWN]}...) than the one that is used now "
                f"({active.digest[:_SHOWN]}...)",
                stacklevel=2,
            )


def _open(name: str, digest: str, run: str, read: Callable[[str], bytes]) -> Plugin:
    is_file, copy = name.endswith(".py"), f"{FOLDER}/{Path(name).name}"
    if not is_file and registry.is_entry_point(name):  # of a package that the user installed
        return _import(Plugin(name, _digest_of_module(name), named=True), name)
    names_by_digest = trusted()
    if not (names_by_digest.get(digest) == name if is_file else name in names_by_digest.values()) or not digest:
        advice = f"read {run}/{copy} and, if you trust it, name it" if is_file else "if you trust it, name it"
        raise ValueError(
            f"{run} needs the plug-in {name} ({digest[:_SHOWN]}...), which was not named on this machine before, and a "
            f"run's code is not executed unseen; {advice}: --plugin {f'{run}/{copy}' if is_file else name}"
        )
    if not is_file:
        return _import(Plugin(name, _digest_of_module(name)), name)
    for place in (copy, earlier_copy(name, digest)):
        try:
            source = read(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ValueError(f"{run}/{place}: {error}; name the plug-in's file: --plugin FILE") from None
        if hashlib.sha256(source).hexdigest() == digest:
            return _import(Plugin(name, digest, source), f"{run}/{place}")
    raise ValueError(
        f"{run}/{copy}: no copy has the digest that the run records, {digest[:_SHOWN]}...; restore it, or name the "
        "plug-in's file: --plugin FILE"
    )


def earlier_copy(name: str, digest: str) -> str:
    """Path in a run's directory of the copy of a plug-in file that was replaced by one of the same name."""
    return f"{FOLDER}/{Path(name).stem}.{digest[:_SHOWN]}.py"


def _import(plugin: Plugin, place: str) -> Plugin:
    """Run a plug-in's code; it replaces an earlier plug-in of its name."""
    with collected(plugin), errors_located("plug-in", Path(place)):
        if plugin.source is None:
            importlib.import_module(plugin.name)  # if it was imported before, its members belong to PROGRAM
        else:
            module = ModuleType(registry.MODULE_PREFIX + Path(plugin.name).stem)
            module.__file__ = place
            sys.modules[module.__name__] = module
            exec(compile(plugin.source, place, "exec"), module.__dict__)  # noqa: S102  only what the user named
    return plugin


@contextmanager
def collected(plugin: Plugin) -> Iterator[None]:
    """Add the members registered within to a plug-in, and load the plug-in if it has any."""
    registry.importing.append(plugin)
    try:
        yield
    finally:
        registry.importing.pop()
    for group, name in plugin.members:
        for other in registry.loaded_plugins.values():
            if other.name != plugin.name and (group, name) in other.members:
                raise name_taken(plugin, group, name, other.name)
    if plugin.named or plugin.members:
        registry.loaded_plugins[plugin.name] = plugin


def files() -> dict[str, tuple[str, bytes]]:
    """The plug-in files of this process: name -> (name with digest, as a config records it; content)."""
    return {
        plugin.name: (str(plugin), plugin.source)
        for plugin in registry.loaded_plugins.values()
        if plugin.source is not None
    }


def active() -> Plugins:
    """The plug-ins of this process, for `activate` in a worker process."""
    return tuple(
        (plugin.name, plugin.digest, plugin.source)
        for plugin in registry.loaded_plugins.values()
        if plugin is not registry.PROGRAM
    )


def activate(plugins: Plugins) -> None:
    """Import the plug-ins of the process that started this one."""
    for name, digest, source in plugins:
        if name not in registry.loaded_plugins:
            _import(Plugin(name, digest, source, named=True), name)


def _digest_of_module(name: str) -> str:
    """SHA-256 of a module's file, or of all Python files of a package. Raises ValueError if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"plug-in {name}: no such module is installed; install it, or name a file, which ends in .py")
    origin = Path(spec.origin)
    paths = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def trusted_list() -> Path:
    """The file that lists the plug-ins the user named on this machine: a digest and a name on each line."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "bertjax" / "plugins"


def trusted() -> dict[str, str]:
    """Digest -> name of the plug-ins that the user named on this machine."""
    try:
        lines = trusted_list().read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return dict(line.split("  ", 1) for line in lines if "  " in line)


def trust(plugin: Plugin) -> None:
    """Record that the user named a plug-in, so that runs that record it may import it on this machine."""
    plugin.named = True
    if trusted().get(plugin.digest) == plugin.name:
        return
    try:
        trusted_list().parent.mkdir(parents=True, exist_ok=True)
        with trusted_list().open("a", encoding="utf-8") as file:
            file.write(f"{plugin.digest}  {plugin.name}\n")
    except OSError as error:
        warnings.warn(f"{trusted_list()}: {error}; name {plugin.name} again to open the run", stacklevel=2)


@contextmanager
def errors_located(what: str, path: Path, passing: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn an exception in the code of a user's file into a ValueError with file and line, unless it is `passing`."""
    try:
        yield
    except passing:
        raise
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise ValueError(f"{what} {error.filename or path}{line}: it is not valid Python: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if Path(frame.filename).resolve().parent == path.resolve().parent]
        origin = f"{ours[-1].filename}, line {ours[-1].lineno}" if ours else str(path)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{what} {origin}: {kind}{error}") from error
