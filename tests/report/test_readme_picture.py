"""The README's picture and the output below its commands come from the same run of the current quickstart."""

import re

import pytest
from readme_picture import PICTURES, REPOSITORY, read_figures, recipe_digest


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
@pytest.mark.parametrize("picture", ["report_light.png", "report_dark.png"])
def test_picture_matches_readme_and_recipe(page, picture):
    figures = read_figures(PICTURES / picture)
    assert figures.pop("recipe") == recipe_digest(), (
        "the recipe changed: train it and run tests/report/readme_picture.py"
    )
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    shown = dict(re.findall(r"^  (MLM \w+) +([\d.]+%?)", text, re.M))
    assert shown == {
        "MLM loss": f"{figures['eval/mlm_loss']:.3f}",
        "MLM accuracy": f"{figures['eval/mlm_accuracy']:.1%}",
    }
