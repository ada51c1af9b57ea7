"""`make_task` applies the options of a config, or rejects the ones that the task does not support."""

from __future__ import annotations

import pytest

from bertjax.config import TaskConfig
from bertjax.finetune.tasks import TASKS, make_task


@pytest.mark.parametrize("name", sorted({*TASKS} - {"ner", "pos"}))
@pytest.mark.parametrize(
    ("key", "value"), [("text", ("sentence",)), ("label", "gold"), ("id", "number"), ("labels", ("1", "0"))]
)
def test_named_tasks_reject_layout_options(name: str, key: str, value: object) -> None:
    with pytest.raises(
        ValueError, match=rf"^task\.{key}=.*: {name} has files of a fixed layout; leave it out \(--{key}\)"
    ):
        make_task(TaskConfig(name=name, **{key: value}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ner", {"id": "n"}, r"task\.id='n': ner names sentences by number; leave it out \(--id\)"),
        ("pos", {"text": ("a", "b")}, r"task\.text=\('a', 'b'\): pos has one column of words"),
        ("regression", {"labels": ("0", "1")}, r"task\.labels=\('0', '1'\): regression has no classes"),
        ("relevance", {"labels": ("0", "1")}, "relevance has no classes"),
        ("pairs", {"labels": ("0", "1")}, "pairs has no classes"),
        (
            "pairs",
            {"from_text": ("a.txt",)},
            "not an option of pairs, only of vectors, denoising;",
        ),
        ("regression", {"dims": (8,)}, r"task\.dims=\(8,\): not an option of regression, only of pairs, vectors;"),
        ("sst2", {"n_best": 5}, r"task\.n_best=5: not an option of sst2, only of squad, squad2;"),
        ("denoising", {"from_text": ("a.txt",), "temperature": 0.5}, "not an option of denoising, only of pairs"),
        ("classification", {"labels": ("a", "b", "a")}, r"task\.labels=\('a', 'b', 'a'\): a label is repeated"),
        ("classification", {"labels": ("a",)}, r"task\.labels=\('a',\): one label leaves nothing to learn"),
        ("choice", {"labels": ("A", "B")}, "ends are labelled with their numbers, from 0"),
        ("vectors", {"from_text": ("a.txt",), "text": ("x", "y")}, "columns only in --dev and --test"),
        ("vectors", {"from_text": ("a.txt",), "id": "n"}, "vectors writes no predictions"),
        ("pairs", {"id": "n"}, "pairs writes no predictions"),
        ("vectors", {}, "vectors: no text; name it as in --from-text 'text:books"),
        ("vectors", {"from_text": ("a.txt",), "positives": ("droput",)}, "no such rule; did you mean dropout"),
        (
            "denoising",
            {"from_text": ("a.txt",), "dims": (8,)},
            "not an option of denoising, only of pairs",
        ),
        ("vectors", {"from_text": ("a.txt",), "train": "b.csv"}, "makes its training set from --from-text"),
        ("pairs", {"label": "x"}, r"task\.label='x': pairs has no labels; leave it out \(--label\)"),
    ],
)
def test_make_task_rejects_unsupported_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(TaskConfig(name=name, **options))


def test_resolved_config_makes_the_same_task() -> None:
    own = {"cola": ("unacceptable", "acceptable"), "squad": ()}
    own |= {name: TASKS[name].labels for name in ("rte", "ncbi-disease")}
    for name, labels in own.items():
        assert make_task(TaskConfig(name=name, labels=labels)) is TASKS[name]
    assert make_task(TaskConfig(name="classification", labels=("x", "y"), id="n", label="l")).labels == ("x", "y")
    assert make_task(TaskConfig(name="ner", labels=("O", "B-PER"), label="2")).labels == ("O", "B-PER")
