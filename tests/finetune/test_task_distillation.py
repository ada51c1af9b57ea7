"""Distillation for a task: losses match their formulas, runs resume, and unsuitable teachers are rejected."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import fine_tuned_model
from small_tasks import load_content, random_params, small_config, small_start, write_classes
from their_model import assert_same_gradients

from bertjax.config import DistillationConfig, FinetuneConfig, TaskConfig
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.teacher import fit_task_teacher, read_task_teacher
from bertjax.families.networks import abstract_network, init_params
from bertjax.finetune.distillation import PREDICTIONS, distillation_objective, with_projection
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.kinds.kind import TaskContent
from bertjax.finetune.run import Result, Start, finetune
from bertjax.model.network import Params, bind
from bertjax.run.checkpoint import DIRECTORY, read_metadata
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.runtime.processes import alone
from bertjax.training.objectives import TEACHER, Forward
from bertjax.training.teacher import Teacher

ROWS, LENGTH, CLASSES = 6, 12, 3
WIDE = {"hidden_size": 48, "num_hidden_layers": 4}  # the teacher; the student has 32 and 2


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return small_start(tmp_path_factory.mktemp("wide"), **WIDE)


def soft(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Compute the cross entropy of probabilities over the last dim, float64."""
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (theirs, ours))
    return -(np.exp(log_p) * log_q).sum(-1)


def binary_soft(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-theirs))
    return np.log1p(np.exp(ours)) - p * ours


LOSSES = {
    "sequence": soft,
    "choice": soft,
    "tokens": soft,
    "regression": lambda ours, theirs: (ours - theirs) ** 2,
    "relevance": binary_soft,
}


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


GRADIENTS = {  # derivatives of these losses by the student's logits
    **dict.fromkeys(("sequence", "choice", "tokens"), lambda ours, theirs: softmax(ours) - softmax(theirs)),
    "regression": lambda ours, theirs: 2 * (ours - theirs),
    "relevance": lambda ours, theirs: sigmoid(ours) - sigmoid(theirs),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "sequence")) for name in LOSSES]
)
def test_prediction_loss_matches_its_formula(name: str, start: Start, wide: Start) -> None:
    """Compare with float64 NumPy on the logits of both networks, with weighted examples."""
    kind, draw = KINDS[name], np.random.default_rng(5)
    shape = (ROWS, LENGTH) if name == "tokens" else (ROWS, 1)
    batch = {
        "input_ids": draw.integers(5, 15, (ROWS, LENGTH), dtype=np.int32),
        "token_type_ids": np.zeros((ROWS, LENGTH), np.int32),
        "sequence_ids": np.ones((ROWS, LENGTH), np.int32),
        "cls_positions": np.zeros((ROWS, CLASSES if name == "choice" else 1), np.int32),
        "labels": draw.integers(0, 2, shape[:1] if name == "choice" else shape).astype(
            np.float32 if kind.num_labels(CLASSES) == 1 else np.int32
        ),
        "label_weights": draw.uniform(0.5, 2, shape[:1] if name == "choice" else shape).astype(np.float32),
    }
    batch["cls_positions"] = batch["cls_positions"] + np.arange(batch["cls_positions"].shape[1], dtype=np.int32)
    configs = {"model": kind.headed(start.model, CLASSES), TEACHER: kind.headed(wide.model, CLASSES)}
    graphs = {key: abstract_network(config)[0] for key, config in configs.items()}
    params = {key: random_params(config, seed) for seed, (key, config) in enumerate(configs.items())}
    objective = distillation_objective(kind, TaskConfig())

    def compute(params: dict, batch: dict) -> tuple:
        forward = Forward({key: bind(graphs[key], params[key]) for key in graphs}, None, packed=True)
        sums = objective.sums(forward, batch, None)
        return sums["loss"], (sums, [kind.logits(forward, batch, None, network) for network in graphs])

    compute_with_gradients = jax.jit(jax.value_and_grad(compute, has_aux=True))
    (_, (sums, logits)), gradients = jax.device_get(compute_with_gradients(params, batch))
    ours, theirs = (np.asarray(z, np.float64) for z in logits)
    assert ours.shape[: len(shape)][0] == ROWS and np.abs(ours - theirs).max() > 0.01
    weights = batch["label_weights"]
    expected = (LOSSES[name](ours, theirs) * weights).sum()
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-6)
    by_logits = GRADIENTS[name](ours, theirs) * weights.reshape(weights.shape + (1,) * (ours.ndim - weights.ndim))

    def weighted(student: Params, batch: dict) -> jax.Array:
        forward = Forward({"model": bind(graphs["model"], student)}, None, packed=True)
        return (kind.logits(forward, batch, None, "model") * by_logits).sum()

    assert_same_gradients(gradients["model"], jax.device_get(jax.jit(jax.grad(weighted))(params["model"], batch)))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients[TEACHER])), "the teacher gets no gradient"
    assert sums.keys() == {*kind.figures}


