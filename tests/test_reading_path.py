"""A real train step runs through the files that bertjax/README.md lists."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest
from pair_corpora import FIRST_TOKEN, random_documents
from stored_documents import write_store

import bertjax
from bertjax.config import Config, MeshConfig, ModelConfig, TrainingConfig
from bertjax.input.batches import RowBatches
from bertjax.input.feed import open_feed
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, stage_step
from bertjax.training.state import draw_blueprint, init_state

PACKAGE = Path(bertjax.__file__).parent
SECTION = (PACKAGE / "README.md").read_text(encoding="utf-8").partition("## From the token store to updated weights")[2]
PATH, _, BESIDE = SECTION.partition("\n## ")[0].partition("### Beside that path")

Lines = set[tuple[str, int]]


def files_in(text: str) -> set[str]:
    return set(re.findall(r"`(bertjax/[\w/]+\.py)`", text))


def store_of_pairs(folder: Path, vocab_size: int) -> TokenStore:
    tokens = [f"t{number}" if number % 3 else f"##t{number}" for number in range(FIRST_TOKEN, vocab_size)]
    draw = np.random.default_rng(0)
    documents = [
        [draw.integers(FIRST_TOKEN, vocab_size, size).tolist() for size in document]
        for document in random_documents(40, seed=3)
    ]
    wordpiece = WordPiece([*SPECIAL_TOKENS, *tokens], TextRules(True, True))
    return TokenStore.open(write_store(folder / "store", {"train": documents}, wordpiece))


class Tracer:
    """A context manager that records executed lines of the package, in every thread."""

    def __init__(self) -> None:
        self.lines: Lines = set()
        self._names: dict[str, str | None] = {}

    def __enter__(self) -> Tracer:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        threading.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        threading.settrace(None)

    def _call(self, frame: FrameType, *_: object) -> Any:
        return self._line if self._name(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.lines.add((self._name(frame.f_code.co_filename), frame.f_lineno))
        return self._line

    def _name(self, file: str) -> str | None:
        if file not in self._names:
            inside = Path(file).is_relative_to(PACKAGE)
            self._names[file] = Path(file).relative_to(PACKAGE.parent).as_posix() if inside else None
        return self._names[file]


@pytest.fixture(scope="module")
def lines_of_a_step(tmp_path_factory) -> Lines:
    """Executed lines of the package, from an open token store to updated weights of BERT."""
    config = Config(
        model=ModelConfig(
            vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        ),
        training=TrainingConfig(steps=20_000, global_batch_size=8, grad_accum_steps=1),
    )
    store = store_of_pairs(tmp_path_factory.mktemp("reading"), config.model.vocab_size)
    split, vocabulary, tracer = store.split("train"), store.tokenizer(), Tracer()
    mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), make_optimizer(config.optimizer)
    (stage,) = make_stages(config)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh)
        state = init_state(blueprint, config.model, optimizer, 0)
        step = stage_step(config, stage, blueprint, optimizer)
        with tracer:
            batches = RowBatches(split, vocabulary, config.data, 0, objectives=config.training.objectives)
            with open_feed(
                batches, start_step=0, global_batch_size=8, rows=local_rows(mesh, 8), threads=1, engine="threads"
            ) as feed:
                step(state, to_global(mesh, next(feed)))
    return tracer.lines


@pytest.mark.run
def test_step_executes_exactly_the_listed_files(lines_of_a_step):
    on_path, optional, executed = files_in(PATH), files_in(BESIDE), {file for file, _ in lines_of_a_step}
    assert on_path and not on_path & optional
    unlisted = sorted(executed - on_path - optional)
    assert not unlisted, f"name them in bertjax/README.md: {unlisted}"
    assert not on_path - executed
