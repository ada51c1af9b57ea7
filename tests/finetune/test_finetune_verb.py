"""`bertjax finetune`: resuming after kills, several seeds and settings, all of GLUE, bad arguments."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from several_processes import Group, as_words, child_environment
from small_tasks import sentences, small_start, write_classes, write_questions
from tiny_runs import digests, finish, stop_held

import bertjax
from bertjax.__main__ import main
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.sources import as_run, write_run

pytestmark = pytest.mark.usefixtures("one_device")

FEW = ["--data.sequence-length", "32", "--optimizer.learning-rate", "2e-3", "--compilation-cache", ""]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to start from."""
    return small_run(tmp_path_factory.mktemp("encoder"))


def small_run(folder: Path, **fields: int) -> Path:
    start = small_start(folder / "model", **fields)
    whole = ForeignModel("hf:nowhere", start.model, start.tokenizer, start.params, (), ())
    return write_run(as_run(whole, folder / "run"))


def finetune_arguments(encoder: Path, data: Path, run_dir: Path, *more: str, task: str = "classification") -> list[str]:
    return ["finetune", task, "--init-from", str(encoder), "--data", str(data), "--run-dir", str(run_dir), *more, *FEW]


@pytest.mark.long  # the suite has kills at random moments in tests/chaos
def test_killed_run_resumes_bit_identically(encoder: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", train=160)
    more = ["--epochs", "8", "--batch-size", "16", "--training.checkpoint-every", "7", "--patience", "9"]
    program = [sys.executable, "-m", "bertjax"]
    finish([*program, *finetune_arguments(encoder, data, tmp_path / "whole", *more)], tmp_path / "whole.log")
    killed = [*program, *finetune_arguments(encoder, data, tmp_path / "killed", *more)]
    for signal_sent, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 75)):
        ended = stop_held(killed, tmp_path / "killed.log", signal_sent, "held out", 60, tmp_path / "go")
        assert ended == code
    finish(killed, tmp_path / "killed.log")
    assert "resuming" in (tmp_path / "killed.log").read_text()
    assert digests(tmp_path / "killed" / "checkpoints") == digests(tmp_path / "whole" / "checkpoints")
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")  # the best
    results = [json.loads((tmp_path / name / "results.json").read_text())["result"] for name in ("whole", "killed")]
    assert results[0]["figures"] == results[1]["figures"]
    predictions = [(tmp_path / name / "predictions" / "dev.tsv").read_bytes() for name in ("whole", "killed")]
    assert predictions[0] == predictions[1]


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs a C library that can keep what is freed")
def test_steps_reuse_pages_of_earlier_steps(tmp_path: Path) -> None:
    wide = small_run(tmp_path / "wide", intermediate_size=4096)
    data = write_classes(tmp_path / "data", train=512, dev=16)
    command = finetune_arguments(wide, data, tmp_path / "run", "--epochs", "1", "--batch-size", "64")
    script = Path(__file__).parent / "page_faults.py"
    environment = os.environ | child_environment(devices=1)
    ended = subprocess.run(
        [sys.executable, str(script), *command], capture_output=True, text=True, env=environment, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert counts["pages"] > 10_000, "too small to measure"
    assert min(counts["faults"]) < counts["pages"] / 10, counts


@pytest.mark.long  # the suite has a run of two processes in tests/run/test_hosts.py
def test_every_process_reads_a_foreign_model(encoder: Path, tmp_path: Path) -> None:
    """Each process must use its own devices: the first device belongs to another process."""
    assert main(["export", str(encoder), "--to", "huggingface", "--output", str(tmp_path / "hf")]) == 0
    script = [sys.executable, Path(__file__).with_name("start_on_hosts.py"), f"hf:{tmp_path / 'hf'}"]

    with Group(script, 2, tmp_path / "read.log", address=as_words) as group:
        group.finish(120)
    (match,) = {re.search(r"^read \['(\w+)', '\1'\]$", log, re.M)[0] for log in group.logs}
    assert match


@pytest.mark.long
def test_two_processes_match_one(encoder: Path, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", train=48, dev=16)
    for count, name in ((1, "one"), (2, "two")):
        command = finetune_arguments(encoder, data, tmp_path / name, "--epochs", "2", "--batch-size", "16")
        log = tmp_path / f"{name}.log"
        with Group([sys.executable, "-m", "bertjax", *command], count, log, devices=2 // count) as group:
            group.finish()
    assert digests(tmp_path / "two") == digests(tmp_path / "one")
    predictions = [(tmp_path / name / "predictions" / "dev.tsv").read_bytes() for name in ("one", "two")]
    assert predictions[0] == predictions[1]
    assert (tmp_path / "two" / "huggingface" / "model.safetensors").is_file()
    assert "best run" in group.logs[0] and "best run" not in group.logs[1]


@pytest.mark.long
def test_processes_with_different_test_sets_are_rejected(encoder: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for count, folder in enumerate(folders, 1):
        data = write_classes(folder / "data", train=48, dev=16)
        (data / "test.tsv").write_text("text\n" + "the red cat .\n" * count)
    command = [sys.executable, "-m", "bertjax", *finetune_arguments(encoder, Path("data"), tmp_path / "run")]
    with Group(command, 2, tmp_path / "log", folders=folders) as group:
        assert group.wait() == [1, 1]
    assert "process 1 (" in group.logs[1] and "do not have the same data of the task" in group.logs[1], group.output()
    assert not (tmp_path / "run").exists()


def test_finetune_tabulates_seeds_and_exports_the_best(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train from Python; the verb with the same settings then finds the runs finished."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    data = write_classes(tmp_path / "data", train=16, dev=16)
    steps: list[int] = []

    class Counter(bertjax.Callback):
        def after_step(self, step: int) -> None:
            steps.append(step)

    keys = {
        "data.sequence_length": 32,
        "optimizer.learning_rate": 2e-3,
        "optimizer.beta2": 0.98,
        "compilation_cache": "",
    }
    options = bertjax.FinetuneOptions(
        data=data,
        epochs=[1],
        batch_sizes=[16],
        seeds=2,
        run_dir=tmp_path / "runs",
        keys=keys,
    )
    result = bertjax.finetune("classification", encoder, options, callbacks=[Counter()])
    assert Path(result.directory).parent == tmp_path / "runs" and "eval/accuracy" in result.figures
    assert len(steps) == 2 * result.best.step
    assert bertjax.load(result.directory).config.num_labels == 3
    assert "best run" in str(result) and "Hugging Face" in str(result)
    assert "&lt;svg" in result._repr_html_() and "&lt;table" in result._repr_html_()

    capsys.readouterr()
    more = ["--seeds", "2", "--epochs", "1", "--batch-size", "16", "--optimizer.beta2", "0.98"]
    arguments = finetune_arguments(encoder, data, tmp_path / "runs", *more)
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("finished before") == 2
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["huggingface", "seed-0", "seed-1"]
    assert re.search(r"^  default +2 +[\d.]+ ± [\d.]+ ", printed, re.M)
    assert re.search(r"best run +\S*/runs/seed-[01]\n", printed)
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "runs" / "huggingface")
    assert exported.config.id2label == {0: "blue", 1: "green", 2: "red"}
    assert "config:\n" not in printed
    assert main([*arguments, "--show-config"]) == 0
    again = capsys.readouterr().out
    assert again.count("finished before") == 2 and "\nconfig:\n  " in again and "\n  task.name: " in again
    assert main(["evaluate", str(tmp_path / "runs" / "seed-0")]) == 1
    error = capsys.readouterr().err
    assert "was fine-tuned; its figures are in" in error and "with --test FILE: it trains nothing again" in error


@pytest.mark.long  # the suite has the threshold in test_answers.py and tests/embed/test_predict.py
def test_null_threshold_changes_finished_run(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_questions(tmp_path / "data", train=32, dev=16)
    for name in ("train", "dev"):
        document = json.loads((tmp_path / "data" / f"{name}-v1.1.json").read_text())
        for paragraph in document["data"][0]["paragraphs"][::2]:
            paragraph["qas"][0] |= {"is_impossible": True, "answers": []}
        (tmp_path / "data" / f"{name}-v2.0.json").write_text(json.dumps(document))
    more = ["--epochs", "1", "--batch-size", "16", "--task.max-query", "16"]
    arguments = finetune_arguments(encoder, tmp_path / "data", tmp_path / "run", *more, task="squad2")
    assert main(arguments) == 0
    head, row = re.search(r"^( *setting .*)\n(.*)$", capsys.readouterr().out, re.M).groups()
    assert "HasAns_f1" in head and "best_f1" in head and "total" not in head and "thresh" not in head
    assert all(0 <= float(figure) <= 100 for figure in row.split()[4:])
    logged, places = (tmp_path / "run" / "metrics.jsonl").read_bytes(), tmp_path / "run" / "predictions" / "dev"

    def most_answers() -> int:
        return max(map(len, json.loads((places / "nbest_predictions.json").read_text()).values()))

    assert most_answers() > 3
    assert main([*arguments, "--task.null-threshold", "-1000", "--task.n-best", "2"]) == 0
    printed = capsys.readouterr().out
    assert "finished before, with other evaluation data or settings" in printed and "NoAns_exact 1.0000" in printed
    assert set(json.loads((places / "predictions.json").read_text()).values()) == {""}
    assert most_answers() <= 3  # including the empty answer, which is always kept
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == logged
    command = ["predict", str(tmp_path / "run"), "what colour is the cat ?", "the red cat saw a dog ."]
    assert main([*command, "--null-threshold", "1000"]) == main([*command, "--null-threshold", "-1000"]) == 0
    answered, not_answered = capsys.readouterr().out.splitlines()
    assert "does not answer" in not_answered and "does not answer" not in answered


@pytest.mark.long
def test_finetune_runs_all_glue_tasks(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, head, row in (
        ("CoLA", "", lambda n, text: f"gj04\t{int('red' in text)}\t\t{text}"),
        ("RTE", "index\tsentence1\tsentence2\tlabel\n",
         lambda n, text: f"{n}\t{text}\tthe red cat .\t{'' if 'red' in text else 'not_'}entailment"),
    ):  # fmt: skip
        (tmp_path / folder).mkdir()
        for seed, (split, count) in enumerate({"train": 48, "dev": 16}.items()):
            lines = [row(number, text) for number, text in enumerate(sentences(count, seed))]
            (tmp_path / folder / f"{split}.tsv").write_text(head + "\n".join(lines) + "\n")
    test = "index\tsentence\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(sentences(5, 9)))
    (tmp_path / "CoLA" / "test.tsv").write_text(test)
    more = ["--epochs", "2", "--batch-size", "16"]
    assert main(finetune_arguments(encoder, tmp_path, tmp_path / "runs", *more, task="glue")) == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("GLUE, development sets") :]
    assert re.search(r"cola +matthews +-?[\d.]+ +56.3 +52.1", table) and re.search(
        r"rte +accuracy +[\d.]+ +69.3", table
    )
    submission = (tmp_path / "runs" / "cola" / "predictions" / "CoLA.tsv").read_text().splitlines()
    assert submission[0] == "index\tprediction" and [line[0] for line in submission[1:]] == list("01234")


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("sst", [], "task 'sst' is not known; did you mean sst2"),
        (
            "classification",
            ["--text", "a", "b", "c"],
            r"task.text=\('a', .*\): classification needs one or two columns of text",
        ),
        ("classification", ["--label", "stars"], "train.tsv:1: no column 'stars'; there are 'text', 'label'"),
        ("classification", ["--seeds", "0"], "--seeds 0: give 1 or more"),
        ("classification", ["--training.budget", "2h"], "training.budget='2h': fine-tuning ends after its epochs"),
        ("classification", ["--balanced", "--task.class-weights", "1", "2", "3"], "give one of them"),
        ("classification", ["--task.class-weights", "1", "2"], "give one, 0 or more, for each label: blue, green, red"),
        ("classification", ["--labels", "red", "blue"], r"train.tsv:\d+: label 'green' is not one of red, blue"),
        ("classification", ["--task.examples", "1000"], "task.examples=1,000: the training set has 96"),
        (
            "classification",
            ["--max-length", "8", "--strict-length"],
            r"train.tsv:\d+: \d+ tokens, special ones included",
        ),
        ("classification", ["--max-length", "4000"], "is beyond the model's positions"),
        ("classification", ["--max-length", "0"], "max length 0: it must be at least 8 tokens"),
        ("classification", ["--layer-decay", "0"], r"\(--layer-decay\) is 0.0; give a number above 0"),
        ("classification", ["--grid", "--learning-rate", "1e-5"], "--grid and --learning-rate 1e-05: give one of them"),
        (
            "classification",
            ["--learning-rate", "1e-5", "--optimizer.learning-rate", "1e-4"],
            "--learning-rate and optimizer.learning_rate=0.0001 set the same; give one of them",
        ),
        (
            "classification",
            ["--grid", "--optimizer.learning-rate", "2e-5"],
            "--grid and optimizer.learning_rate=2e-05 set the same; give one of them",
        ),
        (
            "classification",
            ["--max-length", "64", "--data.sequence-length", "128"],
            "--max-length and data.sequence_length=128 set the same; give one of them",
        ),
        (
            "pairs",
            ["--text", "text", "label", "--training.grad-accum-steps", "2"],
            "the loss compares all pairs of a batch",
        ),
    ],
)
def test_bad_options_are_rejected(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, more: list[str], message: str
) -> None:
    data = write_classes(tmp_path / "data")
    overrides = [] if "--max-length" in more else FEW[:2]
    assert main(["finetune", task, "--init-from", str(encoder), "--data", str(data), "--run-dir", str(tmp_path / "run"),
                 *more, *overrides]) == 1  # fmt: skip
    error = capsys.readouterr().err
    assert error.startswith("bertjax finetune: ") and re.search(message, error), error
    assert not (tmp_path / "run").exists()


def test_missing_layers_are_rejected_before_reading_data(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for task, layers, message in (
        ("ner", ["-1", "-14"], "model.features=(-1, -14): the model has no layer -14; choose from 1 to"),
        ("classification", ["-1"], "model.head='sequence': only the head 'tokens' supports them"),
    ):
        nowhere = ["--data", str(tmp_path / "none"), "--run-dir", str(tmp_path / "run")]
        assert main(["finetune", task, "--init-from", str(encoder), *nowhere, "--model.features", *layers]) == 1
        assert message in capsys.readouterr().err


def test_missing_inputs_are_named(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task, source, data, message in (
        ("rte", encoder, [], "rte: no data; name the folder of its files (--data), or its training file (--train)"),
        ("rte", tmp_path / "none", ["--data", str(tmp_path)], "none: no such directory"),
        ("rte", encoder, ["--data", str(tmp_path)], f"{tmp_path}: no train set"),
        ("glue", encoder, ["--data", str(tmp_path)], "has no task of GLUE with a training and a development set"),
    ):
        assert main(["finetune", task, "--init-from", str(source), *data, "--run-dir", str(tmp_path / "run")]) == 1
        assert message in capsys.readouterr().err
