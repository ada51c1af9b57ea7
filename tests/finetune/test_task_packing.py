"""Packed rows contain each example once and unchanged; loss and gradient match single rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import numbered_rows
from one_step import one_step, require_equal_gradients
from small_tasks import COLOURS, sentences, small_start

from bertjax.families.registry import get_family
from bertjax.finetune.batches import TaskBatches, lay_out, pack_examples, padded
from bertjax.finetune.data.examples import Question, TaggedSentence, TextExample
from bertjax.finetune.encoding.question_windows import QuestionCounts, WindowSizes, question_windows
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.encoding.tag_windows import TagCounts, tag_windows
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.kinds.token_numbers import number_windows
from bertjax.finetune.run import Start
from bertjax.input.lengths import LengthCounts

some_lengths = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 600)), min_size=1, max_size=80)


@given(some_lengths, st.integers(0, 2**40), st.integers(1, 12))
def test_every_example_has_its_own_position(lengths: list[int], key: int, multiple: int) -> None:
    sizes = np.array(lengths, np.int64)
    places = pack_examples(sizes, key, multiple)
    assert sorted(places.example) == list(range(len(lengths)))
    assert places.rows % multiple == 0 and (places.row < places.rows).all() and (places.slot < places.slots).all()
    assert len({*zip(places.row.tolist(), places.slot.tolist(), strict=True)}) == len(lengths)
    occupied = np.zeros((places.rows, places.length), int)
    for example, row, start in zip(places.example, places.row, places.start, strict=True):
        assert start + sizes[example] <= places.length
        occupied[row, start : start + sizes[example]] += 1
    assert occupied.max() == 1 and occupied.sum() == sizes.sum()
    # Dropout's masks depend on row and position, which must not depend on the number of devices.
    alone = pack_examples(sizes, key)
    assert alone.length == places.length and alone.rows <= places.rows
    for name in ("example", "row", "slot", "start"):
        assert (getattr(alone, name) == getattr(places, name)).all()


def test_packing_has_little_padding_and_few_shapes() -> None:
    draw = np.random.default_rng(0)
    # Lengths like SST-2's and MRPC's: means of 13.5 and 53 tokens.
    for mean, most_shapes in ((13.5, 5), (53, 5)):
        shapes, real, computed = set(), 0, 0
        for batch in range(200):
            lengths = np.clip(draw.gamma(4, mean / 4, 32).astype(np.int64), 3, 120)
            places = pack_examples(lengths, batch)
            shapes.add((places.rows, places.length))
            real, computed = real + lengths.sum(), computed + places.rows * places.length
        assert computed < 1.2 * real and len(shapes) <= most_shapes


def test_packing_keeps_rows_for_every_device() -> None:
    places = pack_examples(np.full(32, 13), 0)
    assert (places.rows, places.length) == (8, 64)
    assert pack_examples(np.array([200]), 0).length == 256 and pack_examples(np.array([3]), 0).length == 16


@given(some_lengths, st.integers(0, 2**40))
def test_packed_examples_are_unchanged(lengths: list[int], key: int) -> None:
    rows = numbered_rows(lengths, spacing=1000)
    chosen = np.random.default_rng(key).permutation(len(lengths))
    batch = lay_out(rows, chosen, pack_examples(rows.lengths[chosen], key), pad_id=-7)
    numbers = []
    for row, slot in np.argwhere(batch["label_weights"] > 0):
        number, start = int(batch["labels"][row, slot]), int(batch["cls_positions"][row, slot])
        here = batch["sequence_ids"][row] == slot + 1
        assert np.flatnonzero(here)[0] == start
        assert batch["input_ids"][row, here].tolist() == [*range(1000 * number, 1000 * number + lengths[number])]
        numbers.append(number)
    assert sorted(numbers) == list(range(len(lengths)))
    padding = batch["sequence_ids"] == 0
    assert (batch["input_ids"][padding] == -7).all() and (~padding).sum() == sum(lengths)


LENGTHS = [3, 17, 5, 9, 30, 4, 8, 12, 21, 2, 40, 6]


def test_devices_get_their_rows_of_the_batch() -> None:
    batches = TaskBatches(numbered_rows(LENGTHS), 0, 64, seed=3, packed=True, shards=4, microbatches=2)
    for step in range(6):
        whole = batches.batch(step, 16)
        rows = len(whole["input_ids"])
        assert rows % 8 == 0
        for host, shards in ((slice(0, 8), [0, 1]), (np.array([8, 9, 10, 11]), [2]), (np.arange(12, 16), [3])):
            part = batches.batch(step, 16, host)
            host_rows = np.arange(rows).reshape(4, -1)[shards].ravel()
            assert all((part[key] == whole[key][host_rows]).all() for key in whole)


def test_packed_epochs_have_every_example_once() -> None:
    few = TaskBatches(numbered_rows(LENGTHS, first_label=1), 0, 64, seed=3, packed=True)
    many = TaskBatches(numbered_rows(LENGTHS, first_label=1), 0, 64, seed=3, packed=True, shards=8)
    for step in range(3):
        one, other = few.batch(step, len(LENGTHS)), many.batch(step, len(LENGTHS))
        assert sorted(one["labels"][one["label_weights"] > 0]) == list(range(1, 1 + len(LENGTHS)))
        for key, rows in one.items():
            assert (other[key][: len(rows)] == rows).all() and not other["sequence_ids"][len(rows) :].any()


COUNT = 24


def encode_rows(kind: str, start: Start, length: int = 32) -> TaskRows:
    """Encode rows of a kind of task with different labels and weights."""
    template = get_family(start.model.family).template
    texts = sentences(COUNT, 1)
    weights = [1.0, 0.5, 2.0]

    def tag_words(tag: Callable[[str], str]) -> list[TaggedSentence]:
        return [
            TaggedSentence("here", str(n), words, tuple(map(tag, words)))
            for n, words in enumerate(tuple(text.split()) for text in texts)
        ]

    if kind == "tokens":
        tagged = tag_words(lambda word: COLOURS[len(word) % 3])
        return tag_windows(tagged, COLOURS, start.tokenizer, length, TagCounts(), label_weights=weights).rows
    if kind == "token_regression":
        return number_windows(tag_words(lambda word: str(len(word))), start.tokenizer, length, TagCounts()).rows
    if kind == "span":
        questions = [
            Question("here", str(n), "what colour ?", text, ((text.split()[1], text.index(text.split()[1])),), False)
            for n, text in enumerate(texts)
        ]
        return question_windows(questions, start.tokenizer, WindowSizes(length, 8, 8, template), QuestionCounts()).rows
    labels = [text.split()[1] if kind == "sequence" else float(n % 2) for n, text in enumerate(texts)]
    others = sentences(COUNT, 2)
    examples = [TextExample("here", str(n), (texts[n], others[n]), labels[n]) for n in range(COUNT)]
    options = {"label_weights": weights} if kind == "sequence" else {}
    return KINDS[kind].encode(examples, COLOURS, start.tokenizer, length, LengthCounts(), template=template, **options)


PACKED = [kind.name for kind in KINDS.values() if kind.packed and kind.own_task]  # kinds that can be trained
SHORT = ("sequence",)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind not in SHORT)) for kind in PACKED]
)
def test_packed_loss_and_gradient_match_single_rows(kind: str, tmp_path: Path) -> None:
    start = small_start(tmp_path)
    rows = encode_rows(kind, start)
    labels = len(COLOURS) if kind in ("sequence", "tokens") else 0
    everything, pad_id = np.arange(COUNT), start.tokenizer.pad_id
    single = one_step(kind, 1, padded(rows, everything, 32, pad_id), start, labels)
    packed = lay_out(rows, everything, pack_examples(rows.lengths, 3), pad_id)
    assert len(packed["input_ids"]) < COUNT and packed["sequence_ids"].max() > 2
    spread = lay_out(rows, everything, pack_examples(rows.lengths, 3, 8), pad_id)
    parted = one_step(kind, 4, spread, start, labels, microbatches=2)
    assert parted.figures == pytest.approx(single.figures, rel=2e-6)
    require_equal_gradients(single.gradient, parted.gradient, 5e-6)
