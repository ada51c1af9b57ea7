"""A run on google-research/bert's records from the command line: killed and resumed, evaluated, exported."""

from __future__ import annotations

import math
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from google_records import features, make_instances, serialized, write_records, write_vocabulary
from tiny_runs import RECIPE, digests, finish, stop_after

import bertjax
from bertjax.__main__ import main
from bertjax.run.telemetry import read_metrics

pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow has no wheel here"),
    pytest.mark.long,  # the suite tests the batches, in tests/input
]

STAGE = "StageConfig(start=40, sequence_length=24, max_predictions=4, global_batch_size=8)"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records of two lengths, and an uninterrupted run on both in two stages."""
    folder = tmp_path_factory.mktemp("records-run")
    texts = write_corpus(folder / "corpus.txt", 300).read_text().strip().split("\n\n")
    documents = [[line.split() for line in text.split("\n")] for text in texts]
    vocabulary = write_vocabulary(folder / "vocab.txt", documents)
    for length, most in ((32, 5), (24, 4)):
        instances = make_instances(documents, vocabulary, length, most, seed=length)
        records = [serialized(features(instance, vocabulary, length, most)) for instance in instances]
        write_records([folder / f"{length}-{part}.tfrecord" for part in range(2)], records)
    recipe = RECIPE.replace("import Config", "import StageConfig, Config").replace("steps=120", "steps=50")
    (folder / "recipe.py").write_text(recipe.replace('name="tiny",', f'name="tiny", stages=({STAGE},),'))
    finish(command(folder, folder / "whole"), folder / "whole.log")
    return folder


def command(folder: Path, run_dir: Path) -> list[str]:
    """The command line of a run on the records in a folder."""
    sources = ["--data.sources", f"tfrecord:{folder}/*.tfrecord", "--data.vocab", str(folder / "vocab.txt")]
    places = ["--data.root", str(folder / "data"), "--run-dir", str(run_dir)]
    return [sys.executable, "-m", "bertjax", "pretrain", str(folder / "recipe.py"), *sources, *places]


def evaluations(run_dir: Path) -> list[dict[str, float]]:
    return [record for record in read_metrics(run_dir / "metrics.jsonl") if "eval/mlm_loss" in record]


def test_killed_and_resumed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    arguments, log = command(whole, tmp_path / "killed"), tmp_path / "killed.log"
    assert stop_after(arguments, log, 1.5, signal.SIGKILL) is not None, "it ended before it could be killed"
    finish(arguments, log)
    assert digests(tmp_path / "killed") == digests(whole / "whole")


def test_run_learns_and_writes_all_files(whole: Path) -> None:
    log, run_dir = (whole / "whole.log").read_text(), whole / "whole"
    for length, most in ((32, 5), (24, 4)):
        assert f"records of {length} tokens and {most} predictions" in log
        assert f"rows of {length} tokens; data pipeline: tf.data" in log
    vocabulary = (run_dir / "vocab.txt").read_bytes()
    assert vocabulary == (whole / "vocab.txt").read_bytes()
    assert evaluations(run_dir)[0]["eval/mlm_loss"] < math.log(vocabulary.count(b"\n")) - 0.5
    assert (run_dir / "huggingface" / "model.safetensors").is_file()
    assert "Predictions for [MASK] in held-out sentences" in log


def test_evaluate_reproduces_the_figures_of_the_run(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(whole / "whole")]) == 0
    output = capsys.readouterr().out
    assert re.search(r"\(\d+ records of 24 tokens and 4 predictions; \d+ records of 32 tokens", output)
    measured = bertjax.evaluate(str(whole / "whole"))
    assert repr(measured) in output
    assert measured.figures["eval/mlm_loss"] == pytest.approx(
        evaluations(whole / "whole")[-1]["eval/mlm_loss"], abs=1e-4
    )


def test_changed_records_are_refused_on_resume(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command(whole, whole / "whole")[3:]
    (whole / "32-1.tfrecord").unlink()
    assert main(arguments) == 1
    assert "the data changed since this run began. Use --run-dir NEW" in capsys.readouterr().err