def test_kinds_without_prediction_loss_are_rejected() -> None:
    for name in KINDS.keys() - LOSSES.keys():
        with pytest.raises(ValueError, match=f"tasks of the kind {name} cannot learn a teacher's predictions"):
            distillation_objective(KINDS[name], TaskConfig())
        assert distillation_objective(KINDS[name], TaskConfig(distil="layers")).name == "distil_layers"


def make_run(
    distil: str, start: Start, wide: Start, data: Path, place: Path, **training: object
) -> tuple[FinetuneConfig, TaskContent, Teacher]:
    """Make the config of a run, its data, and a teacher with random weights."""
    config = small_config("classification", start, data, place, epochs=2, distil=distil)
    config = replace(config, training=replace(config.training, log_every=1, **training))
    content = load_content(config, start)
    model = content.kind.headed(wide.model, len(content.labels))
    params = jax.device_get(jax.jit(init_params, static_argnums=0)(model, jax.random.key(7)))
    params["pooler"] = jax.tree.map(lambda x: 5 * x, params["pooler"])
    return with_projection(config, model), content, Teacher(model, params)


def run(config: FinetuneConfig, start: Start, content: TaskContent, teacher: Teacher) -> Result:
    with alone() as processes:
        return finetune(config, start, content, processes, lambda line: None, (), teacher)


def losses(place: Path, name: str) -> list[float]:
    return [record[name] for record in read_metrics(place / METRICS_FILE) if name in record]


def digests(place: Path) -> dict[str, str]:
    return {name: array["digest"] for name, array in read_metadata(place / DIRECTORY)["arrays"].items()}


@pytest.mark.long  # the suite resumes a student in tests/training/test_distillation.py
@pytest.mark.parametrize("distil", ["layers", "predictions"])
def test_distillation_resumes_bit_identically(distil: str, start: Start, wide: Start, tmp_path: Path) -> None:
    data, place, half = write_classes(tmp_path / "data", train=48, dev=16), tmp_path / "run", tmp_path / "half"
    setup = make_run(distil, start, wide, data, place, eval_every=3, checkpoint_every=3, keep_every=3)
    config, content, teacher = setup
    result = run(config, start, content, teacher)
    name = {"layers": "distil_layers", "predictions": PREDICTIONS}[distil]
    curve = losses(place, f"train/{name}_loss")
    assert len(curve) == 6 and curve[-1] < curve[0]
    assert {"eval/sequence_loss", "eval/accuracy"} <= result.figures.keys(), "measured by labels, without the teacher"
    metadata = read_metadata(place / DIRECTORY)
    assert metadata["teacher_digest"] == teacher.digest
    modules = {name.split("/")[1] for name in metadata["arrays"] if name.startswith("params/")}
    assert modules == {"encoder", "pooler", "head"} | ({"teacher_projection"} if distil == "layers" else set())
    exported = export_huggingface(load_run(str(place)), tmp_path / "export")
    assert b"projection" not in (Path(exported) / "model.safetensors").read_bytes()
    shutil.copytree(place, half)
    shutil.rmtree(half / DIRECTORY / "6")
    (half / "results.json").unlink()
    assert run(replace(config, run_dir=str(half)), start, content, teacher).figures == result.figures
    assert digests(half) == digests(place)
    assert run(config, start, content, teacher).seconds == result.seconds, "the run was finished before"
    other = Teacher(teacher.model, jax.tree.map(lambda x: x + 1, teacher.params))
    with pytest.raises(ValueError, match="the teacher changed since this run began"):
        run(config, start, content, other)


