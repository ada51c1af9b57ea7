"""A rebuilt step equals the run's: its figures match the log, and its parts sum to them."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from fake_devices import on_devices
from generated_corpus import write_corpus
from tiny_runs import train_alone, write_recipe

from bertjax.__main__ import main
from bertjax.config import from_dict, load_recipe
from bertjax.pipeline.replay import ReplayOfRun, _for_this_machine, replay_step
from bertjax.run.checkpoint import read_metadata, saved_steps
from bertjax.run.job import assemble
from bertjax.run.run_data import open_data
from bertjax.storage.progress import no_progress
from bertjax.text.store.format import TokenStore

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def four_devices() -> Iterator[None]:
    with on_devices(4):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on four devices with checkpoints of steps 6 and 12, which skipped a batch at step 8."""
    folder = tmp_path_factory.mktemp("replay")
    config = load_recipe(write_recipe(folder))
    sources = [write_corpus(folder / f"{name}.txt", 40, seed) for seed, name in enumerate(("first", "second"))]
    periods = {"log_every": 3, "eval_every": 100, "eval_rows": 16, "checkpoint_every": 6}
    config = replace(
        config,
        run_dir=str(folder / "run"),
        log=(),
        compilation_cache="",
        data=replace(
            config.data, sources=tuple(f"lines:{path}" for path in sources), root=str(folder / "data"), vocab_size=200
        ),
        optimizer=replace(config.optimizer, warmup_steps=2),
        training=replace(
            config.training, steps=STEPS, global_batch_size=16, skips=("8+1",), grad_accum_steps=2, **periods
        ),
    )
    train_alone(assemble(config, open_data(config, no_progress)))
    assert saved_steps(folder / "run") == [6, 12]
    return folder / "run"


@pytest.fixture(scope="module")
def replayed_run(run: Path) -> ReplayOfRun:
    """Step 10 of the run, from the checkpoint of step 6."""
    return replay_step(str(run), 10, no_progress)


def test_replayed_step_has_the_logged_figures(run: Path, replayed_run: ReplayOfRun) -> None:
    assert replayed_run.notices == () and replayed_run.replayed.start == 6
    assert replayed_run.replayed.comparison.compared == (9, 12) and not replayed_run.replayed.comparison.different


@pytest.mark.long
def test_step_before_the_first_checkpoint_is_rebuilt(run: Path) -> None:
    first = replay_step(str(run), 2, no_progress)
    assert first.replayed.start == 0 and first.replayed.comparison.compared == (1, 3)
    assert not first.replayed.comparison.different


def test_replay_uses_the_devices_that_divide_the_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Microbatches of 8 rows on 3 devices: two of them take part."""
    three = jax.devices()[:3]
    monkeypatch.setattr(jax, "devices", lambda: three)
    monkeypatch.setattr(jax, "device_count", lambda: len(three))
    saved = read_metadata(run / "checkpoints" / "6")
    _, mesh, (told,) = _for_this_machine(from_dict(saved["config"]), saved)
    assert mesh.shape["data"] == 2 and "the run had mesh {'data': 4" in told and "and here is {'data': 2" in told
    assert main(["evaluate", str(run)]) == 0


def test_rows_and_layers_sum_to_the_step(replayed_run: ReplayOfRun) -> None:
    step = replayed_run.replayed
    assert math.isclose(sum(row.share for row in step.rows), step.figures["loss"], rel_tol=1e-5)
    whole = math.sqrt(sum(norm**2 for norm in step.layers.values()))
    assert math.isclose(whole, step.figures["grad_norm"], rel_tol=1e-5)
    assert list(step.layers)[:3] == ["embeddings", "layer 0", "layer 1"] and "mlm head" in step.layers
    assert all(row.gradient_norm > 0 and set(row.losses) == {"mlm", "nsp"} for row in step.rows)
    # Triangle inequality.
    assert whole <= sum(row.gradient_norm for row in step.rows) * (1 + 1e-5)


def test_rows_match_the_batch_and_their_sources(run: Path, replayed_run: ReplayOfRun) -> None:
    step, size = replayed_run.replayed, 16
    # Step 10 has number 9 from 0, and from step 8 on a batch is skipped.
    assert step.rows_read.tolist() == [*range(10 * size, 11 * size)]
    (store,) = {path.parent for path in (run.parent / "data").rglob("manifest.json")}
    store = TokenStore.open(store)
    split, tokenizer = store.split("train"), store.tokenizer()
    seen = set()
    for number, text in enumerate(replayed_run.texts):
        row = {name: values[number] for name, values in step.batch.items()}
        ids = row["input_ids"].copy()
        used = row["mlm_weights"] > 0
        ids[row["mlm_positions"][used]] = row["mlm_labels"][used]
        ends = np.flatnonzero((ids == tokenizer.sep_id) & (row["sequence_ids"] > 0)).tolist()
        segments = ids[1 : ends[0]], ids[ends[0] + 1 : ends[1]]
        for origin, segment in zip(text.origins, segments, strict=True):
            told = re.fullmatch(r"[AB]: lines:.*/(\w+)\.txt, document (\d+), sentences (\d+) to (\d+)", origin)
            source, document, begin, end = told[1], *map(int, told.groups()[1:])
            seen.add(source)
            assert split.document_offsets[document] <= begin <= end < split.document_offsets[document + 1]
            assert (document >= split.source_edges[1]) == (source == "second")
            start, stop = split.sentence_offsets[begin], split.sentence_offsets[end + 1]
            whole = split.tokens(np.array([start]), np.array([stop - start])).tolist()
            part = segment.tolist()
            assert any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1)), origin
    assert seen == {"first", "second"}


def test_verb_prints_the_step_and_a_differing_log(
    run: Path,
    replayed_run: ReplayOfRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with monkeypatch.context() as patch:  # the fixture has rebuilt the step
        patch.setattr("bertjax.pipeline.replay.replay_step", lambda *_: replayed_run)
        assert main(["run", "replay", str(run), "--step", "10", "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert "step 10 of" in shown and "rebuilt from the checkpoint of step 6" in shown
    assert "2 record(s) of the log, at steps 9 to 12: every training figure is the same to its last digit" in shown
    assert shown.count("% of the loss; mlm ") == 2 and "layer 1" in shown and "B: lines:" in shown
    log = copy / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (record,) = [line for line in lines if line["step"] == 12 and "train/loss" in line]
    record["train/loss"] = float(np.nextafter(np.float32(record["train/loss"]), np.float32(9)))
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["run", "replay", str(copy), "--step", "12", "--rows", "0"]) == 3
    shown = capsys.readouterr().out
    assert "2 record(s) of the log, at steps 9 to 12: 1 DIFFER" in shown and "step 12  train/loss: logged" in shown


@pytest.mark.parametrize("step", [0, STEPS + 1])
def test_step_outside_the_run_is_refused(step: int, run: Path) -> None:
    with pytest.raises(ValueError, match=f"--step {step}: .* has steps 1 to 12"):
        replay_step(str(run), step, no_progress)


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run there; give a run's directory"):
        replay_step(str(tmp_path), 1, no_progress)
