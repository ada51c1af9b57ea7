"""Reference curves: made of seeded runs, told to runs of the same kind only; and a tiny recipe's own curve is not bent.

`BERTJAX_UPDATE_GOLDEN=1` makes the tiny recipe's reference anew, of six seeds.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bertjax.__main__ import main
from bertjax.config import (
    Config,
    DataConfig,
    ExecutionConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
    to_dict,
)
from bertjax.parallel.mesh import make_mesh
from bertjax.pipeline import pretraining
from bertjax.pipeline.pretraining import pretrain
from bertjax.pipeline.reference_runs import make_reference
from bertjax.training.checkpoint import DIRECTORY, Checkpoints, read_metadata
from bertjax.training.checkpoint_metadata import run_metadata
from bertjax.training.reference_curve import (
    Curve,
    Reference,
    digest_of,
    read_reference,
    reference_for,
    reference_of,
    references_in,
    write_reference,
)
from bertjax.training.telemetry import METRICS_FILE, curves, read_metrics

GOLDEN = Path(__file__).with_name("tiny_curve.golden.json")
SPREADS = 5.0  # of six runs: a seventh is farther away once in some hundred evaluations
LOSS = "eval/mlm_loss"


def write_text(path: Path) -> Path:
    """Sentences in which a noun decides its adjective and its verb: 10 of each, and nothing else."""
    rng, letters = random.Random(0), "bdfgklmnprstvz"
    words = sorted({f"{a}{v}{b}" for a in letters for b in letters for v in "aeiou"})
    random.Random(1).shuffle(words)
    nouns = {words[n]: (words[n + 10], words[n + 20]) for n in range(10)}

    def sentence() -> str:
        one, two = rng.choice([*nouns]), rng.choice([*nouns])
        return f"the {nouns[one][0]} {one} {nouns[one][1]} the {nouns[two][0]} {two} ."

    texts = ["\n".join(sentence() for _ in range(rng.randint(4, 9))) for _ in range(300)]
    path.write_text("\n\n".join(texts) + "\n")
    return path


def tiny(folder: Path) -> Config:
    """It learns the sentences in 240 steps, which take some seconds."""
    return Config(
        name="tiny_curve",
        run_dir=str(folder / "run"),
        compilation_cache="",
        model=ModelConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, initializer_range=0.1,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ),
        execution=ExecutionConfig(logits_chunk=32),
        data=DataConfig(
            sources=(f"lines:{write_text(folder / 'text.txt')}",), root=str(folder / "data"), vocab_size=90,
            sequence_length=32, max_predictions=5, held_out=0.1, workers=1,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=24),
        training=TrainingConfig(
            steps=240, global_batch_size=16, log_every=60, eval_every=60, eval_rows=128, checkpoint_every=240,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    if os.environ.get("BERTJAX_UPDATE_GOLDEN"):
        command = "BERTJAX_UPDATE_GOLDEN=1 python -m pytest tests/training/test_reference_curve.py"
        make_reference(tiny(tmp_path_factory.mktemp("seeds")), "tiny_curve", command, range(1, 7), GOLDEN)
    return read_reference(GOLDEN)


@pytest.fixture(scope="module")
def trained(golden: Reference, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run of a seed that the reference does not have, and what it said."""
    config, told = tiny(tmp_path_factory.mktemp("trained")), []

    def found(metadata: dict) -> Reference:
        return replace(golden, digest=digest_of(metadata))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "reference_for", found)
        patch.setattr("bertjax.training.progress.Progress.note", lambda self, text: told.append(text))
        pretrain(config)
    return Path(config.directory), "\n".join(told)


def test_a_tiny_recipe_learns_as_its_reference_did(golden: Reference, trained: tuple[Path, str]) -> None:
    curve, (steps, losses) = golden.curves[LOSS], curves(read_metrics(trained[0] / METRICS_FILE))[LOSS]
    assert steps == list(curve.steps) == [60, 120, 180, 240] and len(golden.seeds) == 6
    for loss, mean, spread in zip(losses, curve.mean, curve.spread, strict=True):
        assert abs(loss - mean) <= SPREADS * spread, (losses, curve)
    learned = curve.mean[0] - curve.mean[-1]
    assert SPREADS * curve.spread[-1] < learned / 3, "or a bent curve would not be seen"


