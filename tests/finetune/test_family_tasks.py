"""Each family learns each task, with single or packed rows, and is exported with equal logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from exported_models import trained_model
from family_models import tokenizer_of, traits
from one_step import one_step, require_equal_gradients
from small_tasks import (
    COLOURS,
    load_content,
    sentences,
    small_config,
    small_start,
    write_choices,
    write_pairs,
    write_questions,
    write_tags,
)
from test_task_packing import PACKED, encode_rows

from bertjax.config import FinetuneConfig
from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import has_class
from bertjax.convert.sources import write_run
from bertjax.families.registry import FAMILIES
from bertjax.finetune.batches import lay_out, pack_examples, padded
from bertjax.finetune.job import resolved
from bertjax.finetune.predict import TaskModel
from bertjax.finetune.run import Start, finetune, initial_params
from bertjax.model.network import GENERATOR
from bertjax.model.parameters import named_arrays
from bertjax.pipeline.finetuning import read_start
from bertjax.run.run_directory import load_run
from bertjax.runtime.processes import alone

pytestmark = pytest.mark.usefixtures("one_device")

TASKS: dict[str, tuple[Callable[[Path], Path], str, float]] = {  # files, figure, least value
    "classification": (partial(write_pairs, train=384), "eval/accuracy", 0.9),
    "choice": (write_choices, "eval/accuracy", 0.9),
    "pos": (write_tags, "eval/accuracy", 0.95),
    "squad": (write_questions, "eval/exact_match", 0.9),
}


def make_start(family: str, folder: Path) -> Start:
    """Make a small network of a family with a tokenizer of its kind."""
    words = [*sentences(40, 0), "what colour is the cat ?"]
    # Rows short enough for full attention, because blocks would differ in packed or padded rows.
    short = {"attention_block": 64} if traits(family)["attention_block"] else {}
    return small_start(folder, tokenizer_of(family, words), **(traits(family) | short | {"initializer_range": 0.1}))


def make_config(task: str, start: Start, folder: Path) -> FinetuneConfig:
    """Train for twelve epochs in rows of 64 tokens; twice as long for DeBERTa v2, v3 and narrow embeddings.

    DeBERTa has no absolute positions to compose words from characters with, and some pairs are truncated.
    """
    texts = {"text": ("text", "text_b")} if task == "classification" else {}
    config = small_config(
        task,
        start,
        TASKS[task][0](folder / "data"),
        folder / "run",
        epochs=24 if start.model.relative_norm or start.model.embedding_size else 12,
        **texts,
    )
    training = replace(config.training, eval_every=1000)
    return replace(config, data=replace(config.data, sequence_length=64), training=training)


@pytest.mark.long  # BERT learns tasks in test_run.py, and tests/convert exports them for each family
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_family_learns_and_exports_a_task(family: str, task: str, tmp_path: Path) -> None:
    start = make_start(family, tmp_path / "start")
    config = make_config(task, start, tmp_path)
    with alone() as processes:
        result = finetune(config, start, load_content(config, start), processes, lambda _: None)
    _, figure, least = TASKS[task]
    assert result.figures[figure] >= least, result
    model = load_run(result.directory)
    if not has_class(model.config.model):
        return
    folder = export_huggingface(model, tmp_path / "out")
    differences = compare_with_transformers(model, folder)
    assert differences is None or differences.largest < 1e-5
    if differences is not None and task in THEIRS:
        inputs, theirs = THEIRS[task](config.task.data, folder)
        ours = [np.ravel(list(_probabilities(one))) for one in TaskModel(model).predict(inputs)]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_token_pooler_starts_as_mlm_transform(tmp_path: Path) -> None:
    start = make_start("modernbert", tmp_path / "start")
    start = replace(start, params=jax.tree.map(lambda x: x + 1, start.params))  # values that no seed draws
    config = make_config("pos", start, tmp_path)
    lines: list[str] = []
    params = initial_params(resolved(config, load_content(config, start)), start, lines.append)
    expected = {"dense": start.params["mlm_head"]["transform"], "norm": start.params["mlm_head"]["norm"]}
    jax.tree.map(np.testing.assert_array_equal, params["pooler"], expected)


@pytest.mark.parametrize("sharing", [pytest.param("tied", marks=pytest.mark.long), "gdes"])
def test_task_starts_from_the_discriminator(sharing: str, tmp_path: Path) -> None:
    """The layers of generator and discriminator have equal shapes here, so that the wrong ones would fit."""
    electra = traits("electra") | {"generator_width": 1.0, "embedding_sharing": sharing}
    model = trained_model(tmp_path / "pretrained", tokenizer_of("electra"), **electra)
    write_run(model)
    start = read_start(str(model.directory))
    config = small_config("classification", start, write_pairs(tmp_path / "data"), tmp_path / "run")
    config = resolved(config, load_content(config, start))
    assert config.model.generator_width == 0.0 and config.model.embedding_sharing == "tied"
    params = initial_params(config, start, print)
    assert params.keys() == {"encoder", "pooler", "head"}, "nothing of the generator"
    ours, discriminator, generator = (
        named_arrays(tree) for tree in (params["encoder"], model.params["encoder"], model.params[GENERATOR]["encoder"])
    )
    layers = [name for name in ours if "layers/" in name]
    assert layers and generator.keys() >= {*layers}
    for name in layers:
        np.testing.assert_array_equal(ours[name], discriminator[name], name)
        assert ours[name].shape == generator[name].shape and not np.array_equal(ours[name], generator[name]), name
    # With "gdes" the discriminator's word table is the generator's plus a difference.
    words = discriminator["embeddings/word"] + (discriminator["embeddings/word_difference"] if sharing == "gdes" else 0)
    np.testing.assert_array_equal(ours["embeddings/word"], words)


def _probabilities(prediction: Any) -> Iterable[float]:
    """Get the probabilities of a `Prediction` or `Choice`."""
    probabilities = prediction.probabilities
    return probabilities.values() if isinstance(probabilities, dict) else probabilities


def _their_classes(data: str, folder: Path) -> tuple[list[Any], np.ndarray]:
    """Get (pairs of the development set, probabilities of their classes by transformers)."""
    lines = (Path(data) / "dev.tsv").read_text().splitlines()[1:]
    pairs = [tuple(line.split("\t")[:2]) for line in lines]
    return pairs, _their_shares(folder, "SequenceClassification", [a for a, _ in pairs], [b for _, b in pairs], 1)


def _their_choices(data: str, folder: Path) -> tuple[list[Any], np.ndarray]:
    """Get (starts with their ends in the development set, probabilities of the ends by transformers)."""
    records = [json.loads(line) for line in (Path(data) / "dev.jsonl").read_text().splitlines()]
    ends = [end for record in records for end in record["text_b"]]
    starts = [record["text"] for record in records for _ in record["text_b"]]
    inputs = [(record["text"], record["text_b"]) for record in records]
    return inputs, _their_shares(folder, "MultipleChoice", starts, ends, len(COLOURS))


def _their_shares(folder: Path, name: str, firsts: list[str], seconds: list[str], choices: int) -> np.ndarray:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = getattr(transformers, f"AutoModelFor{name}").from_pretrained(folder).eval()
    inputs = tokenizer(firsts, seconds, padding=True, truncation=True, return_tensors="pt")
    if choices > 1:
        inputs = {key: rows.reshape(-1, choices, rows.shape[-1]) for key, rows in inputs.items()}
    with torch.no_grad():
        return torch.softmax(network(**inputs).logits, -1).numpy()


THEIRS = {"classification": _their_classes, "choice": _their_choices}


@pytest.mark.long  # the suite packs BERT's rows in test_task_packing.py
@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_match_single_rows(family: str, kind: str, tmp_path: Path) -> None:
    start = make_start(family, tmp_path)
    rows = encode_rows(kind, start, 64)
    labels = len(COLOURS) if kind in ("sequence", "tokens") else 0
    everything, pad_id = np.arange(len(rows)), start.tokenizer.pad_id
    single = one_step(kind, 1, padded(rows, everything, int(rows.lengths.max()), pad_id), start, labels)
    packed = lay_out(rows, everything, pack_examples(rows.lengths, 3), pad_id)
    assert len(packed["input_ids"]) < len(rows) and packed["sequence_ids"].max() > 1
    shared = one_step(kind, 1, packed, start, labels)
    assert shared.figures == pytest.approx(single.figures, rel=2e-6)
    require_equal_gradients(single.gradient, shared.gradient, 5e-6)
