"""A run with a teacher: losses, learning, resumption with the same teacher only, and no teacher in the checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from generated_corpus import write_corpus
from random_batches import random_batches
from small_training import Training, draw_params
from test_step import LENGTH, MODEL, OPTIMIZER, PREDICTIONS, ROWS
from tiny_runs import checkpoints, command, digests, finish, write_recipe

from bertjax.__main__ import main
from bertjax.config import Config, DistillationConfig, ExecutionConfig, MeshConfig, StageConfig, TrainingConfig
from bertjax.families.networks import abstract_network
from bertjax.model.network import bind
from bertjax.run.checkpoint import read_metadata
from bertjax.run.checks import preflight
from bertjax.run.telemetry import curves, read_metrics
from bertjax.training.objectives import TEACHER, Forward, make_objectives
from bertjax.training.step import averages, batch_weights, objective_sums

NAMES = ("distil_mlm", "mlm", "distil_cosine")
CONFIG = Config(
    training=TrainingConfig(objectives=NAMES, objective_weights=(5.0, 2.0, 1.0)),
    distillation=DistillationConfig(teacher="hf:elsewhere", temperature=3.0),
)
OBJECTIVES = make_objectives(CONFIG)
STUDENT = replace(MODEL, num_hidden_layers=1, initializer_range=0.2)
DEEP = replace(MODEL, num_hidden_layers=3, initializer_range=0.2)  # has dropout 0.1, which a teacher must ignore
IN_CHUNKS = ExecutionConfig(logits_chunk=16)


def batches(count: int = 3):
    for batch in random_batches(
        count, rows=ROWS, length=LENGTH, predictions=PREDICTIONS, vocab_size=MODEL.vocab_size, seed=1
    ):
        yield batch | {"distil_cosine_weights": (batch["sequence_ids"] > 0).astype(np.float32)}


@pytest.fixture(scope="module")
def networks() -> dict:
    """Student and teacher, every parameter random."""
    return {
        name: (abstract_network(config, IN_CHUNKS)[0], draw_params(config, seed, noise=0.1))
        for seed, (name, config) in enumerate((("model", STUDENT), (TEACHER, DEEP)))
    }


def compute_figures(networks: dict, batch: dict) -> dict:
    bound = {name: bind(*network) for name, network in networks.items()}
    sums = objective_sums(Forward(bound, None, packed=False), batch, None, OBJECTIVES)
    return averages(sums, batch_weights(batch, OBJECTIVES), OBJECTIVES)


def test_distillation_losses_equal_their_formulas(networks: dict) -> None:
    """Against logits and vectors of both networks in float64 NumPy."""
    batch = next(batches())
    figures = jax.device_get(jax.jit(lambda batch: compute_figures(networks, batch))(batch))
    logits, vectors = {}, {}
    for name, (graph, params) in networks.items():
        one = bind(graph, params)
        inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
        hidden = jax.jit(partial(one.encode, packed=False))(*inputs)
        vectors[name] = np.asarray(hidden, np.float64)
        logits[name] = np.asarray(jax.jit(one.mlm_logits)(hidden, batch["mlm_positions"]), np.float64)[
            ..., : MODEL.vocab_size
        ]

    def log_softmax(z: np.ndarray) -> np.ndarray:
        z = z - z.max(axis=-1, keepdims=True)
        return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))

    used, real = batch["mlm_weights"], batch["sequence_ids"] > 0
    log_s, log_t = (log_softmax(logits[name] / 3.0) for name in ("model", TEACHER))
    soft = 9.0 * ((np.exp(log_t) * (log_t - log_s)).sum(axis=-1) * used).sum() / (used.sum() + 1e-5)
    label_log_probs = np.take_along_axis(log_softmax(logits["model"]), batch["mlm_labels"][..., None], axis=-1)[..., 0]
    mlm = -(label_log_probs * used).sum() / (used.sum() + 1e-5)
    a, b = vectors["model"], vectors[TEACHER]
    cosine = (1 - (a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1))[real].mean()
    assert figures["distil_mlm_loss"] == pytest.approx(soft, rel=1e-6)
    assert figures["mlm_loss"] == pytest.approx(mlm, rel=1e-6)
    assert figures["distil_cosine_loss"] == pytest.approx(cosine, rel=1e-6)
    assert figures["loss"] == pytest.approx(5 * soft + 2 * mlm + cosine, rel=1e-6)


def test_cosine_loss_and_gradient_equal_torch() -> None:
    """torch's `CosineEmbeddingLoss`, as in the published distiller."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    draw = np.random.default_rng(4)
    s, t = (draw.normal(size=(7, 12)).astype(np.float32) for _ in range(2))

    def ours(x):
        forward = lambda batch, network="model": {"model": x, TEACHER: t[None]}[network]  # noqa: E731
        batch = {"distil_cosine_weights": np.ones((1, 7), np.float32)}
        return OBJECTIVES[2].sums(forward, batch, None)["loss"]

    loss, gradient = jax.jit(jax.value_and_grad(ours))(s[None])
    theirs = torch.from_numpy(s).requires_grad_()
    expected = functional.cosine_embedding_loss(theirs, torch.from_numpy(t), torch.ones(7), reduction="sum")
    expected.backward()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)
    off = np.linalg.norm(np.asarray(gradient)[0] - theirs.grad.numpy())
    assert off <= 1e-6 * np.linalg.norm(theirs.grad.numpy())


