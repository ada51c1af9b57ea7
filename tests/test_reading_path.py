"""A real train step runs through the files that bertjax/README.md tells a reader of, and through no others."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import jax
from pair_corpora import MemorySplit, Specials, random_documents

import bertjax
from bertjax.config import Config, DataConfig, MeshConfig, ModelConfig, TrainingConfig
from bertjax.input.batches import PairBatches
from bertjax.input.feed import open_feed
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import stage_step, stages_of
from bertjax.training.state import draw_blueprint, init_state

PACKAGE = Path(bertjax.__file__).parent
SECTION = (PACKAGE / "README.md").read_text(encoding="utf-8").partition("## From the token store to updated weights")[2]
PATH, _, BESIDE = SECTION.partition("\n## ")[0].partition("### Beside that path")


def files_of_a_step() -> set[str]:
    """Files of the package with a function that is called between the plan of an epoch and updated weights."""
    config = Config(
        model=ModelConfig(
            vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        ),
        data=DataConfig(packing="pairs"),
        training=TrainingConfig(steps=20_000, global_batch_size=8),
    )
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen.add(path.relative_to(PACKAGE.parent).as_posix())

    mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), make_optimizer(config.optimizer)
    (stage,) = stages_of(config)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh)
        state = init_state(blueprint, config.model, optimizer, 0)
        step = stage_step(config, stage, blueprint, optimizer)
        before = sys.getprofile()
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            split = MemorySplit(random_documents(40, seed=3))
            batches = PairBatches(split, Specials(), config.data, 0, objectives=config.training.objectives)
            with open_feed(
                batches, start_step=0, global_batch_size=8, rows=local_rows(mesh, 8), threads=1, engine="threads"
            ) as feed:
                step(state, to_global(mesh, next(feed)))
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
    return seen


def test_a_step_runs_through_the_listed_files():
    on_path = set(re.findall(r"`(bertjax/[\w/]+\.py)`", PATH))
    beside = set(re.findall(r"`(bertjax/[\w/]+\.py)`", BESIDE))
    assert on_path and not on_path & beside
    found = files_of_a_step()
    untold = sorted(found - on_path - beside)
    assert not untold, f"name them in bertjax/README.md: {untold}"
    # The store is read by the split of a real run, which here lies in memory.
    assert not on_path - found - {"bertjax/text/store/format.py"}