def test_teacher_of_another_task_is_rejected(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("classification", start, tmp_path, tmp_path / "run")
    config = replace(config, distillation=DistillationConfig(teacher="there"))
    kind = KINDS["sequence"]

    def use_teacher(teacher_kind: str, **model: object) -> None:
        taught_model = replace(kind.headed(start.model, 2), **model)
        teacher = ForeignModel("there", taught_model, start.tokenizer, {}, (), (), teacher_kind, ("a", "b"))
        monkeypatch.setattr("bertjax.convert.teacher.read_source", lambda source: teacher)

    use_teacher("tokens")
    with pytest.raises(ValueError, match="it was fine-tuned for tokens, and this task is sequence; name a model"):
        read_task_teacher(config, kind)
    use_teacher("")
    with pytest.raises(ValueError, match="it was only pretrained, and this task is sequence"):
        read_task_teacher(config, kind)
    use_teacher("sequence", max_position_embeddings=16)
    with pytest.raises(ValueError, match="it has 16 positions, and rows have 32 tokens"):
        read_task_teacher(config, kind)
    use_teacher("sequence", num_hidden_layers=3)
    layers = replace(config, task=replace(config.task, distil="layers"))
    with pytest.raises(ValueError, match="its number of layers, 3, is not a multiple of the model's 2"):
        read_task_teacher(layers, kind)
    teacher = read_task_teacher(config, kind)
    assert teacher is not None
    with pytest.raises(ValueError, match="its labels are a, b, and the task's are red, green; name a model"):
        fit_task_teacher(teacher, config, start.tokenizer, kind, ("red", "green"))
    with pytest.raises(ValueError, match=r"task\.distil='layers' without a teacher"):
        read_task_teacher(replace(layers, distillation=DistillationConfig()), kind)


@pytest.mark.parametrize(("kind", "labels"), [("choice", ("0", "1")), ("regression", ())])
def test_teacher_without_label_names_is_accepted(kind: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    model = fine_tuned_model(tmp_path / "model", kind, labels)
    teacher = export_huggingface(model, tmp_path / "teacher")
    config = replace(model.config, distillation=DistillationConfig(teacher=f"hf:{teacher}"))
    loaded = read_task_teacher(config, KINDS[kind])
    assert loaded is not None
    assert fit_task_teacher(loaded, config, model.tokenizer, KINDS[kind], labels).model.head == model.config.model.head


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("classification", ["--distil", "layers", "--patience", "1"], "--distil layers with --patience: the run does"),
        ("classification", ["--distil", "layers", "--seeds", "2"], "--distil layers with --seeds"),
        ("classification", ["--distil", "layers", "--grid"], "--distil layers with --grid"),
        ("classification", ["--task.distil", "layers", "--learning-rate", "1e-4", "2e-4"], "with --learning-rate"),
        ("classification", ["--distillation.temperature", "3"], "distillation.temperature=3 has no effect"),
        ("glue", ["--data", "there"], "a teacher is fine-tuned for one task, so 'there' cannot teach them all"),
    ],
)
def test_unsupported_teacher_options_are_rejected(
    task: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertjax.__main__ import main

    assert main(["finetune", task, "--init-from", "nowhere", "--teacher", "there", *options]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("distil", ["predictions", "layers"])
def test_distil_option_requires_teacher(distil: str, capsys: pytest.CaptureFixture[str]) -> None:
    from bertjax.__main__ import main

    assert main(["finetune", "classification", "--init-from", "nowhere", "--distil", distil]) != 0
    assert f"task.distil='{distil}' without a teacher; name one (--teacher)" in capsys.readouterr().err


@pytest.mark.long
def test_finetune_takes_an_exported_teacher(start: Start, tmp_path: Path) -> None:
    """Run both stages of TinyBERT's recipe."""
    from bertjax.__main__ import main

    labels = ("blue", "green", "red")
    teacher = export_huggingface(fine_tuned_model(tmp_path / "model", "sequence", labels), tmp_path / "teacher")
    student = export_huggingface(fine_tuned_model(tmp_path / "base", "sequence", labels), tmp_path / "student")
    data = write_classes(tmp_path / "data", train=48, dev=16)
    fixed = ["--teacher", f"hf:{teacher}", "--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv")]
    fixed += ["--epochs", "1", "--max-length", "32", "--compilation-cache", ""]
    first = ["finetune", "classification", "--init-from", f"hf:{student}", "--distil", "layers"]
    assert main([*first, *fixed, "--run-dir", str(tmp_path / "layers")]) == 0
    second = ["finetune", "classification", "--init-from", str(tmp_path / "layers")]
    assert main([*second, *fixed, "--run-dir", str(tmp_path / "run")]) == 0
    model = load_run(str(tmp_path / "run"))
    assert model.labels == labels and model.config.model.teacher_width == 0
