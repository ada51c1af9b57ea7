"""The documented commands for using a model run on a small quickstart model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from page_files import CHAPTERS, write_bytes, write_task_files

import bertjax
from bertjax.__main__ import main

pytestmark = pytest.mark.run

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
DETAILS = (REPOSITORY / "bertjax" / "finetune" / "README.md").read_text(encoding="utf-8")


def fences(page: str, heading: str) -> list[str]:
    """The code blocks below a heading, with continued lines joined."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [fence.replace("\\\n", " ") for fence in re.findall(r"^```\w*\n(.*?)^```", section, re.M | re.S)]


def commands(page: str, heading: str) -> list[list[str]]:
    """The words of each bertjax command below a heading, beginning with the verb."""
    lines = "".join(fences(page, heading)).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("bertjax ")]


def snippets(page: str, heading: str) -> list[str]:
    """The Python code blocks below a heading."""
    return [fence for fence in fences(page, heading) if fence.startswith("import ")]


# The quickstart's first command on part of one novel, with a small network that compiles quickly.
SHORT = ["--training.steps", "4", "--training.eval-every", "4", "--training.eval-rows", "16",
         "--data.vocab-size", "900", "--data.sources", "text:novel/*.txt", "--data.held-out", "0.3",
         "--data.workers", "1",
         "--model.hidden-size", "16", "--model.intermediate-size", "32", "--model.num-hidden-layers", "1",
         "--model.num-attention-heads", "2", "--execution.scan-unroll", "1", "--optimizer.warmup-steps", "1",
         "--training.global-batch-size", "8"]  # fmt: skip


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a shortened quickstart run and the files that the commands use."""
    folder = tmp_path_factory.mktemp("use-it")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, chapter in enumerate(CHAPTERS):
            write_bytes(Path(f"novel/{number}.txt"), chapter.encode())
        assert main([*commands(README, "Try it")[0], *SHORT]) == 0
    write_task_files(folder)
    return folder


@pytest.mark.long  # takes a minute of CPU time; each verb has its own tests, and test_readme.py parses the commands
def test_documented_commands_run_in_order(
    user_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(user_folder)
    tried, used = commands(README, "Try it"), commands(README, "Use the model")
    assert [command[0] for command in tried] == ["pretrain", "fill-mask", "evaluate"]
    assert [command[0] for command in used] == ["finetune", "embed", "search", "attention", "export"]
    # Commands on both pages run once; the feature-based variant has its own test.
    again = [command for command in commands(DETAILS, "Fine-tune and predict") if "--model.features" not in command]
    assert again[0] == used[0] and [command[0] for command in again] == ["finetune", "predict"]
    (snippet,), (detailed,) = snippets(README, "Use the model"), snippets(DETAILS, "Fine-tune and predict")
    assert len(snippet.splitlines()) == 6
    outputs = {}
    for command in (*tried[1:], *used, again[1]):
        if command[0] == "export":
            pytest.importorskip("onnx")
        assert main(command) == 0
        outputs[command[0]] = capsys.readouterr().out
    assert re.search(r"default +1 +[\d.]+ ", outputs["finetune"])
    assert re.fullmatch(r"( *[\d.]+%  (good|bad)\n){2}", outputs["predict"])
    assert np.load("vectors.npy").shape == (3, 16)
    assert "Sort an array in place." in outputs["search"]
    assert Path("attention.html").stat().st_size > 20_000
    assert "compared with onnxruntime" in outputs["export"]
    namespace: dict[str, object] = {}
    exec(snippet, namespace)
    guesses, shape, predictions = capsys.readouterr().out.splitlines()
    assert guesses.count("probability=") == 3 and shape == "(2, 16)"
    exec(detailed, namespace)
    assert capsys.readouterr().out.splitlines() == [predictions]
    (first, second), labels = eval(predictions, {"Prediction": lambda **f: f}), {"good", "bad"}
    assert {first["label"], second["label"]} <= labels
    assert bertjax.load("runs/reviews/huggingface".replace("runs/", "hf:runs/")).predict("No.").label in labels


def write_collection(folder: Path) -> None:
    """Write a corpus, queries and judgements in BEIR's format, as single files and as the folder of a data set."""
    subjects = ["arrays", "files", "means", "sums", "norms", "masks", "views", "copies"]
    for name, texts in {
        "corpus": [f"How {subject} are {verb}, and why." for subject in subjects for verb in ("made", "read", "kept")],
        "queries": [f"{subject} {verb}" for subject in subjects for verb in ("made", "read", "kept")],
    }.items():
        lines = [json.dumps({"_id": f"{name[0]}{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for name, numbers in {"train": range(16), "qrels": range(16, 24)}.items():
        judged = [f"q{n}\tc{n}\t1" for n in numbers]
        (folder / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    data_set = folder / "beir" / "scifact"
    (data_set / "qrels").mkdir(parents=True)
    for name, copy in {
        "corpus.jsonl": "corpus.jsonl",
        "queries.jsonl": "queries.jsonl",
        "qrels.tsv": "qrels/test.tsv",
    }.items():
        shutil.copy(folder / name, data_set / copy)


@pytest.mark.long  # each verb has its own tests; this tests the documented sequence
def test_documented_search_commands_run(
    user_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(user_folder)
    write_collection(user_folder)
    documented = commands(DETAILS, "Search")
    assert [command[0] for command in documented] == ["search", "search", "finetune", "finetune", "search", "search"]
    outputs = []
    for command in documented:
        assert main(command) == 0
        outputs.append(capsys.readouterr().out)
    for printed in (outputs[0], *outputs[-2:]):
        assert "nDCG@10" in printed and "recall@100" in printed and "MRR@10" in printed
    assert "both, reranked" in outputs[-2] and "both" in outputs[-1] and "reranked" not in outputs[-1]


@pytest.mark.long
def test_feature_based_model_is_trained_and_used(
    user_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(user_folder)
    shutil.copytree("runs/quickstart/huggingface", "bert-base-cased")
    Path("conll2003").mkdir()
    lines = ["Ada B-PER", "opened O", "an O", "array O", "in O", "London B-LOC", ". O", ""]
    for name, count in {"eng.train": 16, "eng.testa": 4}.items():
        (Path("conll2003") / name).write_text("\n".join(lines * count))
    (command,) = (one for one in commands(DETAILS, "Fine-tune and predict") if "--model.features" in one)
    of_base, here = ["-4", "-3", "-2", "-1", "--model.lstm-size", "768"], ["-2", "-1", "--model.lstm-size", "8"]
    place = command.index(of_base[0])
    assert command[place - 1 :][: len(of_base) + 1] == ["--model.features", *of_base]
    command[place : place + len(of_base)] = here  # of two layers
    command[command.index("--epochs") + 1] = "1"
    assert main([*command, "--run-dir", "runs/features"]) == 0
    outputs = capsys.readouterr().out
    printed = dict(re.findall(r"^  (best run|report|predictions) +(.*)$", outputs, re.M))
    assert printed["best run"] == "runs/features" and printed["predictions"] == "runs/features/predictions"
    assert Path(printed["report"]).is_file()
    assert "Hugging Face no export: model.features=(-2, -1), model.lstm_size=8: transformers has no" in outputs
    assert "--to onnx" not in outputs
    assert not Path("runs/features/huggingface").exists()
    (following,) = re.findall(r"bertjax (predict runs/features '.*')", outputs)
    assert shlex.split(following)[2:] == ["Ada opened an array in London ."], "a sentence of the development set"
    assert main(shlex.split(following)) == 0
    documented = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert documented == ["Ada", "opened", "an", "array", "in", "London", "."]
    assert main(["export", "runs/features"]) == 1
    assert "transformers has no such network" in capsys.readouterr().err
