"""A small random network, and files of tasks that it can learn."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from exported_models import trained_model

from bertjax.config import FinetuneConfig, MeshConfig, ModelConfig, TaskConfig
from bertjax.families.networks import init_params
from bertjax.finetune.kinds.kind import TaskContent
from bertjax.finetune.load import load_task
from bertjax.finetune.recipes import config_for
from bertjax.finetune.run import Start
from bertjax.finetune.tasks import make_task
from bertjax.model.network import Params
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

COLOURS, BEASTS = ["red", "green", "blue"], ["cat", "dog", "owl", "fox"]
WORDS = [*COLOURS, *BEASTS, "the", "a", "saw", "near", "is", "what", "colour", "?", "."]


def small_start(folder: Path, tokenizer: Tokenizer | None = None, **fields: Any) -> Start:
    """Make a randomly initialised network over these words; `fields` override its config."""
    tokenizer = tokenizer or WordPiece([*SPECIAL_TOKENS, *WORDS], TextRules(True, True))
    always = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.1}
    model = trained_model(folder, tokenizer, **(always | fields)).config.model
    return Start("a new network", model, tokenizer, random_params(model, 0))


@functools.lru_cache(8)
def random_params(model: ModelConfig, seed: int) -> Params:
    """Initialise parameters on the host."""
    return jax.device_get(jax.jit(lambda key: init_params(model, key))(jax.random.key(seed)))


def sentences(count: int, seed: int) -> list[str]:
    """Draw sentences such as `the red cat saw a dog near the owl .`"""
    draw = np.random.default_rng(seed)
    return [
        f"the {draw.choice(COLOURS)} {draw.choice(BEASTS)} saw a {draw.choice(BEASTS)}"
        + f" near the {draw.choice(BEASTS)}" * int(draw.integers(2))
        + " ."
        for _ in range(count)
    ]


def write_classes(folder: Path, train: int = 96, dev: int = 32) -> Path:
    """Write train.tsv and dev.tsv with columns text and label; the label is the colour in the text."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": train, "dev": dev}.items()):
        lines = [f"{text}\t{text.split()[1]}" for text in sentences(count, number)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return folder


def write_pairs(folder: Path, train: int = 96, dev: int = 32) -> Path:
    """Write train.tsv and dev.tsv with columns text, text_b and label, the colour in the second text."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": train, "dev": dev}.items()):
        texts = sentences(2 * count, number)
        pairs = zip(texts[:count], texts[count:], strict=True)
        lines = [f"{first}\t{second}\t{second.split()[1]}" for first, second in pairs]
        (folder / f"{name}.tsv").write_text("\n".join(["text\ttext_b\tlabel", *lines]) + "\n")
    return folder


def write_choices(folder: Path, train: int = 96, dev: int = 32) -> Path:
    """Write train.jsonl and dev.jsonl with text, text_b and label; the right end has the red beast."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": train, "dev": dev}.items()):
        draw, lines = np.random.default_rng(number), []
        for text in sentences(count, number):
            colours = [str(colour) for colour in draw.permutation(COLOURS)]
            ends = [f"a {colour} {draw.choice(BEASTS)} ." for colour in colours]
            lines.append(json.dumps({"text": text, "text_b": ends, "label": colours.index(COLOURS[0])}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_tags(folder: Path, train: int = 64, dev: int = 16) -> Path:
    """Write train.conll and dev.conll with parts of speech, which depend only on the word."""
    kinds = dict.fromkeys(COLOURS, "ADJ") | dict.fromkeys(BEASTS, "NOUN") | {"saw": "VERB", ".": "PUNCT"}
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": train, "dev": dev}.items()):
        blocks = [
            "\n".join(f"{word} {kinds.get(word, 'DET')}" for word in text.split()) for text in sentences(count, number)
        ]
        (folder / f"{name}.conll").write_text("\n\n".join(blocks) + "\n")
    return folder


def write_questions(folder: Path, train: int = 64, dev: int = 16) -> Path:
    """Write train-v1.1.json and dev-v1.1.json; questions ask for the colour of the first beast."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate({"train": train, "dev": dev}.items()):
        paragraphs = []
        for place, text in enumerate(sentences(count, number)):
            colour, beast = text.split()[1:3]
            answer = {"text": colour, "answer_start": text.index(colour)}
            qa = {"id": f"{name}{place}", "question": f"what colour is the {beast} ?", "answers": [answer]}
            paragraphs.append({"context": text, "qas": [qa]})
        document = {"version": "1.1", "data": [{"title": "beasts", "paragraphs": paragraphs}]}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(document))
    return folder


def small_config(name: str, start: Start, data: Path, run_dir: Path, **task: object) -> FinetuneConfig:
    """Make the recipe of a task with a learning rate for small networks, on all devices, in rows of 32 tokens."""
    definition = make_task(TaskConfig(name=name))
    config = config_for(name, definition, start.origin, start.model, start.tokenizer)
    return replace(
        config,
        run_dir=str(run_dir),
        mesh=MeshConfig(),
        compilation_cache="",
        data=replace(config.data, sequence_length=32),
        optimizer=replace(config.optimizer, learning_rate=2e-3),
        training=replace(config.training, global_batch_size=16),
        task=replace(config.task, data=str(data), **({"max_query": 16} if definition.kind.may_abstain else {}), **task),
    )


def load_content(config: FinetuneConfig, start: Start) -> TaskContent:
    """Load the data of a task."""
    return load_task(config, start.tokenizer)
