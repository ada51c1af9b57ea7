"""Batches of a task have every example once per epoch and are equal on every host."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_rows import numbered_rows

from bertjax.config import MeshConfig, ModelConfig
from bertjax.finetune.batches import TaskBatches, padded, padded_length
from bertjax.finetune.predict import Predictor
from bertjax.input.feed import open_feed
from bertjax.parallel.mesh import make_mesh

LENGTHS = [3, 17, 5, 9, 30, 4, 8]


def test_padded_rows_have_tokens_then_padding() -> None:
    batch = padded(numbered_rows(LENGTHS), np.array([2, -1, 1]), 20, pad_id=7)
    assert batch["input_ids"].tolist() == [
        [*range(200, 205), *[7] * 15],
        [7] * 20,
        [*range(100, 117), *[7] * 3],
    ]
    assert batch["sequence_ids"].sum(axis=1).tolist() == [5, 0, 17]
    assert batch["labels"].tolist() == [[2], [0], [1]] and batch["label_weights"].tolist() == [[1], [0], [1]]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 2**40))
def test_epochs_reorder_all_examples(lengths: list[int], size: int, seed: int) -> None:
    batches = TaskBatches(numbered_rows(lengths), 0, 64, seed)
    count = len(lengths)
    steps = -(-3 * count // size)
    seen = np.concatenate([batches.batch(step, size)["labels"][:, 0] for step in range(steps)])
    epochs = [seen[epoch * count : (epoch + 1) * count].tolist() for epoch in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    if count > 12:
        assert epochs[0] != epochs[1] and epochs[1] != epochs[2]


def test_hosts_pad_rows_to_the_global_length() -> None:
    batches = TaskBatches(numbered_rows(LENGTHS), 0, 64, seed=3)
    for step in range(6):
        whole = batches.batch(step, 4)
        for host in (slice(0, 2), np.array([2, 3])):
            part = batches.batch(step, 4, host)
            assert all((part[key] == whole[key][host]).all() for key in whole)


def test_block_sparse_rows_keep_their_length() -> None:
    network = ModelConfig(attention_block=4, random_blocks=1)  # full attention in rows of up to 28 tokens
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    lengths = np.random.default_rng(0).integers(3, 61, 150)
    batches = [*Predictor(lambda *_: None, network, mesh, 16, 0, 61, False).batches(lengths)]
    assert sorted(np.concatenate([chosen[chosen >= 0] for chosen, _ in batches])) == [*range(150)]
    for chosen, length in batches:
        needed = lengths[chosen[chosen >= 0]]
        assert len(chosen) in (2, 4, 8, 16) and needed.max() <= length
        if length > 28:
            assert (np.minimum(-(-needed // 4) * 4, 61) == length).all() and len(chosen) < max(4, 2 * len(needed) + 1)
    # At most two batch sizes for each length with blocks, and only full batches for the others.
    assert len({(len(chosen), length) for chosen, length in batches}) <= 2 * 9 + 4
    assert all(len(chosen) == 16 for chosen, length in batches if length <= 28)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("engine", ["tf.data", "threads"])
def test_feed_takes_batches_of_changing_shape(engine: str, packed: bool) -> None:
    if engine == "tf.data":
        pytest.importorskip("tensorflow")
    batches = TaskBatches(numbered_rows(LENGTHS), 0, 64, seed=5, packed=packed)
    with open_feed(batches, start_step=2, stop_step=9, global_batch_size=2, threads=2, engine=engine) as feed:
        received = list(feed)
    expected = [batches.batch(step, 2) for step in range(2, 9)]
    assert len({batch["input_ids"].shape for batch in expected}) > 1
    for ours, theirs in zip(received, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(ours[key].dtype == theirs[key].dtype and (ours[key] == theirs[key]).all() for key in ours)


@pytest.mark.parametrize(
    ("needed", "most", "length"),
    [
        (1, 512, 16),
        (17, 512, 32),
        (17, 20, 20),
        (65, 128, 96),
        (513, 1024, 640),
        (30, 30, 30),
        (1025, 8192, 1280),
        (8190, 8192, 8192),
    ],
)
def test_batch_lengths_are_few_and_bounded(needed: int, most: int, length: int) -> None:
    assert padded_length(needed, most) == length
