"""A kind of task is added by one file and one registration, without changes to other modules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from small_tasks import BEASTS, load_content, sentences, small_config, small_start

import bertjax
from bertjax.config import plugins, registry
from bertjax.finetune import kinds
from bertjax.finetune.run import finetune
from bertjax.model import network
from bertjax.run.run_directory import load_run
from bertjax.runtime.processes import alone

pytestmark = pytest.mark.usefixtures("one_device")

# Multi-label classification (which words are in a text) with its own head, targets, metric and predictions.
SOURCE = '''
"""Predict which words of a list are in a text."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bertjax
from bertjax.finetune.data.examples import TextExample
from bertjax.input.lengths import LengthCounts
from bertjax.finetune.encoding.rows import Segments
from bertjax.finetune.encoding.texts import encode_texts
from bertjax.finetune.kinds.kind import Card, Kind, Recipe, Split, Task, TaskContent
from bertjax.model.heads import gather_positions
from bertjax.model.encoder import TaskNetwork
from bertjax.model.task_heads import TaskHead


class SetNetwork(TaskNetwork):
    name, transformers = "words_at_cls", "ForSequenceClassification"
    labelled = True

    def __init__(self, config, execution, *, rngs):
        super().__init__(config, execution, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, config.num_labels, rngs=rngs)

    def word_logits(self, hidden_BLD, cls_positions_BS, keys=None):
        return self.head(gather_positions(hidden_BLD, cls_positions_BS), keys)


class WordSetKind(Kind):
    name, network, own_task = "word_set", SetNetwork, "words"
    metrics = ("exact",)
    packed = False
    names_outputs = True
    card = Card("text-classification", "finds the words of a text", "")

    def sums(self, task, forward, batch, keys):
        logits = forward.model.word_logits(forward(batch), batch["cls_positions"], keys)[:, 0]
        weights = batch["label_weights"]
        loss = optax.sigmoid_binary_cross_entropy(logits, batch["targets"]).mean(-1)
        hits = ((logits > 0) == (batch["targets"] > 0.5)).mean(-1)
        return {"loss": jnp.sum(loss * weights), "accuracy": jnp.sum(hits * weights)}

    def outputs(self, model, hidden, batch):
        return model.word_logits(hidden, batch["cls_positions"])[:, 0]

    def own(self, config):
        return Task("own", self, self.metrics, Recipe(2e-5), _read, config.labels)

    def labels_in(self, train):
        return tuple(sorted({word for example in train for word in example.label}))

    def shared_part(self, example):
        return example.texts

    def load(self, task, config, tokenizer, splits):
        def make_rows(examples):
            counts = LengthCounts()
            length = config.data.sequence_length
            rows = encode_texts(examples, Segments.one_sequence(1), tokenizer, length, counts)
            targets = np.array([[word in one.label for word in task.labels] for one in examples], np.float32)
            return rows.extended(rows={"targets": targets, "label_weights": np.ones(len(examples), np.float32)})

        def split(name, examples):
            rows = make_rows(examples)
            measure = lambda logits: {"exact": float(np.mean(((logits > 0) == (rows.rows["targets"] > 0)).all(-1)))}
            return Split(rows, partial(_write, name, task.labels), measure)

        parts = {name: split(name, examples) for name, examples in splits.dev.items()}
        return TaskContent(self, task.labels, make_rows(splits.train), parts, {}, task.metrics)

    def predict(self, model, inputs):
        examples = [TextExample(f"input {n}", str(n), (text,), None) for n, text in enumerate(inputs, 1)]
        rows = encode_texts(examples, Segments.one_sequence(1), model.tokenizer, model.max_length, model.counts)
        rows = rows.extended(rows={"targets": np.zeros((len(rows), len(model.labels)), np.float32),
                                   "label_weights": np.zeros(len(rows), np.float32)})
        return [_named(model.labels, logits) for logits in model.outputs(rows)]

    def lines(self, prediction):
        return sorted(prediction)


def _read(data, split, notify):
    lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()] if split != "test" else []
    return [TextExample(f"{split}:{n}", str(n), (one["text"],), tuple(one["words"])) for n, one in enumerate(lines)]


def _named(labels, logits):
    return {label for label, logit in zip(labels, logits, strict=True) if logit > 0}


def _write(name, labels, folder, logits):
    path = folder / f"{name}.txt"
    path.write_text("".join(" ".join(sorted(_named(labels, row))) + "\\n" for row in logits))
    return [path]


WORD_SET = WordSetKind()
bertjax.register("task_kinds", "word_set", WORD_SET)
bertjax.register("task_networks", SetNetwork.name, SetNetwork)
'''


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Register the kind by a plug-in for the duration of a test; returns its module."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(registry, "loaded_plugins", dict(registry.loaded_plugins))
    path = tmp_path / "word_set.py"
    path.write_text(SOURCE)
    plugins.use_plugins([str(path)])
    return sys.modules["bertjax_plugin_word_set"]


def write_words(folder: Path) -> Path:
    folder.mkdir()
    for number, (name, count) in enumerate({"train": 16, "dev": 16}.items()):
        words_by_text = {text: sorted({*text.split()} & {*BEASTS}) for text in sentences(count, number)}
        lines = [json.dumps({"text": text, "words": words}) for text, words in words_by_text.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_added_kind_trains_predicts_and_loads(made_up: ModuleType, tmp_path: Path) -> None:
    start = small_start(tmp_path / "start")
    config = small_config("words", start, write_words(tmp_path / "data"), tmp_path / "run", epochs=1)
    content, dev = load_content(config, start), (tmp_path / "data" / "dev.jsonl").read_text()
    assert content.kind is made_up.WORD_SET and content.labels == tuple(sorted(BEASTS))
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda line: None)
    texts, expected = zip(*((row["text"], {*row["words"]}) for row in map(json.loads, dev.splitlines())), strict=True)
    predictions = [{*line.split()} for line in (tmp_path / "run/predictions/dev.txt").read_text().splitlines()]
    hits = [one == other for one, other in zip(predictions, expected, strict=True)]
    assert any(predictions) and result.figures["eval/exact"] == pytest.approx(np.mean(hits))
    assert "eval/word_set_loss" in result.figures and result.predictions == ("predictions/dev.txt",)
    run = load_run(result.directory)
    assert (run.kind, run.config.model.head, run.config.model.num_labels) == ("word_set", "words_at_cls", len(BEASTS))
    assert bertjax.load(result.directory).predict([*texts]) == predictions
    assert made_up.WORD_SET.lines(predictions[0]) == sorted(predictions[0])


def test_package_files_name_only_their_kind(made_up: ModuleType) -> None:
    package = Path(bertjax.__file__).parent
    for path in package.rglob("*.py"):
        assert "word_set" not in path.read_text(encoding="utf-8"), path


def test_unknown_kind_or_head_is_rejected() -> None:
    with pytest.raises(ValueError, match="kind of task 'sequense' is unknown; did you mean sequence"):
        kinds.get_kind("sequense")
    with pytest.raises(ValueError, match=r"model\.head='tokenz' is unknown; did you mean tokens"):
        network.network_class(bertjax.config.ModelConfig(head="tokenz"))
    assert np.isin([kind.network.name for kind in kinds.KINDS.values()], [*network.HEADS]).all()
