"""Runs warn about text that an objective cannot learn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertjax.config import Config, DataConfig, StageConfig, TrainingConfig
from bertjax.input.training_data import open_training_data
from bertjax.pipeline.preparation import prepare
from bertjax.storage.progress import no_progress

SENTENCE = "the river runs by the old town ."
CHINESE = "他在河边走了很久。"


def make_data(folder: Path, text: str, **options) -> DataConfig:
    (folder / "text.txt").write_text(text)
    source, root = f"lines:{folder}/text.txt", str(folder / "data")
    return DataConfig((source,), root=root, vocab_size=60, held_out=0.2, workers=1, sequence_length=32, **options)


def make_notes(data: DataConfig, objectives: tuple[str, ...]) -> list[str]:
    """Return the notes of a run, and check that `prepare` gives the same ones."""
    notes = open_training_data([data], no_progress, objectives).notes
    config = Config(data=data, training=TrainingConfig(objectives=objectives))
    assert list(prepare(config).notes) == notes
    return notes


def test_nsp_on_one_sentence_documents_is_reported(tmp_path: Path) -> None:
    data = make_data(tmp_path, "\n\n".join(f"{SENTENCE} {n}" for n in range(60)))
    (note,) = [note for note in make_notes(data, ("mlm", "nsp")) if "cannot be learned" in note]
    assert note.startswith("NSP cannot be learned from documents of one sentence: ")
    assert "leave nsp out of --training.objectives" in note
    assert not [note for note in make_notes(data, ("mlm",)) if "cannot be learned" in note]


def test_nsp_on_longer_documents_is_not_reported(tmp_path: Path) -> None:
    documents = [f"{SENTENCE} {n}\n{SENTENCE}" if n % 9 == 0 else f"{SENTENCE} {n}" for n in range(60)]
    assert not make_notes(make_data(tmp_path, "\n\n".join(documents)), ("mlm", "nsp"))


@pytest.mark.parametrize(
    ("masking", "text", "is_reported"),
    [("words", CHINESE, True), ("spans", CHINESE, True), ("tokens", CHINESE, False), ("words", SENTENCE, False)],
)
def test_masking_of_single_characters_is_reported(masking: str, text: str, is_reported: bool, tmp_path: Path) -> None:
    data = make_data(tmp_path, "\n\n".join(f"{text} {n}\n{text}" for n in range(60)), masking=masking)
    notes = [note for note in make_notes(data, ("mlm",)) if "single characters" in note]
    assert len(notes) == is_reported
    if notes:
        assert f"data.masking={masking!r} masks single characters in" in notes[0] and "--data.segmenter" in notes[0]


def test_masking_of_a_later_stage_is_checked(tmp_path: Path) -> None:
    data = make_data(tmp_path, "\n\n".join(f"{CHINESE} {n}\n{CHINESE}" for n in range(60)))
    config = Config(data=data, stages=(StageConfig(start=500_000, masking="words"),))
    assert [note for note in prepare(config).notes if "single characters" in note]


def test_segmented_chinese_is_not_reported(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    text = "\n\n".join(f"{CHINESE} {n}\n{CHINESE}" for n in range(60))
    assert not make_notes(make_data(tmp_path, text, masking="words", segmenter="jieba"), ("mlm",))
