"""A run reads its own token store, and refuses text that has changed since it began."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from generated_corpus import write_corpus

from bertjax.cli.bench import open_rows
from bertjax.config import Config, DataConfig, to_dict
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import DIRECTORY, Checkpoints
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.run.run_data import open_data
from bertjax.run.run_directory import data_to_resume, open_run_data, own_data_fingerprint
from bertjax.storage.progress import no_progress


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The config of a run with a token store and a checkpoint."""
    write_corpus(tmp_path / "text.txt", 60)
    data = DataConfig(
        sources=(f"lines:{tmp_path}/text.txt",),
        root=str(tmp_path / "data"),
        vocab_size=600,
        sequence_length=32,
        max_predictions=5,
        held_out=0.1,
        workers=1,
    )
    config = Config(run_dir=str(tmp_path / "run"), data=data)
    content = open_data(config, no_progress)
    metadata = run_metadata(
        to_dict(config),
        tokenizer_fingerprint=content.tokenizer.fingerprint,
        data_fingerprint=content.fingerprint,
        mesh=make_mesh(config.mesh, jax.devices()[:1]),
    )
    with Checkpoints(tmp_path / "run" / DIRECTORY, keep_last=1) as checkpoints:
        checkpoints.save(1, {"params": {"kernel": jnp.ones(3)}}, metadata)
    return config


def stores(config: Config) -> list[str]:
    return sorted(path.name for path in Path(config.data.root).glob("store-*"))


def change_text(config: Config) -> Path:
    text = Path(config.data.sources[0].partition(":")[2])
    text.write_text(text.read_text().replace("the ", "tho "))
    return text


def test_run_keeps_its_store_after_the_text_changed(config: Config) -> None:
    before, stores_before = open_run_data(config.run_dir, config, no_progress), stores(config)
    change_text(config).unlink()
    after = open_run_data(config.run_dir, config, no_progress)
    assert after.fingerprint == before.fingerprint == own_data_fingerprint(config)
    assert after.size("train") == before.size("train") and stores(config) == stores_before


def test_changed_data_without_the_runs_store_are_refused(config: Config) -> None:
    change_text(config)
    shutil.rmtree(config.data.root)
    with pytest.raises(ValueError, match=r"the vocabulary has changed since this run began, and the run's token store"):
        open_run_data(config.run_dir, config, no_progress)


def test_data_to_resume_refuses_changed_text_before_preparing_it(config: Config) -> None:
    before = sorted(path.name for path in Path(config.data.root).iterdir())
    text = change_text(config)
    with pytest.raises(ValueError, match=r"text has changed since this run began \(\S+: 1 changed \(text.txt\)\)"):
        data_to_resume(config, no_progress)
    assert sorted(path.name for path in Path(config.data.root).iterdir()) == before
    other = replace(config, run_dir=f"{config.run_dir}-2")
    assert data_to_resume(other, no_progress).fingerprint != own_data_fingerprint(config), (
        "a new run reads the new text"
    )
    text.unlink()


def test_data_to_resume_opens_the_runs_store(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither divides the text nor looks for a vocabulary."""
    monkeypatch.setattr("bertjax.text.prepare.divide", None)
    assert data_to_resume(config, no_progress).fingerprint == own_data_fingerprint(config)


def test_bench_measures_rows_of_the_runs_own_store(config: Config) -> None:
    change_text(config)
    assert stores(config)[0] in open_rows(config, made_up=False)[2] and len(stores(config)) == 1


def test_own_data_fingerprint_requires_the_same_settings(config: Config) -> None:
    assert own_data_fingerprint(replace(config, data=replace(config.data, threads=7, root="elsewhere")))
    assert not own_data_fingerprint(replace(config, data=replace(config.data, lowercase=False)))
    assert not own_data_fingerprint(replace(config, run_dir="nowhere"))
