"""Plug-ins: what files, modules and installed packages outside of bertjax add to its registries.

A registry finds a member in this order: the package; the plug-ins that were named (`--plugin`, `plugins` of a config);
the entry points `bertjax.GROUP` of installed packages, which are scanned only for a name that the others lack, and for
a list of all names.

A run records its plug-ins as NAME@sha256:DIGEST and keeps a copy of each file. A run never brings code of its own: its
copy is imported only if the user named a file of the same content on this machine before (`trusted_list`).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
Plugins = tuple[tuple[str, str, bytes | None], ...]  # name, digest and source of each, for another process

# Registry -> what names its members. The entry points of a group are called `bertjax.GROUP`.
GROUPS = {
    "families": "model.family",
    "objectives": "training.objectives, its half in JAX",
    "targets": "training.objectives, its half in NumPy",
    "sources": "data.sources",
    "tokenizers": "data.tokenizer",
    "augmentations": "data.augment",
    "masking": "data.masking",
    "mask_counts": "data.mask_count",
    "replace_by": "data.replace_by",
    "random_ids": "data.random_ids",
    "formats": "--to, and the prefix of a model's source",
    "task_kinds": "the task of finetune",
    "task_networks": "model.head",
    "loggers": "log",
    "hooks": "hooks",
    "recipes": "the recipe of a command",
}
FOLDER = "plugins"  # in the directory of a run: the copies of its plug-in files
_MARK = "@sha256:"
_SHOWN = 12  # digits of a digest in messages


@dataclass
class Plugin:
    """A file or a module that was imported, and the members that it registered."""

    name: str  # of the file, or of the module
    digest: str  # SHA-256 of its source
    source: bytes | None = None  # of a file
    named: bool = False  # by the user of this process, rather than by a run that it opened
    members: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}{_MARK}{self.digest}"


_PROGRAM = Plugin("this program", "", named=True)  # what is registered outside of plug-ins
_active: dict[str, Plugin] = {_PROGRAM.name: _PROGRAM}
_importing: list[Plugin] = []
_registries: dict[str, Registry[Any]] = {}


def register(group: str, name: str, member: Any) -> None:
    """Add a member to a registry: `bertjax.register("objectives", "length", Objective(...))`.

    Called by a plug-in while it is imported. Raises ValueError for an unknown group, and for a name that the package
    or another plug-in has.
    """
    if group not in GROUPS:
        near = difflib.get_close_matches(group, GROUPS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(GROUPS)}"
        raise ValueError(f"register({group!r}, {name!r}, ...): the registry {group!r} is unknown; {hint}")
    owner = _importing[-1] if _importing else _PROGRAM
    if group in _registries and name in _registries[group].own:
        raise _taken(owner, group, name, "the package")
    owner.members[group, name] = member


def _taken(owner: Plugin, group: str, name: str, by: str) -> ValueError:
    return ValueError(f"{owner.name} registers {name!r} in {group!r}, which {by} has too; choose another name")


class Registry(MutableMapping[str, T]):
    """Maps the names of a group to its members: from the package, from plug-ins, from entry points.

    Reading raises ValueError for a member of another type than `kind`, and for an entry point that cannot be imported.
    """

    def __init__(self, group: str, members: Mapping[str, T], kind: type | None = None) -> None:
        assert group in GROUPS, group
        self.own = dict(members)  # of the package
        self._group, self._kind = group, kind
        self._loaded: dict[str, T] = {}  # of entry points
        self._left_out: set[str] = set()  # entry points that cannot be used
        _registries[group] = self
        for plugin in _active.values():
            for of, name in plugin.members:
                if of == group and name in self.own:
                    raise _taken(plugin, group, name, "the package")

    def __getitem__(self, name: str) -> T:
        if name in self.own:
            return self.own[name]
        for plugin in _active.values():
            if (self._group, name) in plugin.members:
                return self._checked(name, plugin.members[self._group, name], plugin.name)
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, member: T) -> None:
        """Register a member: of the plug-in that is being imported, if there is one."""
        if _importing:
            register(self._group, name, member)
        else:
            self.own[name] = member

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        yield from (names := self.at_hand())
        for name, point in _entry_points(self._group).items():
            reason = f"{_described(point)} is not used: {name!r} exists already" if name in names else ""
            try:
                if not reason:
                    self[name]
            except ValueError as error:  # of a package that this command may not need
                reason = str(error)
            if not reason:
                yield name
            elif name not in self._left_out:
                self._left_out.add(name)
                warnings.warn(reason, stacklevel=2)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def at_hand(self) -> tuple[str, ...]:
        """The names that the package and plug-ins define; entry points are not scanned."""
        added = (name for plugin in _active.values() for group, name in plugin.members if group == self._group)
        return (*self.own, *added)

    def _load(self, name: str) -> T:
        point = _entry_points(self._group)[name]
        try:
            member = point.load()
        except Exception as error:
            raise ValueError(
                f"{_described(point)} cannot be imported ({type(error).__name__}: {error}); repair or uninstall that "
                "package"
            ) from error
        return self._checked(name, member, _described(point))

    def _checked(self, name: str, member: Any, origin: str) -> T:
        if self._kind is not None and not isinstance(member, self._kind):
            raise ValueError(
                f"{origin}: {name!r} in {self._group!r} is {type(member).__name__}; give {self._kind.__name__}"
            )
        own = getattr(member, "name", name) if self._kind is not None else name
        if own != name:
            raise ValueError(f"{origin}: {name!r} in {self._group!r} calls itself {own!r}; register it as {own!r}")
        return member


@functools.cache
def _entry_points(group: str) -> dict[str, Any]:
    """Name -> entry point, of every installed package."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=f"bertjax.{group}")}


