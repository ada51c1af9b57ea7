"""The sabotages fit the current code; `check_faults.py sabotages` plants them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import sabotage_trials
from sabotage_trials import CAUGHT, TIERS
from sabotages import SABOTAGES, Sabotage

REPOSITORY = Path(__file__).resolve().parents[2]


def test_sabotages_cover_many_files() -> None:
    assert len(SABOTAGES) >= 60 and len({one.file for one in SABOTAGES}) >= 25
    assert len({(one.file, one.old, one.new) for one in SABOTAGES}) == len(SABOTAGES)


@pytest.mark.parametrize("one", SABOTAGES, ids=lambda one: f"{one.file}: {one.new.strip()[:40]}")
def test_sabotage_can_be_planted(one: Sabotage, pytestconfig: pytest.Config) -> None:
    original = (REPOSITORY / "bertjax" / one.file).read_text(encoding="utf-8")
    assert original.count(one.old) == 1, "the code has changed: rewrite the sabotage"
    ast.parse(original.replace(one.old, one.new))
    run_rooms = pytestconfig.pluginmanager.get_plugin(str(REPOSITORY / "tests" / "conftest.py")).RUN_ROOMS
    for test in one.tests.split():
        assert one.tier in TIERS and (one.tier != "unit" or test.partition("/")[0] not in run_rooms), one.tier
        file, _, name = test.partition("::")
        content = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in content, test


@pytest.mark.long  # starts pytest three times
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("assert value() == 1", CAUGHT),
        ("assert not value()", "not counted: its tests fail without it"),
        ("pytest.skip('never')", "not counted: its tests are skipped here"),
    ],
)
def test_failing_or_skipped_tests_do_not_count(
    body: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bertjax", "tests"):
        (tmp_path / "repository" / folder).mkdir(parents=True)
    (tmp_path / "repository" / "bertjax" / "__init__.py").touch()
    (tmp_path / "repository" / "bertjax" / "some.py").write_text("def value():\n    return 1\n")
    test = f"import pytest\nfrom bertjax.some import value\n\ndef test_it():\n    {body}\n"
    (tmp_path / "repository" / "tests" / "test_some.py").write_text(test)
    monkeypatch.setattr(sabotage_trials, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setattr(sabotage_trials, "_TREE", ("bertjax", "tests"))
    tests = sabotage_trials.Tests(tmp_path / "copy")
    (tmp_path / "copy/conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--unit', action='store_true')\n"
    )
    assert tests.plant(Sabotage("some.py", "return 1", "return 2", "test_some.py")).startswith(outcome)
