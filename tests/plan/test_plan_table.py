"""The page of all plans: its rows, and that it lists every plan."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

PLAN = {
    "jax": "0.10.2",
    "commit": "0123456",
    "fits": True,
    "needed": 3 << 29,
    "capacity": 16 << 30,
    "steps": [900_000, 100_000],
    "seconds": [0.0123, 0.1],
    "limits": ["compute", "compute"],
    "mfu": [0.61, 0.5],
    "hours": [10.0, 12.25],
    "chips": 16,
}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """The program's module."""
    path = Path(__file__).parents[1] / "benchmarks" / "plan_table.py"
    spec = importlib.util.spec_from_file_location("plan_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("change", "price", "expected"),
    [
        ({}, 1.2, "1.50 of 16.0 GiB | 12.3 / 100 | compute | 61% / 50% | – | 10.0 to 12.2 | 160 | 192"),
        ({}, None, "1.50 of 16.0 GiB | 12.3 / 100 | compute | 61% / 50% | – | 10.0 to 12.2 | 160 | "),
        ({"hours": [10.0, 10.01]}, 0.5, "1.50 of 16.0 GiB | 12.3 / 100 | compute | 61% / 50% | – | 10.0 | 160 | 80"),
        (
            {"estimates": [0.0234, None]},
            None,
            "1.50 of 16.0 GiB | 12.3 / 100 | compute | 61% / 50% | 23.4 / – | 10.0 to 12.2 | 160 | ",
        ),
        ({"fits": False, "seconds": [None, None]}, 1.2, "1.50 of 16.0 GiB: does not fit | | | | | | |"),
        ({"refused": "mesh.fsdp=3 does not divide 16"}, 1.2, "mesh.fsdp=3 does not divide 16 | | | | | | |"),
    ],
)
def test_row_formats_a_plan(table: ModuleType, change: dict[str, object], price: float | None, expected: str) -> None:
    row = table.row("bert_base", PLAN | change, price)
    assert row == f"| bert_base | {expected} |"
    assert row.count("|") == 10


def test_page_lists_every_plan(table: ModuleType, tmp_path: Path) -> None:
    keys = [("tinybert", "v5e:4x4"), ("bert_base", "v5e:4x4"), ("quickstart", "h100:8")]
    page = table.page({table._key(*one): PLAN for one in keys}, {"v5e:4x4": 1.2})
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## 16 TPU v5e: `v5e:4x4` at 1.2 a chip-hour",
        "## 8 H100: `h100:8`",
    ]
    assert all(f"\n| {name} |" in page for name in ("tinybert", "bert_base", "quickstart"))
    absent = re.findall("Not compiled for this machine: (.*)\\.", page)
    assert [{*names.split(", ")} for names in absent] == [
        {*table.RECIPES} - {"tinybert", "bert_base"},
        {*table.RECIPES},
    ]
    assert "With jax 0.10.2 at commit 0123456." in page


def test_page_names_plans_of_other_versions(table: ModuleType) -> None:
    newer = PLAN | {"commit": "abcdef0"}
    page = table.page({table._key(name, "v5e:4x4"): PLAN for name in ("tinybert", "bert_base")}, {})
    assert "With jax 0.10.2 at commit 0123456." in page
    plans = {"tinybert": PLAN, "bert_base": newer, "bert_large": PLAN}
    assert table.versions(plans) == "With jax 0.10.2 at commit 0123456; with jax 0.10.2 at commit abcdef0: bert_base."


def test_make_keeps_existing_plans(table: ModuleType, tmp_path: Path, monkeypatch) -> None:
    plans, calls = tmp_path / "plans.json", []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        calls.append(words[-2:])
        failed = words[-2] == "bert_large"
        return SimpleNamespace(returncode=failed, stdout=f"a line\n{json.dumps(PLAN)}\n", stderr="no compiler\n")

    monkeypatch.setattr(table, "subprocess", SimpleNamespace(run=run))
    assert table.make(["bert_base"], ["v5e:4x4"], plans, again=False) == []
    failed = table.make(["bert_base", "bert_large", "tinybert"], ["v5e:4x4"], plans, again=False)
    assert failed == ["bert_large on v5e:4x4: no compiler"]
    assert calls == [[name, "v5e:4x4"] for name in ("bert_base", "bert_large", "tinybert")]
    assert table.read_plans(plans) == {f"{name} on v5e:4x4": PLAN for name in ("bert_base", "tinybert")}


def test_price_names_its_machine(table: ModuleType) -> None:
    assert table.parse_price("v5e:4x4=1.2") == ("v5e:4x4", 1.2)
    with pytest.raises(argparse.ArgumentTypeError, match="TOPOLOGY=PRICE with one of v5e:4x4"):
        table.parse_price("v5e=1.2")
