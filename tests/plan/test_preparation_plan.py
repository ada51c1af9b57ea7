"""The cost of preparing text: arithmetic with recorded rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertjax.__main__ import main
from bertjax.config import DataConfig
from bertjax.plan.preparation import parse_tokens, preparation_table


@pytest.mark.parametrize(("text", "tokens"), [("2T", 2 * 10**12), ("0.5G", 5 * 10**8), ("300B", 3 * 10**11), ("7", 7)])
def test_parse_tokens_accepts_suffixes(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "T", "two", "-1G", "nan", "infT"])
def test_parse_tokens_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=f"--tokens {text}: write a number of tokens, as in 300G or 2T"):
        parse_tokens(text)


def test_preparation_table_of_two_trillion_tokens() -> None:
    rows = {name: value for name, value, _ in preparation_table(DataConfig(), 2 * 10**12, 100, 64).rows}
    # 8.9 TB in 8,289 units of 1 GiB at 3.6 MB/s: two rounds on 6,400 cores.
    assert rows == {
        "text": "8,900.0 GB",
        "units of work": "8,289",
        "processor time": "686.7 core-hours",
        "time on 100 x 64 cores": "0.17 hours",
        "store": "4,698.0 GB",
    }
    small = preparation_table(DataConfig(vocab_size=100_000), 10**6, 1, 2).rows
    assert [value for _, value, _ in small][1] == "1" and small[4][1] == "0.0 GB"


def test_preparation_plan_counts_source_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("text")
    sources = ("--data.sources", f"text:{tmp_path}/*.txt")
    assert main(["plan", "bert_mini", "--tokens", "300G", "--hosts", "4", "--cores", "16", *sources]) == 0
    output = capsys.readouterr().out
    assert "time on 4 x 16 cores" in output and "3 files, 0 of them Parquet" in output


def test_preparation_refuses_unknown_rates_and_counts() -> None:
    with pytest.raises(ValueError, match=r"data\.tokenizer='unigram': the speed of preparation is recorded only"):
        preparation_table(DataConfig(tokenizer="unigram"), 10**9, 1, 1)
    with pytest.raises(ValueError, match="--hosts 0 and --cores 1: give 1 or more"):
        preparation_table(DataConfig(), 10**9, 0, 1)
