"""`python -m tests.benchmarks`: figures, targets, recorded results, and the README's table."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from race_table import race_table

REPOSITORY = Path(__file__).resolve().parents[1]
BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The gate's module with temporary files."""
    spec = importlib.util.spec_from_file_location("benchmark_gate", BENCHMARKS / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_gate", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    monkeypatch.setattr(module, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(module, "CHINESE", tmp_path / "README.zh.md")
    for page in (module.README, module.CHINESE, module.PAGE):
        page.write_text(f"before\n{module.BEGIN}\n{module.END}\nafter\n")
    return module


def figures(gate: ModuleType, path: Path, *entries: str) -> None:
    """Set the entries of the gate."""
    path.write_text("".join(f"[[figure]]\n{entry}\n" for entry in entries))
    read = gate.read_figures
    gate.read_figures = lambda: read(path)


def entry(name: str, printed: str, bar: str) -> str:
    return (
        f"name = '{name}'\ncommand = ['-c', '''{printed}''']\nreads = 'speed ([\\d.,]+)'\ntemplate = '{{:.1f}} MB/s'\n"
        f"beside = 'nothing'\nset_by = 'this test'\nreadme = '{name} in short'\n{bar}"
    )


def run(gate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(folder / "made"), *words])
    return gate.main()


def test_gate_compares_records_and_shows_figures(gate, tmp_path, monkeypatch, capfd) -> None:
    counted = "print(open(r'COUNT', 'a').write('x')); print('speed 1,234.5'); print('speed 2')"
    command = counted.replace("COUNT", str(tmp_path / "count"))
    figures(gate, tmp_path / "a.toml", entry("fast", command, "least = 1000"), entry("also", command, "most = 2000"))
    assert run(gate, monkeypatch, tmp_path) == 0
    output = capfd.readouterr().out
    assert (
        "fast  1234.5 MB/s  (at least 1000: reached)" in output
        and "also  1234.5 MB/s  (at most 2000: reached)" in output
    )
    assert (tmp_path / "count").read_text() == "x"  # a command that two figures read runs once
    result = json.loads(gate.RESULTS.read_text())["fast"]
    assert result["seconds"] >= 0
    assert result["value"] == 1234.5 and result["commit"] and "cores" in result["machine"]
    assert "| fast in short | 1234.5 MB/s |  |\n" in gate.README.read_text()
    table = gate.PAGE.read_text()
    assert table.startswith("before\n") and table.endswith("\nafter\n")
    assert "| fast | 1234.5 MB/s | nothing | at least 1000: reached |" in table
    assert f"{result['commit']}, {result['machine']} |" in table
    assert result["command"] == f"-c {command}"


def test_row_shows_the_command_that_was_measured(gate, tmp_path, monkeypatch) -> None:
    figures(gate, tmp_path / "a.toml", entry("fast", "print('speed 3')", "least = 1"))
    assert run(gate, monkeypatch, tmp_path) == 0
    changed = replace(gate.read_figures()["fast"], command=("-c", "print('speed 4')"))
    table = gate.page_tables({"fast": changed}, gate.read_results(), {"runs": {}, "speeds": {}})
    assert "`-c print('speed 3')`" in table


def test_code_change_during_a_run_discards_results(gate, tmp_path, monkeypatch) -> None:
    commits = iter(["a", "a", "b"])
    monkeypatch.setattr(gate, "circumstances", lambda: {"commit": next(commits), "machine": "two cores"})
    one, two = (entry(name, f"print('speed {n}')", "least = 1") for n, name in enumerate(("one", "two"), 1))
    figures(gate, tmp_path / "a.toml", one, two)
    with pytest.raises(SystemExit, match="the code changed from a to b meanwhile"):
        run(gate, monkeypatch, tmp_path)
    assert gate.read_results().keys() == {"one"}


def test_after_command_runs_first_and_once(gate, tmp_path, monkeypatch) -> None:
    prepared = tmp_path / "made.txt"
    after = f'after = [\'-c\', \'open("{prepared}", "a").write("speed 5;")\']'
    read = f"print(open(r'{prepared}').read())"
    figures(gate, tmp_path / "a.toml", entry("one", read, after), entry("two", f"{read}; print()", after))
    assert run(gate, monkeypatch, tmp_path) == 0
    assert prepared.read_text() == "speed 5;"


@pytest.mark.parametrize(
    ("name", "chosen"), [("ste", ["step", "step of two"]), ("of two", ["step of two"]), ("step", ["step"])]
)
def test_figures_are_chosen_by_part_of_their_name(gate, tmp_path, monkeypatch, name, chosen) -> None:
    entries = (entry(one, "print('speed 5')", "least = 1") for one in ("step", "step of two", "other"))
    figures(gate, tmp_path / "a.toml", *entries)
    assert run(gate, monkeypatch, tmp_path, name) == 0
    assert [*json.loads(gate.RESULTS.read_text())] == chosen