@pytest.mark.long
@pytest.mark.parametrize(
    "change", [{"learning_rate": 2e-3}, {"beta2": 0.5}, {"schedule": "warmup_stable_decay"}], ids=str
)
def test_a_bent_curve_is_seen(golden: Reference, change: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(tmp_path)
    bent = pretrain(replace(config, optimizer=replace(config.optimizer, **change))).directory
    losses, curve = curves(read_metrics(bent / METRICS_FILE))[LOSS][1], golden.curves[LOSS]
    assert any(
        abs(loss - mean) > SPREADS * spread for loss, mean, spread in zip(losses, curve.mean, curve.spread, strict=True)
    )


def test_a_run_says_how_it_lies_to_its_reference(golden: Reference, trained: tuple[Path, str]) -> None:
    curve = golden.curves[LOSS]
    for step, mean, spread in zip(curve.steps, curve.mean, curve.spread, strict=True):
        assert f"step {step:,}  held out  loss " in trained[1]
        assert f"  reference loss {mean:.2f} ± {spread:.2f} (on track)" in trained[1]


def metadata(config: Config, **changed: str) -> dict:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    prints = {"tokenizer_fingerprint": "ab", "data_fingerprint": "text", "teacher_digest": ""} | changed
    return run_metadata(to_dict(config), mesh=mesh, **prints)


def changed(config: Config, key: str, value: Any) -> Config:
    part, _, name = key.rpartition(".")
    return replace(config, **({part: replace(getattr(config, part), **{name: value})} if part else {name: value}))


BASE = Config(training=TrainingConfig(steps=100))


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("training.seed", 7, True),
        ("run_dir", "elsewhere", True),
        ("training.eval_every", 5, True),
        ("training.log_every", 5, True),
        ("mesh.data", 4, True),
        ("data.sources", ("text:other/path.txt",), True),  # the fingerprint says what the text is
        ("training.steps", 200, False),
        ("training.eval_rows", 64, False),
        ("training.global_batch_size", 8, False),
        ("execution.dtype", "bfloat16", False),
        ("optimizer.learning_rate", 2e-4, False),
        ("data.masking", "words", False),
        ("model.hidden_dropout_prob", 0.0, False),
    ],
)
def test_the_digest_is_of_what_a_curve_depends_on(key: str, value: Any, same: bool) -> None:
    assert (digest_of(metadata(changed(BASE, key, value))) == digest_of(metadata(BASE))) is same


def test_the_digest_is_of_text_vocabulary_and_teacher_too() -> None:
    for name in ("tokenizer_fingerprint", "data_fingerprint", "teacher_digest"):
        assert digest_of(metadata(BASE, **{name: "other"})) != digest_of(metadata(BASE))
    assert digest_of(metadata(changed(BASE, "init_from", "hf:x"))) == "", "no curve of a run from any other weights"


def write_run(directory: Path, seed: int, losses: dict[int, float], *, at: int = 100, **fields: Any) -> Path:
    config = replace(BASE, training=replace(BASE.training, seed=seed, **fields))
    with Checkpoints(directory / DIRECTORY, keep_last=1) as saved:
        saved.save(at, {"params": {"kernel": jnp.ones(3)}}, metadata(config))
    lines = [json.dumps({"step": step, "time": "", LOSS: loss, "train/loss": 1.0}) for step, loss in losses.items()]
    (directory / METRICS_FILE).write_text("".join(line + "\n" for line in lines))
    return directory


