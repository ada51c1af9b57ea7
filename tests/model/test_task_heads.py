"""Task heads: logits, losses and gradients match transformers; packing and padding change nothing."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_training import Training
from their_model import assert_same_gradients, our_params, relative, their_model

from bertjax.config import Config, MeshConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainingConfig, validate
from bertjax.convert.huggingface.names import to_huggingface_tensors
from bertjax.families.networks import abstract_network, init_params
from bertjax.finetune.kinds import KINDS
from bertjax.model.network import bind, check_head
from bertjax.model.parameters import named_arrays
from bertjax.model.task_heads import TASK_NETWORKS, BiLstmLayer
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import check_divisible, is_names, spec
from bertjax.training.objectives.objective import MODEL, Forward
from bertjax.training.step import averages, batch_weights, objective_sums, several_sequences

CONFIG = ModelConfig(
    vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160,
    max_position_embeddings=64, vocab_pad_multiple=8,
)  # fmt: skip
ROWS, LENGTH, CHOICES = 12, 24, 4
HEADS = {
    "sequence": {"num_labels": 3},
    "choice": {},
    "tokens": {"num_labels": 5},
    "span": {},
    "vector": {},
}


def with_head(head: str, **fields) -> ModelConfig:
    return replace(CONFIG, head=head, **(HEADS[head] | fields))


def texts(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of different lengths with two segments: [rows, LENGTH]."""
    draw = np.random.default_rng(seed)
    real = (np.arange(LENGTH) < draw.integers(10, LENGTH + 1, (rows, 1))).astype(np.int32)
    return {
        "input_ids": draw.integers(1, CONFIG.vocab_size, real.shape).astype(np.int32) * real,
        "token_type_ids": ((np.arange(LENGTH) >= draw.integers(3, 9, (rows, 1))) * real).astype(np.int32),
        "sequence_ids": real,
        "cls_positions": np.zeros((rows, 1), np.int32),
    }


def pack(batch: dict[str, np.ndarray], together: int) -> dict[str, np.ndarray]:
    """Pack the sequences, `together` of them in each row."""
    lengths = batch["sequence_ids"].sum(axis=1).reshape(-1, together)
    starts = np.cumsum(lengths, axis=1) - lengths
    rows = {key: np.zeros((len(lengths), together * LENGTH), np.int32) for key in list(batch)[:3]}
    for row, place in np.ndindex(*lengths.shape):
        stretch = slice(starts[row, place], starts[row, place] + lengths[row, place])
        for key in ("input_ids", "token_type_ids"):
            rows[key][row, stretch] = batch[key][row * together + place, : lengths[row, place]]
        rows["sequence_ids"][row, stretch] = place + 1
    return rows | {"cls_positions": starts.astype(np.int32)}


def encode(network, batch, keys=None) -> jax.Array:
    inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
    return network.encode(*inputs, keys, packed=batch["cls_positions"].shape[1] > 1)


def some_hidden(rows: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(5).normal(size=(rows, LENGTH, CONFIG.hidden_size)), jnp.float32)


def all_logits(network, batch) -> jax.Array:
    return head_logits(network, encode(network, batch), batch)


def head_logits(network, hidden, batch, keys=None) -> jax.Array:
    if hasattr(network, "sequence_logits"):
        return network.sequence_logits(hidden, batch["cls_positions"], keys)
    if hasattr(network, "choice_logits"):
        return network.choice_logits(hidden, batch["cls_positions"], keys)
    if hasattr(network, "token_logits"):
        return network.token_logits(hidden, batch["sequence_ids"], keys)
    return network.span_logits(hidden)


@functools.cache
def draw_params(config: ModelConfig) -> dict:
    """Random parameters, drawn without compiling a program."""
    draw = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: draw.normal(0, 0.1, leaf.shape).astype(np.float32), abstract_network(config)[1])


def add_labels(head: str, batch: dict[str, np.ndarray], regression: bool = False) -> dict[str, np.ndarray]:
    """Add labels to a batch; some have weight 0, as in tasks."""
    draw = np.random.default_rng(7)
    rows, length = batch["input_ids"].shape
    if head == "span":
        ends = np.sort(draw.integers(0, batch["sequence_ids"].sum(1)[:, None], (rows, 2)), axis=1).astype(np.int32)
        return batch | {"starts": ends[:, :1], "ends": ends[:, 1:], "label_weights": np.ones((rows, 1), np.float32)}
    shape = {"sequence": (rows, 1), "choice": (rows,), "tokens": (rows, length)}[head]
    labels = draw.integers(0, HEADS[head].get("num_labels", CHOICES), shape).astype(np.int32)
    weights = (draw.random(shape) < 0.6).astype(np.float32)
    if head == "tokens":
        weights *= batch["sequence_ids"]
    if regression:
        labels = draw.normal(2, 1, shape).astype(np.float32)
    return batch | {"labels": labels, "label_weights": weights}


