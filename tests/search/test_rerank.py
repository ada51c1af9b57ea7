"""Reranking scores match the network on each pair alone, and results are sorted by score."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model

from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.model.network import Params, bind
from bertjax.run.run_directory import TrainedModel
from bertjax.search import retrieval
from bertjax.search.rankings import Hits
from bertjax.search.records import Record, StoredDocuments, store_documents
from bertjax.search.retrieval import Reranker

pytestmark = pytest.mark.usefixtures("one_device")


def alone(model: TrainedModel, query: str, passage: str) -> float:
    """Compute the probability of a pair without padding or batching; the passage is truncated to the row."""
    tokenizer, ids = model.tokenizer, model.tokenizer.encode_sentences([query, passage])
    first = [tokenizer.cls_id, *ids[0], tokenizer.sep_id]
    second = [*ids[1][: model.max_length - len(first) - 1], tokenizer.sep_id]
    row = jnp.array([first + second])
    types = jnp.array([[0] * len(first) + [1] * len(second)])

    @jax.jit
    def logits(params: Params) -> jax.Array:
        network = bind(model.graphdef, params)
        return network.sequence_logits(network.encode(row, types, jnp.ones_like(row), packed=False), jnp.array([[0]]))

    return float(1 / (1 + np.exp(-logits(model.params)[0, 0, 0])))


@pytest.mark.parametrize("at_once", [2, pytest.param(512, marks=pytest.mark.long)])
def test_rerank_scores_equal_pairs_alone(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(retrieval, "_PAIRS", at_once)
    model = fine_tuned_model(tmp_path, "relevance")
    passages = ["the museum opened in 1877", "drawings", "the " * 100, ""]
    with store_documents(tmp_path) as add:
        for passage in passages:
            add(Record(passage[:8], passage))
    candidates = [
        Hits(np.array([3, 0, 1]), np.zeros(3)),
        Hits(np.array([], int), np.zeros(0)),
        Hits(np.array([2]), np.ones(1)),
    ]
    reranker, progress = Reranker(model), []
    queries = ["museum", "of", "a b c"]
    reranked = reranker.rerank(queries, candidates, StoredDocuments(tmp_path), progress.append)
    for query, before, hits in zip(queries, candidates, reranked, strict=True):
        expected = {number: alone(model, query, passages[number]) for number in before.documents.tolist()}
        assert hits.documents.tolist() == sorted(expected, key=lambda number: -expected[number])
        assert hits.scores == pytest.approx(sorted(expected.values(), reverse=True), rel=1e-4)
    assert progress == [2, 2] if at_once == 2 else [4]
    assert reranker.rerank([], [], StoredDocuments(tmp_path)) == []
    cut, empty = reranker.counts.notices(reranker.max_length)
    assert cut.startswith("1 of 4 examples were cut to 64 tokens") and empty.startswith("1 of 4 examples have")


def test_search_reranks_candidates(tmp_path, capsys):
    encoder, model = write_run(trained_model(tmp_path / "run")), fine_tuned_model(tmp_path / "reranker", "relevance")
    texts = [f"the museum {word} {sign}" for word in ("opened", "drawings", "1877") for sign in "abc"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "qrels.tsv").write_text("1\t2\t1\n")
    fixed = ["search", str(encoder), "museum opened", "--index", str(tmp_path / "index"), "--by", "bm25"]
    fixed += ["--documents", str(tmp_path / "texts.txt"), "--candidates", "5"]
    results = {}
    rerank = ["--rerank", str(write_run(model))]
    for name, more in (("plain", []), ("reranked", rerank), ("fused", [*rerank, "--rerank-by", "both"])):
        path = tmp_path / f"{name}.jsonl"
        assert main([*fixed, *more, "--output", str(path), "--top", "5", "--qrels", str(tmp_path / "qrels.tsv")]) == 0
        results[name] = {row["text"]: row["score"] for row in json.loads(path.read_text())["results"]}
    assert results["plain"].keys() == results["reranked"].keys() and list(results["plain"]) != list(results["reranked"])
    scores = list(results["reranked"].values())
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([alone(model, "museum opened", text) for text in results["reranked"]], rel=1e-4)
    places = [{text: place for place, text in enumerate(results[name], 1)} for name in ("plain", "reranked")]
    summed = {text: sum(1 / (60 + place[text]) for place in places) for text in results["plain"]}
    assert results["fused"] == pytest.approx(summed)
    assert list(results["fused"].values()) == sorted(summed.values())[::-1]
    output = capsys.readouterr()
    assert "  bm25, reranked  " in output.out and "by bm25, reranked\n" in output.out
    assert "by bm25, reranked and fused\n" in output.out


@pytest.mark.parametrize(("kind", "was"), [("", "only pretrained"), ("regression", "fine-tuned for regression")])
def test_reranker_rejects_other_models(tmp_path, kind, was):
    model = fine_tuned_model(tmp_path, kind) if kind else trained_model(tmp_path)
    with pytest.raises(ValueError, match=f"the model was {was}; name a run of bertjax finetune relevance"):
        Reranker(model)
