"""The report page of a fine-tuning run: curves and examples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from small_tasks import load_content, small_config, small_start

from bertjax.finetune.task_report import curve_charts, render


def test_curve_charts_show_only_shares_and_losses() -> None:
    """SQuAD 2.0's figures include numbers of questions and thresholds."""
    names = ("span_loss", "f1", "total", "best_f1_thresh")
    charts = curve_charts({f"eval/{name}": ([1, 2], [0.5, 0.6]) for name in names})
    assert [re.search('aria-label="(.*?)"', chart)[1] for chart in charts] == ["Loss", "F1"]


def test_report_does_not_show_distances_as_percent(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        rows = [{"text": text, "label": label} for text, label in (("the cat", 0), ("the dog", 1))]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = small_start(tmp_path / "start")
    content = load_content(small_config("regression", start, tmp_path, tmp_path / "run"), start)
    figures = {"eval/spearman": 1.0, "eval/pearson": 1.0}
    page = render("", "", content, figures, {"dev": np.array([[0.2], [0.3]], np.float32)}, {}, {}, {})
    guesses = re.findall(r'<span class="guess.*?</span>', page)
    assert len(guesses) == 2 and not any("%" in one for one in guesses)
