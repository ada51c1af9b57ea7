"""Members of a registry are named only in their own file and in the registry."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

_HALVES = ("bertjax/training/objectives", "bertjax/input/targets")  # the two halves of an objective, which may name it

# Registry -> folders of its members' own files, where a member may use its name.
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

Nodes = list[ast.AST]  # the nodes of a file that a rule may examine
Strings = list[tuple[int, str]]  # line, string

NODE_TYPES = (
    *(ast.Compare, ast.MatchValue, ast.Subscript, ast.Call),
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
)


def members(registry: str) -> set[str]:
    module, _, name = registry.partition(":")
    return set(getattr(importlib.import_module(module), name))


def strings_among(lines: list[tuple[int, ast.AST | None]]) -> Strings:
    constants = [(line, node.value) for line, node in lines if isinstance(node, ast.Constant)]
    return [(line, value) for line, value in constants if isinstance(value, str)]


def compared_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """Every string in a comparison, in a container of a membership test, or in a case of a `match`."""
    nodes_with_lines: list[tuple[int, ast.AST | None]] = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            for part in [node.left, *node.comparators]:
                strings = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
                nodes_with_lines += [(node.lineno, string) for string in strings]
        elif isinstance(node, ast.MatchValue):
            nodes_with_lines.append((node.lineno, node.value))
    return strings_among(nodes_with_lines)


def looked_up_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """Every string that is a subscript of a registry, or an argument of one of its methods, such as `get`.

    Other mappings may have a key of the same name: a batch has tokens, and a JSON record has a text.
    """
    nodes_with_lines: list[tuple[int, ast.AST | None]] = []
    for node in nodes:
        if isinstance(node, ast.Subscript) and _is_named(node.value, registry):
            nodes_with_lines.append((node.lineno, node.slice))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_named(node.func.value, registry)
        ):
            nodes_with_lines += [(node.lineno, argument) for argument in node.args]
    return strings_among(nodes_with_lines)


def _is_named(node: ast.AST, registry: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == registry) or (
        isinstance(node, ast.Attribute) and node.attr == registry
    )


def tabled_strings(nodes: Nodes, names: set[str], registry: str) -> Strings:
    """The keys of every table of members: a constant of a module or class, or the default of an argument.

    A table with a key that is not a member is about something else: columns, units of masking.
    """
    strings: Strings = []
    for node in nodes:
        tables = []
        if isinstance(node, ast.Module | ast.ClassDef):
            tables = [part.value for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            tables = [*node.args.defaults, *node.args.kw_defaults]
        for table in tables:
            keys = _keys(table)
            if keys and {key for _, key in keys} <= names:
                strings += keys
    return strings


def _keys(table: ast.AST | None) -> Strings:
    """The keys of a dict literal or of `dict(...)`; none if one of them is not a string."""
    if isinstance(table, ast.Dict):
        keys = strings_among([(table.lineno, key) for key in table.keys])
        return keys if len(keys) == len(table.keys) else []
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id == "dict" and not table.args:
        return [(table.lineno, keyword.arg or "") for keyword in table.keywords]
    return []


RULES: list[Callable[[Nodes, set[str], str], Strings]] = [compared_strings, looked_up_strings, tabled_strings]


def relevant_nodes(text: str) -> Nodes:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, NODE_TYPES)]


@functools.cache
def package() -> dict[Path, Nodes]:
    """Every file of the package, for every rule."""
    paths = sorted((REPOSITORY / "bertjax").rglob("*.py"))
    return {path: relevant_nodes(path.read_text(encoding="utf-8")) for path in paths}


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


EXAMPLES = {
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
    text, expected = EXAMPLES[rule]
    assert sorted(rule(relevant_nodes(text), set("abcdefgh"), "R")) == expected