def test_further_groups_fill_the_baseline(gate, tmp_path, monkeypatch) -> None:
    one = entry("loss", "print('speed 6.1 unigram 6.9')", "most = 6.4")
    one = one.replace("([\\d.,]+)'", "([\\d.,]+) unigram ([\\d.]+)'").replace("'nothing'", "'{} of tokens alone'")
    figures(gate, tmp_path / "a.toml", one)
    assert run(gate, monkeypatch, tmp_path) == 0
    assert "| loss | 6.1 MB/s | 6.9 of tokens alone |" in gate.PAGE.read_text()


@pytest.mark.parametrize(
    ("error", "bar", "verdict"),
    [
        (0.5, "least = 6", "at least 6: reached, by less than its standard error"),
        (0.2, "most = 6", "at most 6: not reached, by less than its standard error"),
        (0.05, "least = 6", "at least 6: reached |"),
        (0.5, "", "none |"),
    ],
)
def test_verdict_mentions_margin_below_standard_error(gate, tmp_path, monkeypatch, error, bar, verdict) -> None:
    one = entry("points", f"print('speed 6.1 ± {error}')", bar).replace(
        "([\\d.,]+)'", "([\\d.,]+) ± (?P<error>[\\d.]+)'"
    )
    figures(gate, tmp_path / "a.toml", one)
    run(gate, monkeypatch, tmp_path)
    assert json.loads(gate.RESULTS.read_text())["points"]["error"] == error
    assert verdict in gate.PAGE.read_text()


@pytest.mark.parametrize(
    ("bar", "printed", "verdict"),
    [
        ("least = 4", "print('speed 3.9')", "not reached"),
        ("most = 3", "print('speed 3.9')", "not reached"),
        ("least = 1", "print('nothing')", "the output does not contain the figure"),
        ("least = 1", "raise SystemExit(2)", "failed: exit code 2"),
        ("least = 1", "print('speed 3.9', flush=True); raise SystemExit(3)", "failed: exit code 3"),
        ("least = 1\nafter = ['-c', 'raise SystemExit(4)']", "print('speed 3.9')", "failed: exit code 4"),
    ],
)
def test_missed_target_or_failure_exits_with_one(gate, tmp_path, monkeypatch, capfd, bar, printed, verdict) -> None:
    figures(gate, tmp_path / "a.toml", entry("slow", printed, bar), entry("good", "print('speed 5')", "least = 1"))
    assert run(gate, monkeypatch, tmp_path) == 1
    output = capfd.readouterr().out
    assert "what was tried" not in output
    assert verdict in output and "good  5.0 MB/s  (at least 1: reached)" in output