def test_a_reference_is_the_mean_and_the_spread_of_runs(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", 0, {50: 5.0, 75: 9.0, 100: 4.0}),
        write_run(tmp_path / "b", 1, {50: 5.2, 100: 4.2}),
        write_run(tmp_path / "c", 2, {50: 5.4, 100: 4.1}),
    ]
    made = reference_of("mine", "bertjax pretrain mine", runs)
    curve = made.curves[LOSS]
    assert curve.steps == (50, 100) and made.seeds == (0, 1, 2) and set(made.curves) == {LOSS}
    assert curve.mean == pytest.approx((5.2, 4.1)) and curve.spread == pytest.approx((0.2, 0.1))
    write_reference(tmp_path / "mine.json", made)
    assert read_reference(tmp_path / "mine.json") == made
    assert reference_for(read_metadata(runs[1]), tmp_path) == made
    assert reference_for(metadata(changed(BASE, "optimizer.eps", 1e-8)), tmp_path) is None
    with pytest.raises(ValueError, match=r"seeds \[0\]: a spread needs 2 seeds or more"):
        reference_of("mine", "", runs[:1])
    with pytest.raises(ValueError, match=r"other: another kind of run than .*a; give runs of one recipe and text"):
        reference_of("mine", "", [runs[0], write_run(tmp_path / "other", 3, {100: 1.0}, global_batch_size=8)])
    with pytest.raises(ValueError, match=r"early: it has 60 of 100 steps; finish it first"):
        reference_of("mine", "", [runs[0], write_run(tmp_path / "early", 3, {50: 1.0}, at=60)])


def test_a_remark_is_made_between_the_measured_steps_only() -> None:
    shown = [("loss", "mlm_loss", "{:.3f}"), ("mlm", "mlm_accuracy", "{:.1%}")]
    curve = Curve((1_000, 2_000), (5.0, 4.0), (0.04, 0.06))
    beside = Reference("r", "", "0" * 64, (0, 1), {}, "", {LOSS: curve, "eval/mlm_accuracy": curve}).remark(shown)
    assert beside(1_500, {LOSS: 4.6}) == "  reference loss 4.50 ± 0.05 (on track)"
    assert beside(1_500, {LOSS: 4.66}) == "  reference loss 4.50 ± 0.05 (off by +0.16)"
    assert beside(2_000, {LOSS: 3.8}) == "  reference loss 4.00 ± 0.06 (off by -0.20)"
    assert beside(999, {LOSS: 4.6}) == beside(2_001, {LOSS: 4.6}) == beside(1_500, {"eval/nsp_loss": 4.6}) == ""


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("seeds", [1], "seeds is a list of 1"),
        ("digest", "ab", "digest is"),
        ("curves", {LOSS: {"steps": [2, 1], "mean": [1.0, 1.0], "spread": [0.0, 0.0]}}, "steps must rise"),
        ("curves", {LOSS: {"steps": [1, 2], "mean": [1.0], "spread": [0.0, 0.0]}}, "with a mean and a spread for each"),
    ],
)
def test_a_damaged_reference_is_refused(part: str, value: Any, message: str, tmp_path: Path) -> None:
    document = json.loads(GOLDEN.read_text()) | {part: value}
    (tmp_path / "x.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        read_reference(tmp_path / "x.json")


def test_the_references_of_the_package_are_sound() -> None:
    found = references_in(Path(pretraining.__file__).parents[1] / "recipes" / "references")
    if not found:
        pytest.skip("the package has no reference yet")
    assert len({one.digest for one in found}) == len(found)
    for one in found:
        assert one.curves[LOSS].steps[-1] > 0 and one.command.startswith("bertjax pretrain ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "1"], "--seeds 1: give two seeds or more, each once"),
        (["--seeds", "1", "1"], "--seeds 1 1: give two seeds or more, each once"),
        (["--output", "x.txt"], "--output x.txt: name a .json file in a folder that is there"),
        (["--training.budget", "5m"], "training.budget='5m': runs of a reference have one length"),
    ],
)
def test_the_verb_refuses_what_makes_no_reference(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reference", "quickstart", *words]) == 1
    assert message in capsys.readouterr().err
