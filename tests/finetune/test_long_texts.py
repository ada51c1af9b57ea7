"""Long-context families learn from and predict texts of thousands of tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from family_models import traits
from small_tasks import BEASTS, COLOURS, load_content, small_config, small_start

from bertjax.finetune.predict import TaskModel
from bertjax.finetune.run import finetune
from bertjax.run.run_directory import load_run
from bertjax.runtime.processes import alone

pytestmark = pytest.mark.long


def make_text(draw: np.random.Generator, colour: str, tokens: int) -> str:
    """Make sentences of six tokens; after the first 540 tokens each one names the colour."""
    sentences = []
    for number in range(tokens // 6):
        beasts = draw.choice(BEASTS, 2)
        word = colour if number >= 90 else "a"
        sentences.append(f"the {beasts[0]} saw {word} {beasts[1]} .")
    return " ".join(sentences)


@pytest.mark.parametrize("family", ["modernbert", "longformer"])
def test_class_beyond_512_tokens_is_learned(family: str, tmp_path: Path) -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    start = small_start(
        tmp_path / "start", **(traits(family) | still | {"window": 16, "max_position_embeddings": 8192})
    )
    draw, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    for name, count in (("train", 96), ("dev", 24)):
        labels = draw.choice(COLOURS[:2], count)
        lines = [f"{make_text(draw, colour, int(draw.integers(700, 1000)))}\t{colour}" for colour in labels]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    config = small_config("classification", start, folder, tmp_path / "run", epochs=12)
    training = replace(config.training, eval_every=1000, global_batch_size=8)
    config = replace(config, data=replace(config.data, sequence_length=8192), training=training)
    with alone() as processes:
        result = finetune(config, start, load_content(config, start), processes, lambda _: None)
    assert result.figures["eval/accuracy"] >= 0.9, result.figures
    model = TaskModel(load_run(result.directory))
    questions = [(colour, make_text(draw, colour, tokens)) for tokens in (900, 2500, 8000) for colour in COLOURS[:2]]
    predictions = model.predict([text for _, text in questions])
    assert not model.counts.any_cut
    right = [prediction.label == colour for prediction, (colour, _) in zip(predictions, questions, strict=True)]
    assert all(right[:2]) and np.mean(right) >= 0.7, right


def write_long_questions(folder: Path, counts: dict[str, int]) -> Path:
    """Write questions for a colour that occurs once, after 520 tokens or more, in a text of 700 to 900."""
    folder.mkdir()
    for number, (name, count) in enumerate(counts.items()):
        draw, paragraphs = np.random.default_rng(number), []
        for place in range(count):
            parts = [f"the {draw.choice(BEASTS)} saw a {draw.choice(BEASTS)} ." for _ in range(draw.integers(117, 150))]
            colour, beast, place_of_answer = draw.choice(COLOURS), draw.choice(BEASTS), int(draw.integers(88, 116))
            parts[place_of_answer] = f"the {colour} {beast} saw a {draw.choice(BEASTS)} ."
            begins = len(" ".join(parts[:place_of_answer])) + len(" the ")
            answer = {"text": colour, "answer_start": begins}
            qa = {"id": f"{name}{place}", "question": f"what colour is the {beast} ?", "answers": [answer]}
            paragraphs.append({"context": " ".join(parts), "qas": [qa]})
        document = {"version": "1.1", "data": [{"title": "beasts", "paragraphs": paragraphs}]}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(document))
    return folder


def test_global_questions_find_answers_beyond_512_tokens(tmp_path: Path) -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"window": 16, "max_position_embeddings": 1024}
    start = small_start(tmp_path / "start", **(traits("longformer") | still | sizes))
    data = write_long_questions(tmp_path / "data", {"train": 64, "dev": 16})
    config = small_config("squad", start, data, tmp_path / "run", epochs=10)
    training = replace(config.training, eval_every=1000, global_batch_size=8)
    config = replace(config, data=replace(config.data, sequence_length=1024), training=training)
    content = load_content(config, start)
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda _: None)
    assert result.figures["eval/exact_match"] >= 0.9, result.figures
