"""What is added by adding a file is known by its name in that file and in its registry, and nowhere else."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

_HALVES = ("bertjax/training/objectives", "bertjax/input/targets")  # of an objective: both know its name

# Registry -> where its members' own files are: there, a member may speak of itself.
REGISTRIES = {
    "bertjax.families.registry:FAMILIES": ("bertjax/families",),
    "bertjax.training.objectives.registry:OBJECTIVES": _HALVES,
    "bertjax.input.targets.registry:TARGETS": _HALVES,
    "bertjax.input.augmentations.registry:AUGMENTATIONS": ("bertjax/input/augmentations",),
    "bertjax.text.sources.registry:KINDS": ("bertjax/text/sources",),
    "bertjax.text.filters.registry:FILTERS": ("bertjax/text/filters",),
    "bertjax.finetune.kinds:KINDS": ("bertjax/finetune/kinds",),
    "bertjax.model.network:HEADS": ("bertjax/model",),
    "bertjax.convert.formats:FORMATS": ("bertjax/convert",),
}

Nodes = list[ast.AST]  # of a file, those that a rule may look at
Strings = list[tuple[int, str]]  # line, string

LOOKED_AT = (
    *(ast.Compare, ast.MatchValue, ast.Subscript, ast.Call),
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
)


def members(registry: str) -> set[str]:
    module, _, name = registry.partition(":")
    return set(getattr(importlib.import_module(module), name))


def strings_among(lines: list[tuple[int, ast.AST | None]]) -> Strings:
    found = [(line, node.value) for line, node in lines if isinstance(node, ast.Constant)]
    return [(line, value) for line, value in found if isinstance(value, str)]


def compared_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """Every string that something is compared with, or is looked for in, or that a `match` has as a case."""
    found: list[tuple[int, ast.AST | None]] = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            for part in [node.left, *node.comparators]:
                strings = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
                found += [(node.lineno, string) for string in strings]
        elif isinstance(node, ast.MatchValue):
            found.append((node.lineno, node.value))
    return strings_among(found)


def looked_up_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """Every string by which a registry is subscripted, or is asked with `get`.

    Another mapping may have a key of the same name: a batch has tokens, and a record of JSON has a text.
    """
    found: list[tuple[int, ast.AST | None]] = []
    for node in nodes:
        if isinstance(node, ast.Subscript) and _is_named(node.value, registry):
            found.append((node.lineno, node.slice))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_named(node.func.value, registry)
        ):
            found += [(node.lineno, argument) for argument in node.args]
    return strings_among(found)


def _is_named(node: ast.AST, registry: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == registry) or (
        isinstance(node, ast.Attribute) and node.attr == registry
    )


def tabled_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """The keys of every table of the members: a constant of a module or class, or an argument's default.

    A table that has one key which is no member is about something else: columns, units of masking.
    """
    found: Strings = []
    for node in nodes:
        tables = []
        if isinstance(node, ast.Module | ast.ClassDef):
            tables = [part.value for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            tables = [*node.args.defaults, *node.args.kw_defaults]
        for table in tables:
            keys = _keys(table)
            if keys and {key for _, key in keys} <= names:
                found += keys
    return found


def _keys(table: ast.AST | None) -> Strings:
    """The keys of a display of a dict or of `dict(...)`; none where one of them is no string."""
    if isinstance(table, ast.Dict):
        keys = strings_among([(table.lineno, key) for key in table.keys])
        return keys if len(keys) == len(table.keys) else []
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id == "dict" and not table.args:
        return [(table.lineno, keyword.arg or "") for keyword in table.keywords]
    return []


RULES: list[Callable[[Nodes, set[str], str], Strings]] = [compared_strings, looked_up_strings, tabled_strings]


def nodes_of(text: str) -> Nodes:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, LOOKED_AT)]


@functools.cache
def package() -> dict[Path, Nodes]:
    """Every file of the package, for every rule."""
    paths = sorted((REPOSITORY / "bertjax").rglob("*.py"))
    return {path: nodes_of(path.read_text(encoding="utf-8")) for path in paths}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("registry", REGISTRIES)
def test_member_names_are_used_only_in_their_own_files(registry, rule):
    names, own = members(registry), [REPOSITORY / folder for folder in REGISTRIES[registry]]
    complaints = [
        f"{path.relative_to(REPOSITORY)}:{line}: names {value!r}; use the object of that name"
        for path, nodes in package().items()
        if not any(path.is_relative_to(folder) for folder in own)
        for line, value in rule(nodes, names, registry.partition(":")[2])
        if value in names
    ]
    assert not complaints, "\n" + "\n".join(complaints)


SHOWN = {
    compared_strings: (
        'x == "a"\nif y in ("b", "c"): pass\nmatch z:\n    case "d": pass\nf("e")\nw = {"g": 1}\n"h" in x.heads\n',
        [(1, "a"), (2, "b"), (2, "c"), (4, "d"), (7, "h")],
    ),
    looked_up_strings: (
        'R["a"]\nkinds.R["b"]\nR.get("c")\nrow["d"]\nR[e]\nrow.get("f")\n',
        [(1, "a"), (2, "b"), (3, "c")],
    ),
    tabled_strings: (
        'T = {"a": 1, "b": 2}\nU: D = dict(c=1)\nV = {"a": 1, "z": 2}\nclass C:\n    T = {"d": 1}\n'
        'def f(t={"e": 1}):\n    return {"a": t}\nW = {**T, "a": 1}\n',
        [(1, "a"), (1, "b"), (2, "c"), (5, "d"), (6, "e")],
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_lists_the_strings_of_a_text(rule):
    text, found = SHOWN[rule]
    assert sorted(rule(nodes_of(text), set("abcdefgh"), "R")) == found