def losses(networks: dict, mesh: MeshConfig, accumulate: int = 1) -> list[float]:
    """The losses of three steps and an evaluation."""
    settings = {"execution": IN_CHUNKS, "frozen": {TEACHER: (DEEP, networks[TEACHER][1])}}
    training = Training(mesh, STUDENT, OPTIMIZER, objectives=OBJECTIVES, accumulate=accumulate, **settings)
    train_losses = training.losses(batches())
    held_out = training.on_devices(next(batches()))
    sums = training.eval_step(training.state.params, held_out, training.frozen)
    return [*train_losses, float(averages(sums, sums, OBJECTIVES)["loss"])]


@pytest.mark.long  # the suite has shardings of a teacher in test_frozen_networks.py
@pytest.mark.parametrize("accumulate", [1, 2])
def test_distillation_is_equal_on_a_mesh_and_in_microbatches(networks: dict, accumulate: int) -> None:
    expected = losses(networks, MeshConfig(1, 1, 1))
    np.testing.assert_allclose(losses(networks, MeshConfig(2, 2, 2), accumulate), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONFIG, distillation=DistillationConfig()), "distil_mlm needs a teacher, and distillation.teacher is"),
        (
            Config(stages=(StageConfig(start=20_000, objectives=("distil_mlm", "mlm")),)),
            "distil_mlm needs a teacher, and distillation.teacher is",
        ),
        (
            replace(CONFIG, training=TrainingConfig()),
            "needs a teacher; add distil_mlm, distil_cosine or distil_layers",
        ),
        (replace(CONFIG, training=TrainingConfig(objectives=("distil_mlm",))), "needs the predictions of mlm; add"),
        (
            replace(CONFIG, training=replace(CONFIG.training, objective_weights=(1.0,))),
            r"objective_weights=\(1.0,\): give one for each of training.objectives=\('distil_mlm', 'mlm', 'distil_cos",
        ),
        (
            replace(CONFIG, training=replace(CONFIG.training, objective_weights=(1.0, -1.0, 0.0))),
            "finite, none below 0 and not all of them 0",
        ),
    ],
)
def test_objectives_without_their_teacher_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(config)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(folder of the recipe, corpus, run of the teacher)."""
    folder = tmp_path_factory.mktemp("taught")
    corpus, recipe = write_corpus(folder / "corpus.txt", 300), write_recipe(folder)
    finish(command(recipe, corpus, folder / "teacher", "--training.steps", "60"), folder / "log")
    return folder, corpus, folder / "teacher"


def student(taught: tuple[Path, Path, Path], run: Path, teacher: str, *arguments: str) -> list[str]:
    folder, corpus, _ = taught
    return command(
        folder / "tiny_recipe.py",
        corpus,
        run,
        *("--model.num-hidden-layers", "1", "--distillation.teacher", teacher),
        *("--init-from", teacher, "--init-layers", "1", "--training.objectives", *NAMES),
        *("--training.objective-weights", "5", "2", "1", "--training.eval-every", "20"),
        *("--training.checkpoint-every", "5"),
        *arguments,
    )


@pytest.fixture(scope="module")
def learned(taught: tuple[Path, Path, Path]) -> tuple[Path, Path]:
    """A student's run of 40 steps and its log."""
    run, log = taught[0] / "student", taught[0] / "student.log"
    finish(student(taught, run, str(taught[2]), "--training.steps", "40"), log)
    return run, log


@pytest.mark.run
@pytest.mark.usefixtures("one_device")
def test_student_learns_and_keeps_no_teacher(
    taught: tuple[Path, Path, Path], learned: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = learned
    logs = curves(read_metrics(run / "metrics.jsonl"))
    for name in ("distil_mlm_loss", "distil_cosine_loss"):
        assert logs[f"eval/{name}"][1][-1] < logs[f"eval/{name}"][1][0], name
    metadata = read_metadata(run)
    assert len(metadata["teacher_digest"]) == 64 and not any(TEACHER in name for name in metadata["arrays"])
    assert json.loads((run / "config.json").read_text())["distillation"]["teacher"] == str(taught[2])
    assert "layers 1 of its 2 were taken" in log.read_text()
    # `bertjax evaluate` reads the teacher again and gets the figures of the run's log.
    assert main(["evaluate", str(run)]) == 0
    assert f"{logs['eval/distil_mlm_loss'][1][-1]:.4f}" in capsys.readouterr().out


@pytest.mark.long  # one more run
@pytest.mark.run
def test_student_resumes_with_its_teacher_only(
    taught: tuple[Path, Path, Path],
    learned: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The teacher's export counts as the same teacher and gives the same bits; another teacher is refused."""
    (run, _), half, log = learned, tmp_path / "half", tmp_path / "log"
    shutil.copytree(run, half)
    for step in checkpoints(half)[1:]:
        shutil.rmtree(half / "checkpoints" / step)
    finish(student(taught, half, f"hf:{taught[2] / 'huggingface'}", "--training.steps", "40"), log)
    assert "resuming" in log.read_text() and digests(half) == digests(run)
    logs, again = (curves(read_metrics(one / "metrics.jsonl")) for one in (run, half))
    assert all(again[name] == logs[name] for name in logs if name.startswith(("train/", "eval/")))
    other = taught[2] / "checkpoints" / checkpoints(taught[2])[0]  # earlier than the last
    assert main(student(taught, half, str(other), "--training.steps", "50")[3:]) == 1
    assert "the teacher changed since this run began" in capsys.readouterr().err
