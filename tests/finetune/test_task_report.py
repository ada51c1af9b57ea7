"""The page of a fine-tuning run: what its curves and its examples say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from small_tasks import content_of, small_config, small_start

from bertjax.finetune.task_report import curve_charts, render


def test_curves_are_of_shares_and_losses() -> None:
    """SQuAD 2.0 has numbers of questions and thresholds among its figures."""
    names = ("span_loss", "f1", "total", "best_f1_thresh")
    charts = curve_charts({f"eval/{name}": ([1, 2], [0.5, 0.6]) for name in names})
    assert [re.search('aria-label="(.*?)"', chart)[1] for chart in charts] == ["Loss", "F1"]


def test_a_distance_is_not_shown_as_a_share(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        rows = [{"text": text, "label": label} for text, label in (("the cat", 0), ("the dog", 1))]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = small_start(tmp_path / "start")
    content = content_of(small_config("regression", start, tmp_path, tmp_path / "run"), start)
    figures = {"eval/spearman": 1.0, "eval/pearson": 1.0}
    page = render("", "", content, figures, {"dev": np.array([[0.2], [0.3]], np.float32)}, {}, {}, {})
    shown = re.findall(r'<span class="guess.*?</span>', page)
    assert len(shown) == 2 and not any("%" in one for one in shown)
