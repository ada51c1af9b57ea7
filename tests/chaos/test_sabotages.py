"""The sabotages are of the code as it stands: `check_sabotages.py` plants them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sabotages import SABOTAGES, Sabotage

REPOSITORY = Path(__file__).resolve().parents[2]


def test_there_are_many_of_many_files() -> None:
    assert len(SABOTAGES) >= 60 and len({one.file for one in SABOTAGES}) >= 25
    assert len({(one.file, one.old, one.new) for one in SABOTAGES}) == len(SABOTAGES)


@pytest.mark.parametrize("one", SABOTAGES, ids=lambda one: f"{one.file}: {one.new.strip()[:40]}")
def test_a_sabotage_can_be_planted(one: Sabotage) -> None:
    whole = (REPOSITORY / "bertjax" / one.file).read_text(encoding="utf-8")
    assert whole.count(one.old) == 1, "the code has changed: write the sabotage anew"
    ast.parse(whole.replace(one.old, one.new))
    for test in one.tests.split():
        file, _, name = test.partition("::")
        content = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in content, test
