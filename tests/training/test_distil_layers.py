"""TinyBERT's layer distillation: its losses against their formulas, on every mesh, and in a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import trained_model
from generated_corpus import write_corpus
from random_batches import random_batches
from small_training import Training, draw_params
from test_family_training import in_twos
from test_step import MESHES, OPTIMIZER
from tiny_runs import command, digests, finish, write_recipe

from bertjax.config import (
    Config,
    DataConfig,
    DistillationConfig,
    ExecutionConfig,
    MeshConfig,
    ModelConfig,
    TrainingConfig,
    load_recipe,
)
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import left_out, their_shapes
from bertjax.convert.teacher import read_teacher
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.model.attention.backends import visible
from bertjax.model.layer_states import LayerStates
from bertjax.model.network import bind
from bertjax.run.checkpoint import read_metadata
from bertjax.run.checks import preflight
from bertjax.run.telemetry import curves, read_metrics
from bertjax.training.objectives import TEACHER, Forward, choose
from bertjax.training.objectives.distil_layers import layer_sums
from bertjax.training.step import averages, batch_weights, objective_sums
from bertjax.training.teacher import assumed_teacher

OBJECTIVES = choose(("distil_layers",))
LENGTH, ROWS = 24, 32  # packed in twos, two microbatches on eight devices
STUDENT = ModelConfig(
    vocab_size=200,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    initializer_range=0.2,
    teacher_width=32,
)
DEEP = replace(STUDENT, hidden_size=32, num_hidden_layers=6, teacher_width=0)
EVERY = DEEP.num_hidden_layers // STUDENT.num_hidden_layers
PARTS = ("embeddings", "hidden", "attention")


def batches(count: int = 3):
    for batch in random_batches(count, rows=ROWS, length=LENGTH, predictions=4, vocab_size=200, seed=1):
        yield batch | {"distil_layers_weights": (batch["sequence_ids"] > 0).astype(np.float32)}


@pytest.fixture(scope="module")
def networks() -> dict:
    return {
        name: (abstract_network(config)[0], draw_params(config, seed, noise=0.1))
        for seed, (name, config) in enumerate((("model", STUDENT), (TEACHER, DEEP)))
    }


def compute_figures(networks: dict, batch: dict, *, packed: bool = False) -> dict[str, float]:
    def compute(batch: dict) -> dict:
        bound = {name: bind(*network) for name, network in networks.items()}
        sums = objective_sums(Forward(bound, None, packed=packed), batch, None, OBJECTIVES)
        return averages(sums, batch_weights(batch, OBJECTIVES), OBJECTIVES)

    return {name: float(value) for name, value in jax.jit(compute)(batch).items()}


def layer_values(network: tuple, batch: dict) -> tuple[np.ndarray, np.ndarray]:
    """(embeddings and hidden states [N + 1, B, L, D], attention scores [N, B, H, L, L]), float64."""
    graph, params = network
    inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
    hidden = np.asarray(jax.jit(bind(graph, params).encoder.hidden_states)(*inputs), np.float64)
    attention = params["encoder"]["layers"]["attention"]
    q, k = (
        np.einsum("NBLD,NDHK->NBHLK", hidden[:-1], attention[name]["kernel"])
        + attention[name]["bias"][:, None, :, None]
        for name in ("query", "key")
    )
    return hidden, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def test_distil_layers_losses_equal_their_formulas(networks: dict) -> None:
    """Sequence by sequence as in the paper, in float64; each sequence is weighted by its tokens."""
    batch = next(batches())
    figures = compute_figures(networks, batch)
    (h_s, a_s), (h_t, a_t) = (layer_values(networks[name], batch) for name in ("model", TEACHER))
    projection = networks["model"][1]["teacher_projection"]
    fitted = h_s @ projection["kernel"].astype(np.float64) + projection["bias"]
    expected, total = dict.fromkeys(PARTS, 0.0), 0
    for row, ids in enumerate(batch["sequence_ids"]):
        n = int((ids > 0).sum())
        total += n
        for m in range(STUDENT.num_hidden_layers + 1):
            error = np.mean((fitted[m, row, :n] - h_t[m * EVERY, row, :n]) ** 2)
            expected["hidden" if m else "embeddings"] += n * error
            if m:  # scores of layer m, counted from 1, are element m - 1
                ours, theirs = a_s[m - 1, row, :, :n, :n], a_t[m * EVERY - 1, row, :, :n, :n]
                expected["attention"] += n * np.mean((ours - theirs) ** 2)
    for part in PARTS:
        assert figures[f"distil_layers_{part}"] == pytest.approx(expected[part] / total, rel=1e-6), part
    assert figures["loss"] == pytest.approx(sum(expected.values()) / total, rel=1e-6)
    assert min(expected.values()) > 1e-3 * sum(expected.values()), "too small for the test to notice a missing part"


def test_layer_sums_gradients_equal_torch() -> None:
    """Gradients by states and projection, compared by the norm of the difference."""
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(4)
    M, B, L, H = 2, 3, 5, 2
    normal = lambda *shape: draw.normal(size=shape).astype(np.float32)  # noqa: E731
    student, teacher = (
        LayerStates(normal(B, L, D), normal(M, B, L, D), *(normal(M, B, L, H, D // H) for _ in range(2)))
        for D in (4, 6)
    )
    kernel, ids = normal(4, 6), np.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    weights = (ids > 0).astype(np.float32)

    def ours(student: LayerStates, kernel: jax.Array) -> jax.Array:
        seen = visible(jnp.asarray(ids), causal=False)
        return layer_sums(student, teacher, lambda x: x @ kernel, seen, weights)["loss"]

    loss, gradients = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(student, kernel)

    leaves = [torch.from_numpy(x).double().requires_grad_() for x in (*student, kernel)]
    e, h, q, k, w = leaves
    e_t, h_t, q_t, k_t = (torch.from_numpy(x).double() for x in teacher)
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(B):
        for number in range(1, ids.max() + 1):
            own = np.flatnonzero(ids[row] == number)
            if not len(own):
                continue
            expected = expected + len(own) * torch.mean((e[row, own] @ w - e_t[row, own]) ** 2)
            for m in range(M):
                expected = expected + len(own) * torch.mean((h[m, row, own] @ w - h_t[m, row, own]) ** 2)
                a, a_t = (
                    torch.einsum("lhk,mhk->hlm", qs[m, row, own], ks[m, row, own]) / qs.shape[-1] ** 0.5
                    for qs, ks in ((q, k), (q_t, k_t))
                )
                expected = expected + len(own) * torch.mean((a - a_t) ** 2)
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip((*gradients[0], gradients[1]), leaves, strict=True):
        off = np.linalg.norm(np.asarray(mine, np.float64) - theirs.grad.numpy())
        assert off <= 1e-6 * np.linalg.norm(theirs.grad.numpy())


def losses(
    networks: dict, mesh: MeshConfig, accumulate: int = 1, packed: bool = False, **execution_options
) -> np.ndarray:
    """The losses of three steps."""
    settings = {"objectives": OBJECTIVES, "accumulate": accumulate, "packed": lambda batch: packed}
    frozen = {TEACHER: (DEEP, networks[TEACHER][1])}
    training = Training(
        mesh, STUDENT, OPTIMIZER, execution=ExecutionConfig(**execution_options), frozen=frozen, **settings
    )
    return training.losses(map(packed_in_twos, batches()) if packed else batches())


def packed_in_twos(batch: dict) -> dict:
    packed = in_twos(batch | {"rtd_weights": batch["distil_layers_weights"]})
    return packed | {"distil_layers_weights": packed["rtd_weights"]}


@pytest.mark.long  # the suite has shardings of a teacher in test_frozen_networks.py
@pytest.mark.parametrize("mesh", MESHES)
def test_distillation_is_equal_packed_and_on_a_mesh(networks: dict, mesh: str) -> None:
    expected = losses(networks, MeshConfig(1, 1, 1))
    actual = losses(networks, MESHES[mesh], accumulate=2 if "fsdp" in mesh else 1, packed=True, remat="full")
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (
            {},
            {"num_attention_heads": 8},
            "it has 8 attention heads and the model 4, so distil_layers cannot compare",
        ),
        (
            {},
            {"num_hidden_layers": 5},
            "number of layers, 5, is not a multiple of the model's 2.*that divides 5",
        ),
        (
            {"teacher_width": 0},
            {},
            "32 wide and the model's 16, without projection.*width to 32",
        ),
        ({"teacher_width": 24}, {}, "its vectors are 32 wide and the model's projected to 24"),
        ({"window": 4, "global_every": 0}, {}, "its model.window is 0 and the model's 4"),
    ],
)
def test_teacher_with_incomparable_layers_is_refused(
    student: dict, teacher: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ForeignModel("hf:there", replace(DEEP, **teacher), None, {}, (), ())
    monkeypatch.setattr("bertjax.convert.teacher.read_source", lambda source: foreign)
    config = Config(
        model=replace(STUDENT, **student),
        data=DataConfig(sequence_length=LENGTH),
        training=TrainingConfig(objectives=("distil_layers",)),
        distillation=DistillationConfig(teacher="hf:there"),
    )
    with pytest.raises(ValueError, match=message):
        read_teacher(config)


def test_plan_assumes_a_bert_teacher_of_the_projected_width() -> None:
    recipe = load_recipe("configs/tinybert.py")
    assert assumed_teacher(recipe) == get_family("bert").presets["base"]
    wide = replace(recipe, model=replace(recipe.model, teacher_width=900))
    with pytest.raises(ValueError, match=r"model\.teacher_width=900: no published model of model.family='bert' has"):
        assumed_teacher(wide)
    no_layers = replace(recipe, training=replace(recipe.training, objectives=("distil_mlm", "mlm")))
    with pytest.raises(ValueError, match=r"model\.teacher_width=768 with .* none of them projects vectors"):
        preflight(no_layers)


def test_export_leaves_out_the_teacher_projection() -> None:
    assert left_out(STUDENT) == ("teacher_projection",)
    assert their_shapes(STUDENT) == their_shapes(replace(STUDENT, teacher_width=0))


@pytest.mark.parametrize(
    ("family", "preset", "count"),
    [("bert", "tiny-4x312", 14_350_248), ("bert", "tiny-6x768", 66_955_008), ("roberta", "distil", 81_526_272)],
)
def test_presets_have_the_published_sizes(family: str, preset: str, count: int) -> None:
    """Counts the encoder, and BERT's pooler; RoBERTa's table has two more rows in transformers."""
    config = replace(get_family(family).presets[preset], vocab_pad_multiple=1)
    shapes = abstract_network(config)[1]
    parts = [shapes[name] for name in ("encoder", "pooler") if name in shapes]
    assert sum(leaf.size for leaf in jax.tree.leaves(parts)) == count


@pytest.mark.long  # the suite resumes a student in test_distillation.py
def test_student_projection_is_saved_but_not_exported(tmp_path: Path) -> None:
    """The run resumes to the same bits; neither its checkpoint nor its export contains the teacher."""
    corpus, recipe, log = write_corpus(tmp_path / "corpus.txt", 100), write_recipe(tmp_path), tmp_path / "log"
    teacher = export_huggingface(trained_model(tmp_path / "model", num_hidden_layers=2), tmp_path / "teacher")
    run, half = tmp_path / "run", tmp_path / "half"

    def taught(place: Path) -> list[str]:
        return command(
            *(recipe, corpus, place, "--model.num-hidden-layers", "1", "--model.hidden-size", "16"),
            *("--model.num-attention-heads", "4", "--model.teacher-width", "32", "--optimizer.warmup-steps", "1"),
            *("--data.vocab", f"{teacher}/vocab.txt", "--distillation.teacher", f"hf:{teacher}"),
            *("--training.objectives", "distil_layers", "--training.eval-every", "2"),
            *("--training.checkpoint-every", "2", "--training.keep-every", "2", "--training.steps", "4"),
        )

    finish(taught(run), log)
    logs = curves(read_metrics(run / "metrics.jsonl"))
    assert all(len(logs[f"eval/distil_layers_{part}"][1]) == 2 for part in ("loss", *PARTS))
    modules = {name.split("/")[1] for name in read_metadata(run)["arrays"] if name.startswith("params/")}
    assert modules == {"encoder", "pooler", "mlm_head", "nsp_head", "teacher_projection"}
    weights = (run / "huggingface" / "model.safetensors").read_bytes()
    assert b"bert.pooler" in weights and b"projection" not in weights and b"teacher" not in weights
    shutil.copytree(run, half)
    shutil.rmtree(half / "checkpoints" / "4")
    finish(taught(half), log)
    assert "resuming" in log.read_text() and digests(half) == digests(run)