def their_logits(network, batch: dict[str, np.ndarray], choices: int = 0):
    import torch

    inputs = {key: batch[key] for key in ("input_ids", "token_type_ids")} | {"attention_mask": batch["sequence_ids"]}
    tensors = {key: torch.from_numpy(x).long() for key, x in inputs.items()}
    if choices:
        tensors = {key: x.unflatten(0, (-1, choices)) for key, x in tensors.items()}
    out = network(**tensors)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], dim=-1)
    return out.logits


def their_loss(head: str, logits, batch: dict[str, np.ndarray], class_weights: np.ndarray | None = None):
    """Compute the loss as transformers' classes do, where -100 marks a missing label."""
    import torch

    entropy = torch.nn.functional.cross_entropy
    if head == "span":
        starts, ends = (torch.from_numpy(batch[key][:, 0]).long() for key in ("starts", "ends"))
        return (entropy(logits[..., 0], starts) + entropy(logits[..., 1], ends)) / 2
    labels, weights = batch["labels"], batch["label_weights"] > 0
    if labels.dtype == np.float32:
        return torch.nn.functional.mse_loss(logits[:, 0][weights[:, 0]], torch.from_numpy(labels)[weights])
    targets = torch.from_numpy(np.where(weights, labels, -100)).long()
    weight = None if class_weights is None else torch.from_numpy(class_weights)
    return entropy(logits.reshape(targets.numel(), -1), targets.flatten(), weight=weight)


def our_loss(
    kind: str, config: ModelConfig, params: dict, batch: dict[str, np.ndarray]
) -> tuple[float, np.ndarray, dict]:
    """Compute (loss, logits, gradients by transformers' names) as the train step does."""
    graphdef, objectives = abstract_network(config)[0], (KINDS[kind].objective(TaskConfig()),)

    def loss(params: dict) -> tuple[jax.Array, jax.Array]:
        network = bind(graphdef, params)
        sums = objective_sums(Forward({MODEL: network}, None, packed=several_sequences(batch)), batch, None, objectives)
        return averages(sums, batch_weights(batch, objectives), objectives)["loss"], all_logits(network, batch)

    (value, logits), gradients = jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))
    return float(value), logits, to_huggingface_tensors(gradients, config)


def assert_gradients_equal(ours: dict[str, np.ndarray], network) -> None:
    assert_same_gradients(ours, {name: p.grad.numpy() for name, p in network.named_parameters()})


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("sequence", with_head("sequence")),
        ("regression", with_head("sequence", num_labels=1)),
        # The tests below cover these, with class weights and with padding.
        pytest.param("tokens", with_head("tokens"), marks=pytest.mark.long),
        pytest.param("span", with_head("span"), marks=pytest.mark.long),
        ("choice", with_head("choice", hidden_act="gelu_tanh")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_logits_losses_and_gradients_match_transformers(kind, config):
    network, head = their_model(config), config.head
    plain = texts(ROWS * CHOICES if head == "choice" else ROWS)
    if head == "span":  # transformers gives padding a share of the probability, ours does not
        plain |= {key: plain[key][:, :10] for key in ("input_ids", "token_type_ids", "sequence_ids")}
    batch = add_labels(head, pack(plain, CHOICES) if head == "choice" else plain, kind == "regression")
    theirs = their_logits(network, plain, CHOICES if head == "choice" else 0)
    value, ours, gradients = our_loss(kind, config, our_params(network, config), batch)
    ours = ours[:, 0] if head == "sequence" else ours
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    real = batch["sequence_ids"] > 0 if head in ("tokens", "span") else slice(None)
    assert relative(ours[real], theirs.detach().numpy()[real]) < 2e-6
    loss = their_loss(head, theirs, batch)
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=2e-6)
    assert_gradients_equal(gradients, network)


def test_class_weights_match_torch():
    head, config = "tokens", with_head("tokens")
    network = their_model(config)
    class_weights = np.random.default_rng(3).uniform(0.2, 3, config.num_labels).astype(np.float32)
    batch = add_labels(head, texts(ROWS))
    theirs = their_logits(network, batch)
    loss = their_loss(head, theirs, batch, class_weights)
    loss.backward()
    weighted = batch | {"label_weights": batch["label_weights"] * class_weights[batch["labels"]]}
    value, ours, gradients = our_loss(head, config, our_params(network, config), weighted)
    real = batch["sequence_ids"] > 0
    assert relative(ours[real], theirs.detach().numpy()[real]) < 2e-6
    assert value == pytest.approx(loss.item(), rel=2e-6)
    assert_gradients_equal(gradients, network)


