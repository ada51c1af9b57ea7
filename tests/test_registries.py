"""What is added by adding a file is known by its name in that file and in its registry, and nowhere else."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# Registry -> where its members' own files are: there, a member may speak of itself.
REGISTRIES = {
    "bertjax.model.families.registry:FAMILIES": "bertjax/model/families",
    "bertjax.training.objectives.registry:OBJECTIVES": "bertjax/training/objectives",
    "bertjax.input.targets.registry:TARGETS": "bertjax/input/targets",
    "bertjax.text.sources.registry:KINDS": "bertjax/text/sources",
    "bertjax.finetune.kinds:KINDS": "bertjax/finetune/kinds",
    "bertjax.model.network:HEADS": "bertjax/model",
    "bertjax.convert.formats:FORMATS": "bertjax/convert",
}


def members(registry: str) -> set[str]:
    module, _, name = registry.partition(":")
    return set(getattr(importlib.import_module(module), name))


def compared_strings(tree: ast.Module) -> list[tuple[int, str]]:
    """Every string that something is compared with, or that a `match` has as a case: (line, string)."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in [node.left, *node.comparators]:
                strings = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
                found += [(node.lineno, s.value) for s in strings if isinstance(s, ast.Constant)]
        elif isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            found.append((node.lineno, node.value.value))
    return [(line, value) for line, value in found if isinstance(value, str)]


@pytest.mark.parametrize("registry", REGISTRIES)
def test_no_name_of_a_member_is_compared_elsewhere(registry):
    names, own = members(registry), REPOSITORY / REGISTRIES[registry]
    complaints = [
        f"{path.relative_to(REPOSITORY)}:{line}: compares with {value!r}; ask the object of that name"
        for path in sorted((REPOSITORY / "bertjax").rglob("*.py"))
        if not path.is_relative_to(own)
        for line, value in compared_strings(ast.parse(path.read_text(encoding="utf-8")))
        if value in names
    ]
    assert not complaints, "\n" + "\n".join(complaints)


def test_the_rule_sees_comparisons():
    text = 'x == "a"\nif y in ("b", "c"): pass\nmatch z:\n    case "d": pass\nf("e")\nw = {"g": 1}\n'
    assert compared_strings(ast.parse(text)) == [(1, "a"), (2, "b"), (2, "c"), (4, "d")]
