"""Pairs from plain text, hard negatives and cut vectors in the loss, and metrics of vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from small_tasks import load_content, sentences, small_config, small_start
from test_objectives import FixedVectors

from bertjax.config import MeshConfig, TaskConfig
from bertjax.finetune import positives
from bertjax.finetune.kinds.denoising import DENOISING
from bertjax.finetune.kinds.text_vector import TEXT_VECTOR
from bertjax.finetune.kinds.vector import VECTOR, cosines
from bertjax.finetune.load import read_split
from bertjax.finetune.positives import POSITIVES, read_pairs
from bertjax.finetune.tasks import make_task
from bertjax.parallel.mesh import BATCH_AXES, make_mesh
from bertjax.training.objectives import Batch, Forward, Sums

TEXT = ["A short title", "The red cat saw a dog. The blue owl was near the fox. " * 5, "Near it the green dog sat."]


def pairs_by(rule: str) -> list[tuple[str, str]]:
    return list(POSITIVES[rule].pairs(TEXT, 0))


def test_rules_make_pairs_from_document() -> None:
    twice = pairs_by("dropout")
    assert len(twice) == 11 and all(one == other for one, other in twice) and POSITIVES["dropout"].needs_dropout
    noisy = pairs_by("deletion")
    assert noisy == pairs_by("deletion") and len(noisy) == len(twice)
    for copies, (whole, _) in zip(noisy, twice, strict=True):
        assert all(sample and {*sample.split()} <= {*whole.split()} for sample in copies)
    left = sum(len(sample.split()) for copies in noisy for sample in copies)
    assert left == pytest.approx(sum(len(whole.split()) for whole, _ in twice), rel=0.3)
    assert sum(one != other for one, other in noisy) > 8  # copies, and equal sentences, lose different words
    assert len(set(noisy[:-1])) > 2
    damaged = pairs_by("noise")
    assert [whole for _, whole in damaged] == [whole for whole, _ in twice] and damaged == pairs_by("noise")
    assert all(sample and {*sample.split()} <= {*whole.split()} for sample, whole in damaged)
    left, words = (sum(len(pair[side].split()) for pair in damaged) for side in (0, 1))
    assert left / words == pytest.approx(0.4, abs=0.12)
    repeated = pairs_by("repetition")
    assert [whole for _, whole in repeated] == [whole for whole, _ in twice] and repeated == pairs_by("repetition")
    assert all({*more.split()} == {*whole.split()} and len(more) >= len(whole) for more, whole in repeated)
    assert 0 < sum(more != whole for more, whole in repeated) < len(repeated)
    ((one, other),) = pairs_by("crops")
    words = " ".join(TEXT).split()
    assert one != other and all(
        span in " ".join(words) and 2 * len(span.split()) <= len(words) for span in (one, other)
    )
    first, second, last = pairs_by("neighbors")[0][0], pairs_by("neighbors")[0][1], pairs_by("neighbors")[-1][1]
    assert first == TEXT[0] and TEXT[1].startswith(second) and len(second) < len(TEXT[1]) and last == TEXT[2]
    titled = pairs_by("title")
    assert {title for title, _ in titled} == {TEXT[0]} and titled[-1][1] == TEXT[2]
    assert " ".join(passage for _, passage in titled[:-1]) == TEXT[1].strip()
    assert not list(POSITIVES["title"].pairs(TEXT[1:], 0))
    assert not list(POSITIVES["title"].pairs(["", *TEXT[1:]], 0)), "a document whose title is empty"


def test_read_pairs_samples_large_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"This is sentence number {n} ." for n in range(100)))
    source, notes = (f"text:{tmp_path}/a.txt",), []
    whole = read_pairs(source, ("dropout",), notes.append)
    assert len(whole) == 100 and not notes
    monkeypatch.setattr(positives, "MOST_PAIRS", 30)
    sample = read_pairs(source, ("dropout",), notes.append)
    numbers = [int(one.id) for one in sample]
    assert sample == [whole[n] for n in numbers] == read_pairs(source, ("dropout",), print)
    assert numbers == sorted({*numbers}) and max(numbers) > 60 and notes == ["100 pairs; 30 of them are drawn"]
    with pytest.raises(ValueError, match=r"documents give 0 pairs by title; name more text, or another --positives"):
        read_pairs(source, ("title",), print)


def test_scored_pairs_and_held_out_halves_are_measured(tmp_path: Path) -> None:
    text, scored = tmp_path / "text.txt", tmp_path / "dev.tsv"
    text.write_text("\n".join(sentences(64, 0)).replace(" ", "   "))
    scored.write_text("a\tb\tlike\nthe cat\tthe dog\t3\nred\tblue\t1\na fox\ta fox\t5\n")
    start = small_start(tmp_path / "model")
    from_text = {"from_text": (f"lines:{text}",), "positives": ("dropout",), "dims": (8,)}
    config = small_config("pairs", start, Path(""), tmp_path / "run")
    config = replace(config, name="vectors", task=TaskConfig("vectors", **from_text))
    held_out = load_content(config, start)
    (dev,) = held_out.dev.values()
    assert (
        held_out.metrics == ("accuracy", "accuracy_8")
        and len(dev.rows) > 0
        and held_out.train.rows["texts"].shape[1] == 2
    )
    assert (np.diff(held_out.train.rows["texts"]) == 0).all() and (np.diff(dev.rows.rows["texts"]) != 0).all()
    assert start.tokenizer.unk_id not in dev.rows.tokens["input_ids"], "halves consist of whole words"

    config = replace(config, task=TaskConfig("vectors", dev=str(scored), text=("a", "b"), label="like", **from_text))
    content = load_content(config, start)
    vectors = np.zeros((3, 2, 16), np.float32)
    vectors[:, 0, 0] = 1
    for row, cosine in enumerate((0.5, 0.1, 0.9)):  # in the order of 3, 1, 5
        vectors[row, 1, [0, 9]] = cosine, np.sqrt(1 - cosine**2)
    vectors[[0, 2], 1, 4] = 0.1, 5  # lowers the cosines of the first eight numbers, where row 1 has 1
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    vectors[2, 1, 9], vectors[2, 1, 0] = 0, 0.9
    (split,) = content.dev.values()
    assert content.metrics == ("spearman", "spearman_8")
    assert split.figures(vectors) == pytest.approx({"spearman": 1, "spearman_8": -1})
    still = replace(config.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(ValueError, match=r"task.positives='dropout' with model.hidden_dropout_prob=0: both vectors"):
        TEXT_VECTOR.check_run(replace(config, model=still), content)
    unnamed = replace(config, task=replace(config.task, positives=()))
    for model, rule in ((config.model, "dropout"), (still, "deletion")):
        assert TEXT_VECTOR.completed(replace(unnamed, model=model)).task.positives == (rule,)
    with pytest.raises(ValueError, match=r"task.dims=\(64,\) \(--dims\): give numbers from 1 to"):
        VECTOR.check_run(replace(config, task=TaskConfig(dims=(64,))), content)


@pytest.mark.parametrize("dev", ["", "dev.csv"])
def test_figures_are_named_by_type_of_answers(dev: str) -> None:
    task = make_task(TaskConfig("vectors", from_text=("text:x",), dev=dev, dims=(2,)))
    vectors = np.random.default_rng(0).normal(size=(9, 2, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = cosines(vectors[:, 0], vectors[:, 1])
    figures = TEXT_VECTOR.measure(task.metrics, -scores, vectors)
    assert [*figures] == ["spearman", "spearman_2"] and figures["spearman"] == pytest.approx(-1)
    assert [*TEXT_VECTOR.measure(task.metrics, np.arange(18).reshape(9, 2), vectors)] == ["accuracy", "accuracy_2"]


def test_partly_scored_set_is_rejected(tmp_path: Path) -> None:
    task = make_task(TaskConfig("vectors", from_text=("text:x",)))
    path = tmp_path / "test.csv"
    path.write_text("text,text_b,label\na,b,1\nc,d,\ne,f,2\n")
    with pytest.raises(ValueError, match=r"test.csv:3: the pair has no number for its similarity, but other rows"):
        read_split(task, path, "test", named=True)


def test_vector_kinds_have_no_predictions_to_compare() -> None:
    for kind in (VECTOR, TEXT_VECTOR, DENOISING):
        with pytest.raises(ValueError, match=f"a task of the kind {kind.name} has no predictions to measure one by"):
            kind.load_measures(make_task(TaskConfig("pairs")), "dev", [], Path("predictions"))


def test_negatives_and_cut_vectors_in_the_loss() -> None:
    """Compare with a loop over candidates, on two devices; a pair's own text is never its negative."""
    rows, texts = 8, np.arange(24).reshape(8, 3)
    texts[2, 2] = texts[5, 1]  # row 2's negative is row 5's answer
    texts[3, 0] = texts[1, 0]  # two answers to a query
    vectors = np.random.default_rng(0).normal(size=(rows, 3, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    batch = {"texts": texts, "label_weights": np.ones(rows, np.float32), "cls_positions": texts}
    batch |= dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids"), texts)
    task = TaskConfig(temperature=0.1, dims=(4,))

    def sums(vectors: jax.Array, batch: Batch) -> Sums:
        forward = Forward({"model": FixedVectors(vectors)}, None, packed=True)
        return jax.lax.psum(VECTOR.objective(task).sums(forward, batch, None), BATCH_AXES)

    spec, mesh = jax.sharding.PartitionSpec(BATCH_AXES), make_mesh(MeshConfig(), jax.devices()[:2])
    result = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()))(
        vectors, batch
    )
    loss = 0.0
    for part in (vectors, vectors[..., :4] / np.linalg.norm(vectors[..., :4], axis=-1, keepdims=True)):
        for i in range(rows):
            own = {*texts[i, :2]}
            scores = [float(part[i, 0] @ part[i, 1])]
            scores += [float(part[i, 0] @ part[j, 1]) for j in range(rows) if j != i and not own & {*texts[j, :2]}]
            scores += [float(part[i, 0] @ part[j, 2]) for j in range(rows) if texts[j, 2] not in own]
            logits = np.array(scores) / 0.1
            loss += (np.log(np.exp(logits).sum()) - logits[0]) / 2
    assert float(result["loss"]) == pytest.approx(loss, rel=1e-5)