def test_spans_of_padded_rows_match_transformers():
    config = with_head("span")
    network, batch = their_model(config), add_labels("span", texts(ROWS))
    logits = their_logits(network, batch)
    real = batch["sequence_ids"] > 0
    value, ours, gradients = our_loss("span", config, our_params(network, config), batch)
    assert relative(ours[real], logits.detach().numpy()[real]) < 2e-6
    import torch

    masked = logits.masked_fill(~torch.from_numpy(real)[..., None], torch.finfo(torch.float32).min)
    loss = their_loss("span", masked, batch)
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=2e-6)
    assert_gradients_equal(gradients, network)


@pytest.mark.parametrize("head", [pytest.param("tokens", marks=pytest.mark.long), "vector"])
def test_packed_sequences_equal_single_sequences(head):
    config = with_head(head)
    alone, batch = texts(ROWS), pack(texts(ROWS), 3)
    graphdef = abstract_network(config)[0]

    def outputs(params: dict, batch: dict) -> jax.Array:
        network = bind(graphdef, params)
        if head == "vector":
            return network.vectors(encode(network, batch), batch["sequence_ids"], batch["cls_positions"].shape[1])
        return all_logits(network, batch)

    actual, expected = (jax.device_get(jax.jit(outputs)(draw_params(config), rows)) for rows in (batch, alone))
    if head == "tokens":
        actual, expected = actual[batch["sequence_ids"] > 0], expected[alone["sequence_ids"] > 0]
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, atol=2e-6)


def test_vectors_are_normalised_means():
    config, batch = with_head("vector"), texts(ROWS)
    network = bind(abstract_network(config)[0], draw_params(config))
    hidden = some_hidden(ROWS)
    actual = np.asarray(network.vectors(hidden, batch["sequence_ids"], 2))
    for row, real in enumerate(batch["sequence_ids"] > 0):
        mean = np.asarray(hidden)[row, real].mean(axis=0)
        np.testing.assert_allclose(actual[row, 0], mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-6)
    assert not actual[:, 1].any()
    # The gradient stays finite for a sequence that a row lacks.
    gradient = jax.grad(lambda hidden: network.vectors(hidden, batch["sequence_ids"], 2)[:, 1].sum())(hidden)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("head", ["sequence", "choice", "tokens"])
def test_head_dropout_depends_on_row_keys(head):
    config = with_head(head)
    network = bind(abstract_network(config)[0], draw_params(config))
    batch = {key: np.repeat(x, 4, axis=0) for key, x in texts(1).items()}
    hidden = jnp.repeat(some_hidden(1), 4, axis=0)
    with_keys = np.asarray(head_logits(network, hidden, batch, jnp.array([1, 2, 1, 3], jnp.uint32)))
    without = np.asarray(head_logits(network, hidden, batch))
    # Not exact: a kernel may compute the rows of a product with different instructions.
    np.testing.assert_allclose(with_keys[0], with_keys[2], rtol=1e-5, atol=1e-6)
    for other in (with_keys[1], with_keys[3], without[0]):
        assert np.abs(with_keys[0] - other).max() > 1e-4


FEATURES = with_head("tokens", features=(-1, 0, 2), lstm_size=6)


def test_feature_based_variant_reads_a_frozen_encoder():
    batch, params = texts(ROWS), draw_params(FEATURES)
    graphdef, keys = abstract_network(FEATURES)[0], jnp.arange(ROWS, dtype=jnp.uint32)
    inputs = [batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids")]

    def total(params: dict) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        network = bind(graphdef, params)
        hidden = encode(network, batch, keys)
        states = network.encoder.hidden_states(*inputs, packed=False)
        return jnp.square(head_logits(network, hidden, batch, keys)).sum(), (hidden, states)

    gradients, (hidden, states) = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(params))
    # Not exact: `hidden` and `states` come from two forward passes.
    expected = np.concatenate([states[3], states[0], states[2]], axis=-1)
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-5)
    assert not any(np.asarray(g).any() for g in jax.tree.leaves(gradients["encoder"]))
    assert all(np.asarray(g).any() for g in jax.tree.leaves(gradients["head"]))


def their_lstm(params: dict, width: int, size: int):
    """torch's two-layer LSTM with our weights."""
    torch = pytest.importorskip("torch")
    lstm = torch.nn.LSTM(width, size, num_layers=2, bidirectional=True, batch_first=True)
    for number, name in enumerate(("first", "second")):
        layer = jax.device_get(params[name])
        for direction, suffix in enumerate(("", "_reverse")):
            values = {
                "weight_ih": layer["kernel"][:, direction].reshape(-1, 4 * size).T,
                "weight_hh": layer["recurrent"][direction].reshape(size, 4 * size).T,
                "bias_ih": layer["bias"][direction].reshape(-1),
                "bias_hh": np.zeros(4 * size, np.float32),
            }
            for key, value in values.items():
                getattr(lstm, f"{key}_l{number}{suffix}").data = torch.from_numpy(value.copy())
    return lstm


