"""Denoising: the loss matches NumPy, the gradient reaches the encoder, and runs end without the decoder."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import fine_tuned_model
from safetensors import safe_open
from scipy.special import erf, log_softmax, softmax
from small_tasks import load_content, sentences, small_config, small_start

from bertjax.config import ModelConfig, TaskConfig
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import write_run
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES
from bertjax.finetune.kinds.denoising import DENOISING
from bertjax.finetune.run import finetune
from bertjax.model.network import Params, bind
from bertjax.run.averaging import average
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_metadata
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.runtime.processes import alone
from bertjax.training.objectives import Forward

TINY = ModelConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    vocab_pad_multiple=8,
    head="denoising",
)
LENGTHS = ((3, 6), (5, 5), (2, 8))  # tokens of the damaged text, and of the whole one


def make_batch(length: int) -> dict[str, np.ndarray]:
    """Make rows of two sequences, padded to `length`."""
    ids = np.random.default_rng(0).integers(5, TINY.vocab_size, (len(LENGTHS), 10)).astype(np.int32)
    batch = {name: np.zeros((len(LENGTHS), length), np.int32) for name in ("input_ids", "token_type_ids")}
    batch |= {"sequence_ids": batch["input_ids"].copy(), "label_weights": np.array([1.0, 0.5, 2.0], np.float32)}
    for row, (first, second) in enumerate(LENGTHS):
        batch["input_ids"][row, : first + second] = ids[row, : first + second]
        batch["sequence_ids"][row, : first + second] = [1] * first + [2] * second
    return batch


@functools.lru_cache
def tiny_params() -> Params:
    draw = np.random.default_rng(1)
    shapes = abstract_network(TINY)[1]
    return jax.tree.map(lambda leaf: draw.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)


@jax.jit
def compute_gradients(params: Params, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array, Params]:
    """Compute (encoder's outputs, loss, its gradients by the outputs and, through them, by the parameters)."""

    def encode(params: Params) -> jax.Array:
        inputs = (batch[name] for name in ("input_ids", "token_type_ids", "sequence_ids"))
        return bind(abstract_network(TINY)[0], params).encode(*inputs)

    def compute_loss(hidden: jax.Array) -> jax.Array:
        model = bind(abstract_network(TINY)[0], params)
        model.encode = lambda *inputs, **options: hidden
        return DENOISING.sums(TaskConfig(), Forward({"model": model}, None, packed=True), batch, None)["loss"]

    hidden, backward = jax.vjp(encode, params)
    loss, by_hidden = jax.value_and_grad(compute_loss)(hidden)
    return hidden, loss, by_hidden, backward(by_hidden)[0]


def norm(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * params["scale"] + params[
        "bias"
    ]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def numpy_loss(params: Params, hidden: np.ndarray, batch: dict[str, np.ndarray]) -> float:
    """Compute the loss in float64, text by text: only the second text goes through the decoder."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    tables, decoder, loss = params["encoder"]["embeddings"], params["decoder"], 0.0
    attention = decoder["attention"]
    for row, (first, second) in enumerate(LENGTHS):
        vector = hidden[row, :first].astype(np.float64).mean(0)
        vector *= np.sqrt(len(vector)) / np.linalg.norm(vector)
        ids = batch["input_ids"][row, first : first + second]
        x = norm(tables["word"][ids] + tables["position"][:second] + tables["token_type"][0], tables["norm"])
        q, k, v = (
            np.einsum("ld,dhk->hlk", x, attention[name]["kernel"]) + attention[name]["bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = np.where(np.tri(second, dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
        attended = np.einsum("hlk,hkd->ld", softmax(scores, -1) @ v, attention["output"]["kernel"])
        x = norm(x + attended + attention["output"]["bias"], decoder["attention_norm"])
        x = norm(x + vector @ decoder["vector"]["kernel"] + decoder["vector"]["bias"], decoder["vector_norm"])
        inner, outer = decoder["mlp"]["intermediate"], decoder["mlp"]["output"]
        inside = gelu(x @ inner["kernel"] + inner["bias"]) @ outer["kernel"] + outer["bias"]
        x = norm(x + inside, decoder["mlp_norm"])
        head = decoder["prediction"]
        x = norm(gelu(x @ head["transform"]["kernel"] + head["transform"]["bias"]), head["norm"])
        chances = log_softmax(x @ tables["word"].T + head["bias"], -1)
        loss -= batch["label_weights"][row] * chances[np.arange(second - 1), ids[1:]].mean()
    return loss


def test_loss_equals_numpy_without_padding() -> None:
    batch, params = make_batch(13), tiny_params()
    hidden, loss, _, _ = compute_gradients(params, batch)
    assert float(loss) == pytest.approx(numpy_loss(params, np.asarray(hidden), batch), rel=2e-6)


def test_gradient_reaches_the_encoder_by_the_vector() -> None:
    """The gradient by the encoder's outputs is equal over the damaged text, because of the mean, and 0 elsewhere."""
    _, _, by_hidden, by_params = compute_gradients(tiny_params(), make_batch(13))
    for gradient, (first, _) in zip(np.asarray(by_hidden), LENGTHS, strict=True):
        assert np.abs(gradient[:first]).max() > 1e-4 and not gradient[first:].any()
        np.testing.assert_array_equal(gradient[:first], gradient[:1].repeat(first, 0))
    kernels = [leaf for leaf in jax.tree.leaves(by_params["encoder"]["layers"]) if leaf.ndim > 2]
    assert kernels and all(np.abs(leaf).max() > 0 for leaf in kernels)


@pytest.mark.parametrize(
    "family", ["albert", *(pytest.param(name, marks=pytest.mark.long) for name in ("deberta", "modernbert"))]
)  # narrow tables, relative and rotary positions
def test_decoder_fits_other_encoders(family: str) -> None:
    config = DENOISING.headed(next(iter(FAMILIES[family].presets.values())), 0)  # shapes alone
    graphdef, shapes, _ = abstract_network(config)
    rows = {name: jax.ShapeDtypeStruct((2, 12), jnp.int32) for name in ("input_ids", "token_type_ids", "sequence_ids")}

    def sums(params: Params, rows: dict[str, jax.Array]) -> jax.Array:
        forward = Forward({"model": bind(graphdef, params)}, None, packed=True)
        return DENOISING.sums(TaskConfig(), forward, rows | {"label_weights": jnp.ones(2)}, None)["loss"]

    assert jax.eval_shape(jax.grad(sums), shapes, rows).keys() == {*shapes}


def test_finished_run_is_an_encoder_without_decoder(tmp_path: Path) -> None:
    tuned = fine_tuned_model(tmp_path / "run", "denoising")
    assert "decoder" in tuned.params
    model = load_run(write_run(tuned))
    assert model.params.keys() == {"encoder", "pooler"} and model.config.model.head == "vector"
    jax.tree.map(np.testing.assert_array_equal, model.params["encoder"], tuned.params["encoder"])
    folder = export_huggingface(model, tmp_path / "exported")
    with safe_open(folder / "model.safetensors", "np") as file:
        assert not [name for name in file.keys() if "decoder" in name]  # noqa: SIM118
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]


def test_average_of_a_run_is_an_encoder_without_decoder(tmp_path: Path) -> None:
    tuned = fine_tuned_model(tmp_path / "run", "denoising")
    metadata = read_metadata(write_run(tuned))
    base_metadata = {name: value for name, value in metadata.items() if name not in ("arrays", "step")}
    with Checkpoints(tmp_path / "run" / DIRECTORY, keep_last=2) as checkpoints:
        checkpoints.save(5, {"params": tuned.params}, base_metadata)
    model = load_run(average(tmp_path / "run", 2).directory)
    assert model.params.keys() == {"encoder", "pooler"} and model.config.model.head == "vector"


@pytest.mark.long
def test_training_lowers_the_loss_and_leaves_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(sentences(256, 0)))
    start = small_start(tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = small_config("pairs", start, Path(""), tmp_path / "run")
    task = TaskConfig("denoising", from_text=(f"lines:{tmp_path}/text.txt",), epochs=3)
    config = DENOISING.completed(replace(config, name="denoising", task=task))
    assert config.task.positives == ("noise",)
    content = load_content(config, start)
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda text: None)
    records = read_metrics(tmp_path / "run" / METRICS_FILE)
    losses = [record["train/denoising_loss"] for record in records if "train/denoising_loss" in record]
    assert losses[-1] < 0.6 * losses[0] and result.figures["eval/accuracy"] > 0
    assert load_run(tmp_path / "run").params.keys() == {"encoder", "pooler"}
