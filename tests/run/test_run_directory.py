"""A run and its data: the run's own token store is used, and text that has changed since is refused by name."""

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
from bertjax.run.run_directory import data_to_resume, open_run_data, own_data_fingerprint
from bertjax.storage.progress import no_progress
from bertjax.training.stages import open_data


@pytest.fixture
def begun(tmp_path: Path) -> Config:
    """The config of a run that has begun: its token store and a checkpoint are there."""
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
    about = run_metadata(
        to_dict(config),
        tokenizer_fingerprint=content.tokenizer.fingerprint,
        data_fingerprint=content.fingerprint,
        mesh=make_mesh(config.mesh, jax.devices()[:1]),
    )
    with Checkpoints(tmp_path / "run" / DIRECTORY, keep_last=1) as saved:
        saved.save(1, {"params": {"kernel": jnp.ones(3)}}, about)
    return config


def stores(config: Config) -> list[str]:
    return sorted(path.name for path in Path(config.data.root).glob("store-*"))


def change_text(config: Config) -> Path:
    text = Path(config.data.sources[0].partition(":")[2])
    text.write_text(text.read_text().replace("the ", "tho "))
    return text


def test_run_keeps_its_store_after_the_text_changed(begun: Config) -> None:
    before, made = open_run_data(begun.run_dir, begun, no_progress), stores(begun)
    change_text(begun).unlink()
    found = open_run_data(begun.run_dir, begun, no_progress)
    assert found.fingerprint == before.fingerprint == own_data_fingerprint(begun)
    assert found.size("train") == before.size("train") and stores(begun) == made


def test_data_of_a_run_without_its_store_are_refused(begun: Config) -> None:
    change_text(begun)
    shutil.rmtree(begun.data.root)
    with pytest.raises(ValueError, match=r"the vocabulary has changed since this run began, and the run's token store"):
        open_run_data(begun.run_dir, begun, no_progress)


def test_data_to_resume_refuses_changed_text_before_preparing_it(begun: Config) -> None:
    made = sorted(path.name for path in Path(begun.data.root).iterdir())
    text = change_text(begun)
    with pytest.raises(ValueError, match=r"text has changed since this run began \(\S+: 1 changed \(text.txt\)\)"):
        data_to_resume(begun, no_progress)
    assert sorted(path.name for path in Path(begun.data.root).iterdir()) == made
    other = replace(begun, run_dir=f"{begun.run_dir}-2")
    assert data_to_resume(other, no_progress).fingerprint != own_data_fingerprint(begun), "a new run has the new text"
    text.unlink()


def test_data_to_resume_opens_the_runs_store(begun: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dividing the text or looking for a vocabulary."""
    monkeypatch.setattr("bertjax.text.prepare.divide", None)
    assert data_to_resume(begun, no_progress).fingerprint == own_data_fingerprint(begun)


def test_bench_measures_rows_of_the_runs_own_store(begun: Config) -> None:
    change_text(begun)
    assert stores(begun)[0] in open_rows(begun, made_up=False)[2] and len(stores(begun)) == 1


def test_own_data_need_the_same_settings(begun: Config) -> None:
    assert own_data_fingerprint(replace(begun, data=replace(begun.data, threads=7, root="elsewhere")))
    assert not own_data_fingerprint(replace(begun, data=replace(begun.data, lowercase=False)))
    assert not own_data_fingerprint(replace(begun, run_dir="nowhere"))