def test_benchmark_imports_the_package_of_its_checkout(gate, tmp_path, monkeypatch) -> None:
    """Even if another clone is installed."""
    other = tmp_path / "bertjax"
    other.mkdir()
    (other / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output = gate.run(["-c", "import bertjax; print(bertjax.__file__)"]).end
    assert output == f"{gate.REPOSITORY / 'bertjax' / '__init__.py'}\n"


def test_reasons_follow_a_missed_target(gate, tmp_path, monkeypatch, capfd) -> None:
    reason = "fell_short = 'measured 3.9'\ntried = 'more threads'"
    figures(gate, tmp_path / "a.toml", entry("slow", "print('speed 3.9')", f"least = 4\n{reason}"))
    assert run(gate, monkeypatch, tmp_path) == 1
    assert "(at least 4: not reached; measured 3.9; more threads)" in capfd.readouterr().out
    page = gate.PAGE.read_text()
    assert "| at least 4: not reached; [what was tried](#what-was-tried) |" in page
    assert "\n**slow** (at least 4; this test). Measured 3.9. More threads.\n" in page


def test_pages_match_the_recorded_results(gate) -> None:
    known, results = gate.read_figures(), json.loads((BENCHMARKS / "results.json").read_text())
    race = json.loads((BENCHMARKS / "race.json").read_text())
    page, readme = (path.read_text(encoding="utf-8") for path in (BENCHMARKS / "README.md", REPOSITORY / "README.md"))
    assert gate.with_table(page, gate.page_tables(known, results, race)) == page
    assert gate.with_table(readme, gate.readme_table(known, results)) == readme
    assert all(f"\n| {name} |" in page for name in results)
    assert 4 <= sum(bool(figure.readme) for figure in known.values()) <= 6
    assert "FALLS SHORT" not in page + readme


def test_race_table_has_means_and_standard_errors() -> None:
    """Over several seeds, or else over the examples. A recipe without finished runs has no row."""
    outcome = {"commit": "0123456", "steps": 6_402, "mrpc": 0.8, "qnli": 0.6, "cranfield": 0.2}
    runs = {"bert_0": outcome | {"sst2": 0.75, "sst2_error": 0.0147, "sst2_baseline": 0.509, "pos": 0.9}}
    runs |= {f"electra_{n}": outcome | {"sst2": value, "sst2_error": 0.01} for n, value in enumerate((0.7, 0.72))}
    _, caption, *_, baseline, bert, electra = race_table(
        {"speeds": {"bert": 0.5, "deberta": 1.0, "electra": 0.6}, "runs": runs}
    )
    assert caption.endswith("--record FILE`, 0123456):")
    assert baseline == "| most frequent answer |  | 50.9 |  |  |  |  |"
    assert bert == "| bert | 6,402 | 75.0 ± 1.5 | 80.0 | 60.0 | 90.0 | 20.0 |"
    assert electra == "| electra | 6,402 ± 0 | 71.0 ± 1.0 | 80.0 ± 0.0 | 60.0 ± 0.0 |  | 20.0 ± 0.0 |"
    assert race_table({"speeds": {"bert": 0.5}, "runs": {}}) == []


def test_every_figure_was_measured_and_says_why_it_falls_short(gate) -> None:
    results = json.loads((BENCHMARKS / "results.json").read_text())
    known = gate.read_figures()
    assert [name for name, figure in known.items() if not figure.race and name not in results] == []
    short = [name for name, found in results.items() if not known[name].holds(found["value"])]
    assert [name for name in short if not known[name].fell_short] == []


def test_all_but_the_races_take_less_than_ninety_minutes(gate) -> None:
    """By the seconds of each command when it was last run."""
    results = json.loads((BENCHMARKS / "results.json").read_text())
    known = {name: figure for name, figure in gate.read_figures().items() if not figure.race}
    seconds = {figure.command: results[name]["seconds"] for name, figure in known.items() if "seconds" in results[name]}
    assert sum(seconds.values()) < 90 * 60, f"give some of them fewer rounds: {seconds}"


def test_missing_data_and_races_are_skipped(gate, tmp_path, monkeypatch, capfd) -> None:
    long = entry("race", "print('speed 1')", "race = true")
    figures(gate, tmp_path / "a.toml", entry("text", "print('speed 1')", "data = ['wiki']"), long)
    assert run(gate, monkeypatch, tmp_path, "--data", str(tmp_path)) == 3
    output = capfd.readouterr().out
    assert f"text  skipped: needs {tmp_path / 'wiki'}" in output and "\nrace" not in output
    assert run(gate, monkeypatch, tmp_path, "--data", str(tmp_path), "--allow-skipped") == 0
    assert run(gate, monkeypatch, tmp_path, "race") == 0
    assert "race  1.0 MB/s  (none)" in capfd.readouterr().out


def test_kerashub_figures_require_its_interpreter(gate, tmp_path, monkeypatch, capfd) -> None:
    figures(gate, tmp_path / "a.toml", entry("traffic", "print('speed 5', '{keras}')", "most = 6"))
    assert run(gate, monkeypatch, tmp_path) == 3
    assert "traffic  skipped: needs an interpreter with keras-hub; give --keras" in capfd.readouterr().out
    assert run(gate, monkeypatch, tmp_path, "--keras", "bin/python") == 0
    assert "speed 5 bin/python" in capfd.readouterr().out
    assert "`-c print('speed 5', 'PYTHON')`" in gate.PAGE.read_text()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("a", "", ""), entry("a", "", "")], "a: duplicate name"),
        ([entry("a", "", "limit = 3")], "a: unknown key limit"),
        ([entry("a", "", "least = 3").replace("set_by = 'this test'\n", "")], "a has a target without set_by"),
    ],
)
def test_invalid_entry_is_refused(gate, tmp_path, entries, message) -> None:
    figures(gate, tmp_path / "a.toml", *entries)
    with pytest.raises(ValueError, match=message):
        gate.read_figures()


def test_every_figure_has_a_program_and_a_format(gate) -> None:
    for figure in gate.read_figures().values():
        assert (BENCHMARKS.parents[1] / figure.command[0]).is_file(), figure.name
        assert figure.template.format(1.5) != figure.template, figure.name
        assert figure.bar == "none" or len(figure.set_by) > 20, figure.name
        assert re.compile(figure.reads).groups == 1 + figure.beside.count("{}"), figure.name


def test_commit_is_dirty_except_for_the_gates_own_files(gate, tmp_path, monkeypatch) -> None:
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for name in ("README.md", "tests/benchmarks/results.json", "code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(gate, "REPOSITORY", tmp_path)
    clean = gate.circumstances()["commit"]
    assert re.fullmatch(r"[0-9a-f]{7,}", clean)
    (tmp_path / "README.md").write_text("2\n")
    (tmp_path / "tests/benchmarks/results.json").write_text("2\n")
    assert gate.circumstances()["commit"] == clean
    (tmp_path / "code.py").write_text("2\n")
    assert gate.circumstances()["commit"] == f"{clean}-dirty"
