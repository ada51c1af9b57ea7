"""A campaign of many runs: an interrupted run loses nothing, no trial counts twice, and the page is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import check_faults
import pytest
from campaign import Record, Results, as_page, page_with
from outcomes import Row, Share, Table


def trials(table: Table, folder: Path, tries: int | None, share: Share, names=()) -> None:
    """A part with trials 0 to 11; trial 6 raises the planted exception."""
    for number in share.take(range(12)):
        if number == 6 and PLANTED:
            raise PLANTED.pop()
        table.add("fault", "the same bits", True, str(number))


PLANTED: list[BaseException] = []


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command with those trials and a results file; returns (exit code, records)."""
    monkeypatch.setattr(check_faults, "import_trials", lambda part: trials)
    monkeypatch.setattr(check_faults, "prepare_environment", lambda folder: None)
    monkeypatch.setattr(check_faults, "code_version", lambda: "1234abc")
    monkeypatch.setattr(check_faults.signal, "signal", lambda *_: None)
    file = tmp_path / "results.json"

    def one(*words: str):
        code = check_faults.main([*words, "--results", str(file)])
        return code, Results(file).records

    yield one
    PLANTED.clear()


def counts(records) -> list[tuple[int, int, int]]:
    return [(record.done, *record.size) for record in records]


def test_interrupted_campaign_keeps_its_table_and_resumes(run, capsys: pytest.CaptureFixture[str]) -> None:
    PLANTED.append(KeyboardInterrupt())
    code, records = run("kills")
    assert code == 130 and counts(records) == [(6, 0, 6)]
    assert "| fault | 6 | 6 | 0 | 6 the same bits |" in capsys.readouterr().out
    code, records = run("kills")
    assert code == 0 and counts(records) == [(12, 0, 12)]
    code, records = run("kills")
    assert code == 0 and counts(records) == [(12, 0, 12)]


def test_exception_counts_as_failed_trial(run, capsys: pytest.CaptureFixture[str]) -> None:
    PLANTED.append(json.JSONDecodeError("no answer", "", 0))
    code, records = run("crash", "bitrot")
    assert code == 1 and counts(records) == [(6, 1, 7), (12, 0, 12)]
    out, error = capsys.readouterr()
    assert "FAILED crash: the campaign, it ended early: JSONDecodeError: no answer" in error
    assert "| crash: the campaign | 1 | 0 | 1 |  |" in out and "| bitrot | 12 | 12 | 0 |" in out


def test_slices_from_several_files_count_once(run, tmp_path: Path) -> None:
    for part in ("1/3", "2/3"):
        run("bitrot", "--part", part)
    _, records = run("bitrot", "--part", "2/3", "--seed", "1")
    assert counts(records) == [(4, 0, 4)] * 3
    collected = Results(tmp_path / "collected.json")
    for _ in range(2):
        collected.add(records)
    assert sum(record.size[1] for record in collected.records) == 12
    assert "| bitrot | 12 | 12 | 0 | 2 of 3, 1 of 3 |" in as_page(collected.records)
    with pytest.raises(ValueError, match=r"cut into 3 slices here and into 4 there.* keep to --part I/3"):
        run("bitrot", "--part", "1/4")


def test_rerun_of_a_slice_keeps_its_failure(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add([Record("kills", "a", rows=[Row("x", 5, 1)])])
    results.add([Record("kills", "a", rows=[Row("x", 50)])])
    assert [record.size for record in results.records] == [(1, 5)]


def test_page_has_a_line_per_commit_and_a_total() -> None:
    records = [
        Record("kills", "a", minutes=3, date="2026-01-01", rows=[Row("x", 5, 1)]),
        Record("kills", "b", minutes=4, date="2026-01-02", rows=[Row("x", 50)]),
        Record("crash", "b", minutes=1, date="2026-01-02", rows=[Row("y", 7)]),
    ]
    assert as_page(records, details=False).splitlines()[2:] == [
        "| crash | 7 | 7 | 0 | 1 of 1 | 1 | b | 2026-01-02 |",
        "| kills | 5 | 4 | 1 | 1 of 1 | 3 | a | 2026-01-01 |",
        "| kills | 50 | 50 | 0 | 1 of 1 | 4 | b | 2026-01-02 |",
        "| kills, together | 55 | 54 | 1 |  | 7 |  | 2026-01-02 |",
    ]


def test_only_option_keeps_no_results(run) -> None:
    assert run("kills", "--only", "pretrain") == (0, [])


@pytest.mark.parametrize("words", [("--part", "3/2"), ("--part", "0/2"), ("--part", "half"), ("krash",)])
def test_invalid_slice_or_part_is_refused(run, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*words)


def test_results_refuse_a_file_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"results.json: not a results file"):
        Results(tmp_path / "results.json")


def test_reliability_page_matches_campaign() -> None:
    page = check_faults.PAGE.read_text(encoding="utf-8")
    assert page == page_with(page, Results(check_faults.CAMPAIGN).records), "python tests/chaos/check_faults.py --page"
