"""Reference curves are made from seeded runs and compared only with runs of the same kind; damage is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bertjax.__main__ import main
from bertjax.config import Config, MeshConfig, StageConfig, TrainingConfig, to_dict
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_metadata
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.run.reference_curve import (
    FOLDER,
    Curve,
    Reference,
    make_reference,
    read_reference,
    reference_for,
    references_in,
    run_digest,
    write_reference,
)
from bertjax.run.telemetry import METRICS_FILE

LOSS = "eval/mlm_loss"


def metadata(config: Config, **changes: str) -> dict:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    fingerprints = {"tokenizer_fingerprint": "ab", "data_fingerprint": "text", "teacher_digest": ""} | changes
    return run_metadata(to_dict(config), mesh=mesh, **fingerprints)


def with_value(config: Config, key: str, value: Any) -> Config:
    part, _, name = key.rpartition(".")
    return replace(config, **({part: replace(getattr(config, part), **{name: value})} if part else {name: value}))


BASE = Config(training=TrainingConfig(steps=100))
SHORTER = StageConfig(start=50, sequence_length=64)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("training.seed", 7, True),
        ("run_dir", "elsewhere", True),
        ("training.eval_every", 5, True),
        ("training.log_every", 5, True),
        ("mesh.data", 4, True),
        ("data.sources", ("text:other/path.txt",), True),  # the fingerprint identifies the text
        ("stages", (replace(SHORTER, grad_accum_steps=4),), True),
        ("stages", (replace(SHORTER, sequence_length=32),), False),
        ("training.steps", 200, False),
        ("training.eval_rows", 64, False),
        ("training.global_batch_size", 8, False),
        ("execution.dtype", "bfloat16", False),
        ("optimizer.learning_rate", 2e-4, False),
        ("data.masking", "words", False),
        ("model.hidden_dropout_prob", 0.0, False),
    ],
)
def test_run_digest_covers_what_affects_the_curve(key: str, value: Any, same: bool) -> None:
    base = with_value(BASE, key, (SHORTER,)) if key == "stages" else BASE
    assert (run_digest(metadata(with_value(BASE, key, value))) == run_digest(metadata(base))) is same


def test_run_digest_covers_text_vocabulary_and_teacher() -> None:
    for name in ("tokenizer_fingerprint", "data_fingerprint", "teacher_digest"):
        assert run_digest(metadata(BASE, **{name: "other"})) != run_digest(metadata(BASE))
    assert run_digest(metadata(with_value(BASE, "init_from", "hf:x"))) == "", "a run with init_from has no reference"


def write_run(directory: Path, seed: int, losses: dict[int, float], *, at: int = 100, **fields: Any) -> Path:
    config = replace(BASE, training=replace(BASE.training, seed=seed, **fields))
    with Checkpoints(directory / DIRECTORY, keep_last=1) as checkpoints:
        checkpoints.save(at, {"params": {"kernel": jnp.ones(3)}}, metadata(config))
    lines = [json.dumps({"step": step, "time": "", LOSS: loss, "train/loss": 1.0}) for step, loss in losses.items()]
    (directory / METRICS_FILE).write_text("".join(line + "\n" for line in lines))
    return directory


def test_make_reference_computes_mean_and_spread(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", 0, {50: 5.0, 75: 9.0, 100: 4.0}),
        write_run(tmp_path / "b", 1, {50: 5.2, 100: 4.2}),
        write_run(tmp_path / "c", 2, {50: 5.4, 100: 4.1}),
    ]
    reference = make_reference("mine", "bertjax pretrain mine", runs)
    curve = reference.curves[LOSS]
    assert curve.steps == (50, 100) and reference.seeds == (0, 1, 2) and set(reference.curves) == {LOSS}
    assert curve.mean == pytest.approx((5.2, 4.1)) and curve.spread == pytest.approx((0.2, 0.1))
    write_reference(tmp_path / "mine.json", reference)
    assert read_reference(tmp_path / "mine.json") == reference
    assert reference_for(read_metadata(runs[1]), tmp_path) == reference
    assert reference_for(metadata(with_value(BASE, "optimizer.eps", 1e-8)), tmp_path) is None
    with pytest.raises(ValueError, match=r"seeds \[0\]: a spread needs 2 seeds or more"):
        make_reference("mine", "", runs[:1])
    with pytest.raises(ValueError, match=r"other: not the same kind of run as .*a; give runs of one recipe and text"):
        make_reference("mine", "", [runs[0], write_run(tmp_path / "other", 3, {100: 1.0}, global_batch_size=8)])
    with pytest.raises(ValueError, match=r"early: the run has 60 of 100 steps; finish it first"):
        make_reference("mine", "", [runs[0], write_run(tmp_path / "early", 3, {50: 1.0}, at=60)])


def test_remark_only_between_measured_steps() -> None:
    shown = [("loss", "mlm_loss", "{:.3f}"), ("mlm", "mlm_accuracy", "{:.1%}")]
    curve = Curve((1_000, 2_000), (5.0, 4.0), (0.04, 0.06))
    remark = Reference("r", "", "0" * 64, (0, 1), {}, "", {LOSS: curve, "eval/mlm_accuracy": curve}).remark(shown)
    assert remark(1_500, {LOSS: 4.6}) == "  reference loss 4.50 ± 0.05 (on track)"
    assert remark(1_500, {LOSS: 4.66}) == "  reference loss 4.50 ± 0.05 (off by +0.16)"
    assert remark(2_000, {LOSS: 3.8}) == "  reference loss 4.00 ± 0.06 (off by -0.20)"
    assert remark(999, {LOSS: 4.6}) == remark(2_001, {LOSS: 4.6}) == remark(1_500, {"eval/nsp_loss": 4.6}) == ""


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("seeds", [1], "seeds is a list of 1"),
        ("digest", "ab", "digest is"),
        ("curves", {LOSS: {"steps": [2, 1], "mean": [1.0, 1.0], "spread": [0.0, 0.0]}}, "steps must increase"),
        ("curves", {LOSS: {"steps": [1, 2], "mean": [1.0], "spread": [0.0, 0.0]}}, "each with a mean and a spread"),
    ],
)
def test_damaged_reference_is_refused(part: str, value: Any, message: str, tmp_path: Path) -> None:
    curve = Curve((1, 2), (2.0, 1.0), (0.1, 0.1))
    reference = Reference("x", "bertjax pretrain x", "0" * 64, (0, 1), {}, "cpu", {LOSS: curve})
    write_reference(tmp_path / "x.json", reference)
    assert read_reference(tmp_path / "x.json") == reference
    (tmp_path / "x.json").write_text(json.dumps(json.loads((tmp_path / "x.json").read_text()) | {part: value}))
    with pytest.raises(ValueError, match=message):
        read_reference(tmp_path / "x.json")


def test_package_references_are_valid() -> None:
    references = references_in(FOLDER)
    if not references:
        pytest.skip("the package has no reference yet")
    assert len({one.digest for one in references}) == len(references)
    for one in references:
        assert one.curves[LOSS].steps[-1] > 0 and one.command.startswith("bertjax pretrain ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "1"], "--seeds 1: give two seeds or more, each once"),
        (["--seeds", "1", "1"], "--seeds 1 1: give two seeds or more, each once"),
        (["--seeds", "0", "1", "--output", "x.txt"], "--output x.txt: name a .json file in an existing folder"),
        (["--seeds", "0", "1", "--training.budget", "5m"], "training.budget='5m': runs of a reference have one length"),
    ],
)
def test_compare_refuses_settings_without_a_reference(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "quickstart", *words]) == 1
    assert message in capsys.readouterr().err
