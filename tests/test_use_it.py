"""The README's section "Use it": every command of its first block, on a model that the quickstart's recipe trained."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.__main__ import main

REPOSITORY = Path(__file__).resolve().parent.parent
SECTION = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("\n## Use it\n")[2].partition("\n## ")[0]
COMMANDS = [shlex.split(line)[1:] for line in SECTION.split("```\n")[1].splitlines()]
SNIPPET = re.findall(r"^```\n(import bertjax.*?)^```", SECTION, re.M | re.S)[0]

SHORT = ["--training.steps", "30", "--training.eval-every", "30", "--training.eval-batches", "2", "--data.vocab-size",
         "2000", "--data.sources", "docs:numpy", "--data.workers", "1", "--optimizer.warmup-steps", "5"]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the quickstart's run, shortened, and the files that the section speaks of."""
    folder = tmp_path_factory.mktemp("use-it")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["pretrain", str(REPOSITORY / "configs" / "quickstart.py"), *SHORT]) == 0
    words = {"good": "I liked it and would read it again", "bad": "It was long, and I did not finish it"}
    lines = [f'"{words[label]}, number {number}.",{label}' for number in range(40) for label in words]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    (folder / "texts.txt").write_text("Sort an array in place.\nOpen a file.\nThe mean of all elements.\n")
    return folder


def test_every_command_runs(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(desk)
    assert [command[0] for command in COMMANDS] == ["finetune", "predict", "embed", "search", "attention", "export"]
    said = {}
    for command in COMMANDS:
        if command[0] == "export":
            pytest.importorskip("onnx")
        assert main(command) == 0
        said[command[0]] = capsys.readouterr().out
    assert re.search(r"as it stands +2 +[\d.]+ ± [\d.]+", said["finetune"])
    assert re.fullmatch(r"( *[\d.]+%  (good|bad)\n){2}", said["predict"])
    assert np.load("vectors.npy").shape == (3, 128)
    assert "Sort an array in place." in said["search"]
    assert Path("attention.html").stat().st_size > 50_000
    assert "compared with onnxruntime" in said["export"]
    namespace: dict[str, object] = {}
    exec(SNIPPET, namespace)
    (first, second), labels = eval(capsys.readouterr().out, {"Prediction": lambda **f: f}), {"good", "bad"}
    assert {first["label"], second["label"]} <= labels
    assert bertjax.load("runs/reviews/huggingface".replace("runs/", "hf:runs/")).predict("No.").label in labels