def _described(point: Any) -> str:
    package = point.dist.name if point.dist is not None else "an installed package"
    return f"{package}: entry point {point.group}: {point.name} = {point.value}"


def use_plugins(given: Sequence[str]) -> tuple[str, ...]:
    """Import plug-ins that the user names, and trust their content; returns them with their digests, for a config.

    Each is a file (`my_file.py`) or a module (`my_package.module`); either may be followed by `@sha256:DIGEST`, which
    it must then have. A file is self-contained: its folder is not searched for modules. Raises ValueError for what is
    missing, has another digest or is called like another plug-in, and for an exception in its code, with its line.
    """
    return tuple(dict.fromkeys(str(_use(written)) for written in given))


def _use(written: str) -> Plugin:
    place, _, digest = written.partition(_MARK)
    is_file = place.endswith(".py") or "/" in place
    name = Path(place).name if is_file else place
    known = _active.get(name)
    if known is not None and digest == known.digest:
        return known
    plugin = file_plugin(Path(place)) if is_file else Plugin(name, _digest_of_module(name))
    if digest and plugin.digest != digest:
        raise ValueError(
            f"plug-in {place}: its digest is {plugin.digest[:_SHOWN]}..., not {digest[:_SHOWN]}...; put the file back, "
            f"or name it without {_MARK}"
        )
    if known is not None and known.digest == plugin.digest:
        plugin = known
    else:
        plugin.named = True
        _import(plugin, place)
    trust(plugin)
    return plugin


def file_plugin(path: Path) -> Plugin:
    """A file as a plug-in that is not imported yet. Raises ValueError if it cannot be read."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"plug-in {path}: {error.strerror or error}; name the file where it is now") from None
    return Plugin(path.name, hashlib.sha256(source).hexdigest(), source)


def as_active(recorded: Sequence[str]) -> tuple[str, ...]:
    """Plug-ins that a run records, which were opened, with the digests of what this process uses."""
    return tuple(str(_active[written.partition(_MARK)[0]]) for written in recorded)


def open_plugins(recorded: Sequence[str], run: str, read: Callable[[str], bytes]) -> None:
    """Import the plug-ins that a run records, unless the user named others of the same names; these are then used.

    `run` names it in messages; `read` returns the content of a file in its directory. Raises ValueError for a plug-in
    that the user has not named on this machine, and for a copy that is missing or damaged. A plug-in that has changed
    since gives a warning.
    """
    for written in recorded:
        name, _, digest = written.partition(_MARK)
        active = _active.get(name)
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
    known = trusted()
    if not (known.get(digest) == name if is_file else name in known.values()) or not digest:
        advice = f"read {run}/{copy}, and name it, if you trust it" if is_file else "name it, if you trust it"
        raise ValueError(
            f"{run} needs the plug-in {name} ({digest[:_SHOWN]}...), which was not named on this machine before, and a "
            f"run must not bring code of its own; {advice}: --plugin {f'{run}/{copy}' if is_file else name}"
        )
    if not is_file:
        return _import(Plugin(name, _digest_of_module(name)), name)
    try:
        source = read(copy)
    except OSError as error:
        raise ValueError(f"{run}/{copy}: {error}; name the plug-in's file: --plugin FILE") from None
    if hashlib.sha256(source).hexdigest() != digest:
        raise ValueError(f"{run}/{copy}: it has another digest than the run records ({digest[:_SHOWN]}...); restore it")
    return _import(Plugin(name, digest, source), f"{run}/{copy}")


def _import(plugin: Plugin, place: str) -> Plugin:
    """Run a plug-in's code, and put it in the place of an earlier one of its name."""
    with collected(plugin), errors_located("plug-in", Path(place)):
        if plugin.source is None:
            importlib.import_module(plugin.name)  # if the program did that before, its members are the program's
        else:
            module = ModuleType(f"bertjax_plugin_{Path(plugin.name).stem}")
            module.__file__ = place
            sys.modules[module.__name__] = module
            exec(compile(plugin.source, place, "exec"), module.__dict__)  # noqa: S102  only what the user named
    return plugin


@contextmanager
def collected(plugin: Plugin) -> Iterator[None]:
    """Add what is registered within to a plug-in, and make it one of this process if that is anything."""
    _importing.append(plugin)
    try:
        yield
    finally:
        _importing.pop()
    for group, name in plugin.members:
        for other in _active.values():
            if other.name != plugin.name and (group, name) in other.members:
                raise _taken(plugin, group, name, other.name)
    if plugin.named or plugin.members:
        _active[plugin.name] = plugin


def files() -> dict[str, tuple[str, bytes]]:
    """The plug-in files of this process by name: (with the digest, as a config records it; the content)."""
    return {one.name: (str(one), one.source) for one in _active.values() if one.source is not None}


def active() -> Plugins:
    """The plug-ins of this process, for `activate` in a worker process."""
    return tuple((one.name, one.digest, one.source) for one in _active.values() if one is not _PROGRAM)


def activate(plugins: Plugins) -> None:
    """Import the plug-ins of the process that started this one."""
    for name, digest, source in plugins:
        if name not in _active:
            _import(Plugin(name, digest, source, named=True), name)


def _digest_of_module(name: str) -> str:
    """SHA-256 of a module's file, or of all Python files of a package. Raises ValueError if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"plug-in {name}: no such module is installed, and a file is written with its .py; install it")
    origin = Path(spec.origin)
    paths = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def trusted_list() -> Path:
    """The file that lists the plug-ins which the user of this machine named: a digest and a name on each line."""
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
    """Note that the user named a plug-in, so that runs which record it may import it on this machine."""
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
    """Raise a ValueError with file and line for an exception in the code of a user's file, unless it is `passing`."""
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
