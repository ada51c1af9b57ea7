"""Registries: the members of a group by name, from the package, from plug-ins and from entry points.

A registry finds a member in this order: the package; the plug-ins that were named (`--plugin`, `plugins` of a config);
the entry points `bertjax.GROUP` of installed packages, which are scanned only for a name that the others lack, and for
a list of all names.
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bertjax.config.suggestions import suggestion

T = TypeVar("T")

# Registry -> the setting that names its members. The entry points of a group are called `bertjax.GROUP`.
GROUPS = {
    "families": "model.family",
    "objectives": "training.objectives, its half in JAX",
    "targets": "training.objectives, its half in NumPy",
    "sources": "data.sources",
    "filters": "data.filters",
    "tokenizers": "data.tokenizer",
    "augmentations": "data.augment",
    "masking": "data.masking",
    "mask_counts": "data.mask_count",
    "replace_by": "data.replace_by",
    "random_ids": "data.random_ids",
    "formats": "--to, and the prefix of a model's source",
    "task_kinds": "the task of finetune",
    "task_networks": "model.head",
    "positives": "task.positives",
    "loggers": "log",
    "hooks": "hooks",
    "recipes": "the recipe of a command",
}
MARK = "@sha256:"  # between the name and the digest of a plug-in
MODULE_PREFIX = "bertjax_plugin_"  # of the module names of plug-in files


@dataclass
class Plugin:
    """A file or a module that was imported, and the members that it registered."""

    name: str  # name of the file or the module
    digest: str  # SHA-256 of its source
    source: bytes | None = None  # content of a file; None for a module
    named: bool = False  # named by the user of this process, not only by a run that it opened
    members: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}{MARK}{self.digest}"


PROGRAM = Plugin("this program", "", named=True)  # holds the members registered outside of plug-ins
loaded_plugins: dict[str, Plugin] = {PROGRAM.name: PROGRAM}
importing: list[Plugin] = []
used_points: dict[str, None] = {}  # modules of entry points, whose members this process has looked up by name
_registries: dict[str, Registry[Any]] = {}


def register(group: str, name: str, member: Any) -> None:
    """Add a member to a registry: `bertjax.register("objectives", "length", Objective(...))`.

    Called by a plug-in while it is imported. Raises ValueError for an unknown group, and for a name that the package
    has too; a name that another plug-in has is refused after the import.
    """
    if group not in GROUPS:
        hint = suggestion(group, GROUPS)
        raise ValueError(f"register({group!r}, {name!r}, ...): the registry {group!r} is unknown; {hint}")
    owner = importing[-1] if importing else PROGRAM
    if group in _registries and name in _registries[group].own:
        raise name_taken(owner, group, name, "the package")
    owner.members[group, name] = member


def plugin_frame(error: BaseException) -> str:
    """Return the innermost place in a plug-in that an error passed: "loss.py, line 8, in on_log"; "" without any."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if name.startswith(MODULE_PREFIX) or any(
            f"{name}.".startswith(f"{plugin}.") for plugin in (*loaded_plugins, *used_points)
        ):
            place = f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
    return place


def name_taken(owner: Plugin, group: str, name: str, by: str) -> ValueError:
    """Make the error for a name of `owner` that `by` has registered already."""
    return ValueError(f"{owner.name} registers {name!r} in {group!r}, which {by} has too; choose another name")


class Registry(MutableMapping[str, T]):
    """Maps the names of a group to its members: from the package, from plug-ins, from entry points.

    Reading raises ValueError for a member of another type than `kind`, and for an entry point that cannot be imported.
    """

    def __init__(self, group: str, members: Mapping[str, T], kind: type | None = None) -> None:
        assert group in GROUPS, group
        self.own = dict(members)  # from the package
        self._group, self._kind = group, kind
        self._loaded: dict[str, T] = {}  # from entry points
        self._left_out: set[str] = set()  # entry points that cannot be used
        _registries[group] = self
        for plugin in loaded_plugins.values():
            for plugin_group, name in plugin.members:
                if plugin_group == group and name in self.own:
                    raise name_taken(plugin, group, name, "the package")

    def __getitem__(self, name: str) -> T:
        if name in self.own:
            return self.own[name]
        for plugin in loaded_plugins.values():
            if (self._group, name) in plugin.members:
                return self._checked(name, plugin.members[self._group, name], plugin.name)
        member = self._load(name)
        used_points.setdefault(_entry_points(self._group)[name].module)
        return member

    def __setitem__(self, name: str, member: T) -> None:
        """Register a member of the plug-in that is being imported; of the package if there is none."""
        if importing:
            register(self._group, name, member)
        else:
            self.own[name] = member

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        yield from (names := self.at_hand())
        for name, point in _entry_points(self._group).items():
            if name in names:
                self._leave_out(name, f"{_described(point)} is not used: {name!r} exists already")
                continue
            try:
                self._load(name)
            except ValueError as error:
                self._leave_out(name, str(error))
                continue
            yield name

    def _leave_out(self, name: str, reason: str) -> None:
        """Warn once of an entry point that cannot be used; no error, as this command may not need that package."""
        if name not in self._left_out:
            self._left_out.add(name)
            warnings.warn(reason, stacklevel=3)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def plugin_digest(self, name: str) -> str:
        """SHA-256 of the plug-in that registered a member; "" for the package, this program and entry points."""
        owners = (plugin for plugin in loaded_plugins.values() if (self._group, name) in plugin.members)
        return next((plugin.digest for plugin in owners), "")

    def values(self) -> ValuesView[T]:
        """The members, without recording entry points as used."""
        return dict(self.items()).values()

    def items(self) -> ItemsView[str, T]:
        """The names and members, without recording entry points as used."""
        at_hand = self.at_hand()
        return {name: self[name] if name in at_hand else self._load(name) for name in self}.items()

    def at_hand(self) -> tuple[str, ...]:
        """The names in the package and in plug-ins; entry points are not scanned."""
        plugin_members = (key for plugin in loaded_plugins.values() for key in plugin.members)
        return (*self.own, *(name for group, name in plugin_members if group == self._group))

    def require(self, names: Sequence[str], setting: str) -> None:
        """Raise ValueError unless `names`, the value of `setting`, has a member or more, each once."""
        unknown = [name for name in names if name not in self]
        if unknown or not names or len(set(names)) < len(names):
            message = f"{setting}={tuple(names)}: choose one or more of {', '.join(self)}, each once"
            if unknown:
                message += f"; name the plug-in that registers {unknown[0]!r} in {self._group!r}: --plugin FILE"
            raise ValueError(message)

    def _load(self, name: str) -> T:
        if name in self._loaded:
            return self._loaded[name]
        point = _entry_points(self._group)[name]
        try:
            member = point.load()
        except Exception as error:
            raise ValueError(
                f"{_described(point)} cannot be imported ({type(error).__name__}: {error}); repair or uninstall that "
                "package"
            ) from error
        self._loaded[name] = self._checked(name, member, _described(point))
        return self._loaded[name]

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
    """Name -> entry point, from every installed package."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=f"bertjax.{group}")}


def is_entry_point(module: str) -> bool:
    """Whether an installed package has a member in this module."""
    return any(point.module == module for group in GROUPS for point in _entry_points(group).values())


def _described(point: Any) -> str:
    package = point.dist.name if point.dist is not None else "an installed package"
    return f"{package}: entry point {point.group}: {point.name} = {point.value}"
