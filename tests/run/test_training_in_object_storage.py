"""A run of two processes that share only a bucket: store, curves, checkpoints, report, export."""

import json
import signal
import time

import pytest
from generated_corpus import write_corpus
from several_processes import Group, as_keys
from tiny_runs import command, digests, write_recipe

from bertjax.__main__ import main
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.model_card import CARD_FILE
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import read_metrics
from bertjax.storage.remote import RemotePath, remote_files

pytestmark = pytest.mark.long
STEPS, SAVED_EVERY, LOGGED_EVERY = 60, 15, 5
OVERRIDES = [
    *("--training.steps", str(STEPS), "--training.checkpoint-every", str(SAVED_EVERY)),
    *("--training.log-every", str(LOGGED_EVERY), "--training.eval-every", "30", "--training.keep-last", "2"),
]


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """A run in a bucket whose two processes were killed and resumed, and an undisturbed run of one process on disk."""
    folder, bucket = tmp_path_factory.mktemp("bucket"), server.bucket()
    recipe, text = write_recipe(folder), write_corpus(folder / "corpus.txt", 300)
    RemotePath(f"{bucket}/text/corpus.txt").upload(text)

    def start(count, run, name, *overrides):
        def address(number, count, coordinator):
            return [*as_keys(number, count, coordinator), "--data.cache-dir", str(folder / f"host-{number}")]

        arguments = command(recipe, text, run, *OVERRIDES, *overrides)
        return Group(arguments, count, folder / name, devices=2 // count, address=address)

    with start(1, folder / "undisturbed", "undisturbed.log") as group:
        group.finish()
    run = RemotePath(f"{bucket}/runs/tiny")
    there = ["--data.sources", f"lines:{bucket}/text/corpus.txt", "--data.root", f"{bucket}/data"]
    saved = Checkpoints(run / "checkpoints", keep_last=2)
    with start(2, run, "killed.log", *there) as group:
        while not saved.steps():
            assert group.ended() == [None, None], group.output()
            time.sleep(0.05)
        for number in (0, 1):
            group.send(number, signal.SIGKILL)
    left = saved.steps()
    assert left and left[-1] < STEPS, "it ended before it was killed; let it train longer"
    with start(2, run, "resumed.log", *there) as group:
        group.finish()
        logs = group.logs
    return run, folder, logs


def test_killed_run_resumes_to_the_same_bits(trained):
    run, folder, logs = trained
    assert f"resuming {run} at step" in logs[0] and "did not end cleanly" in logs[0]
    assert digests(str(run)) == digests(folder / "undisturbed")
    assert Checkpoints(run / "checkpoints", keep_last=2).steps() == [STEPS - SAVED_EVERY, STEPS]
    assert {place.name for place in (run / "checkpoints").iterdir()} == {str(STEPS - SAVED_EVERY), str(STEPS)}
    assert json.loads((run / "owner.json").read_text())["ended"]


def test_remote_log_has_every_line_once(trained):
    run, folder, _ = trained
    steps, tokens = zip(*logged(run), strict=True)
    assert list(steps) == sorted(set(steps)), "a line is duplicated"
    assert set(range(LOGGED_EVERY, STEPS + 1, LOGGED_EVERY)) <= set(steps), "a line is missing"
    assert (steps[-1], tokens[-1]) == logged(folder / "undisturbed")[-1], "tokens were lost or counted twice"
    assert len(remote_files(f"{run}/tensorboard/*")) == 2, "one file per job"


def logged(run):
    records = read_metrics(run / "metrics.jsonl")
    return [(record["step"], record["train/tokens_seen"]) for record in records if "train/tokens_seen" in record]


def test_remote_run_reports_and_exports(trained, capsys):
    run, folder, logs = trained
    assert str(run / "report.html") in logs[0]
    assert (run / "report.html").read_text().count("<svg") >= 4
    names = {path.name for path in (folder / "undisturbed/huggingface").iterdir()}
    assert {place.name for place in (run / "huggingface").iterdir()} == names
    theirs = (folder / "undisturbed/huggingface/model.safetensors").read_bytes()
    assert (run / "huggingface/model.safetensors").read_bytes() == theirs
    assert main(["fill-mask", str(run), "the [MASK] is ."]) == 0
    assert main(["fill-mask", f"{run}/checkpoints/{STEPS - SAVED_EVERY}", "the [MASK] is ."]) == 0
    assert "%" in capsys.readouterr().out


def test_remote_export_replaces_only_an_export(trained):
    run, _, _ = trained
    model, target = load_run(str(run)), run / "exported"
    assert export_huggingface(model, target) == target
    (target / CARD_FILE).unlink()  # like an interrupted upload
    export_huggingface(model, target)
    before = target.sizes()
    (target / "model.safetensors").write_bytes(b"of somebody else")
    with pytest.raises(ValueError, match=f"export to {target}: its model.safetensors does not match the digest"):
        export_huggingface(model, target)
    (target / "notes.txt").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"it holds notes.txt, which does not belong to an export"):
        export_huggingface(model, target)
    assert before.keys() < target.sizes().keys()


def test_only_the_store_stays_on_the_hosts(trained):
    _, folder, _ = trained
    for number in (0, 1):
        kinds = {path.name.partition("-")[0] for path in (folder / f"host-{number}").iterdir() if path.is_dir()}
        assert kinds == {"store"}