@pytest.mark.parametrize("together", [1, 3])
def test_bilstm_matches_torch_on_each_sequence(together):
    torch = pytest.importorskip("torch")
    alone = texts(ROWS)
    batch = pack(alone, together)
    network = bind(abstract_network(FEATURES)[0], draw_params(FEATURES))
    x = np.random.default_rng(1).normal(size=(*batch["input_ids"].shape, 192)).astype(np.float32)
    ids = batch["sequence_ids"]

    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        actual = network.head.lstm(x, ids)
        return jnp.where(ids[..., None] > 0, jnp.sin(actual), 0).sum(), actual

    gradient, actual = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(x))
    lstm = their_lstm(draw_params(FEATURES)["head"]["lstm"], 192, 6)
    for row, number in np.ndindex(len(x), together):
        place = ids[row] == number + 1
        theirs_in = torch.from_numpy(x[row, place])[None].requires_grad_()
        theirs = lstm(theirs_in)[0]
        torch.sin(theirs).sum().backward()
        assert relative(actual[row, place], theirs[0].detach().numpy()) < 1e-5
        assert relative(gradient[row, place], theirs_in.grad[0].numpy()) < 1e-5


def losses_on(mesh: MeshConfig) -> np.ndarray:
    """Losses of a training with dropout on the mesh."""
    settings = OptimizerConfig(learning_rate=1e-2, warmup_steps=1)
    objectives = (KINDS["tokens"].objective(TaskConfig()),)
    training = Training(mesh, FEATURES, settings, objectives=objectives, dropout_seed=1)
    return training.losses([add_labels("tokens", texts(ROWS))] * 4)


@pytest.mark.long
def test_feature_based_training_does_not_depend_on_mesh():
    split = losses_on(MeshConfig(1, 2, 2))
    whole = losses_on(MeshConfig(1, 1, 1))
    assert whole[-1] < whole[0] - 0.03
    np.testing.assert_allclose(split, whole, rtol=1e-5)


def test_bilstm_that_a_mesh_cannot_split_is_refused():
    mesh, training = make_mesh(MeshConfig(1, 4, 1), jax.devices()[:4]), TrainingConfig(global_batch_size=8)
    with pytest.raises(ValueError, match=r"model\.lstm_size=6 is not divisible by mesh\.fsdp=4"):
        check_divisible(mesh, FEATURES, training, 304)


def test_bilstm_initial_values_match_torch():
    layer = BiLstmLayer(16, 64, rngs=nnx.Rngs(0))
    for weights in (layer.kernel[...], layer.recurrent[...]):
        assert 0.12 < float(jnp.abs(weights).max()) <= 0.125
    assert set(np.unique(layer.bias[:, 1])) == {1.0} and float(jnp.abs(layer.bias[:, [0, 2, 3]]).max()) == 0.0


@pytest.mark.parametrize(
    "config", [*(with_head(head) for head in TASK_NETWORKS), FEATURES], ids=[*TASK_NETWORKS, "features"]
)
def test_every_parameter_dim_has_a_logical_axis(config):
    _, shapes, axes = abstract_network(config)
    names = jax.tree.leaves(axes, is_leaf=is_names)
    for (parameter, leaf), dims in zip(named_arrays(shapes).items(), names, strict=True):
        assert len(spec(dims)) == len(leaf.shape) == len(dims), parameter


@pytest.mark.long
def test_task_encoder_starts_as_the_pretraining_encoder():
    one, other = (
        jax.jit(functools.partial(init_params, config))(jax.random.key(0)) for config in (CONFIG, with_head("span"))
    )
    jax.tree.map(np.testing.assert_array_equal, one["encoder"], other["encoder"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head": "sequence"}, r"model\.num_labels=0 with model\.head='sequence': this head needs at least 1"),
        ({"head": "span", "num_labels": 2}, r"model\.num_labels=2 with model\.head='span': this head has no labels"),
        ({"lstm_size": 8}, r"model\.lstm_size=8 with model\.head='pretraining': only the head 'tokens' supports them"),
        (
            {"head": "tokens", "num_labels": 2, "features": (-1, -14)},
            r"the model has no layer -14; choose from 1 to 12",
        ),
    ],
)
def test_invalid_head_options_are_refused(fields, message):
    config = ModelConfig(**fields)
    with pytest.raises(ValueError, match=message):
        validate(replace(Config(), model=config)), check_head(config)
