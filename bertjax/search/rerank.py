"""Reranking with a cross-encoder: a model that reads query and document together and gives their relevance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

import numpy as np

from bertjax.finetune.kinds import kind_of
from bertjax.finetune.kinds.relevance import RELEVANCE
from bertjax.finetune.predict import TaskModel
from bertjax.input.lengths import LengthCounts
from bertjax.search.rankings import Hits, best
from bertjax.search.records import StoredDocuments
from bertjax.training.run_directory import TrainedModel

_PAIRS = 512  # per call of the model


class Reranker:
    """A model of `bertjax finetune relevance`; `counts` describes the pairs that it has read."""

    def __init__(self, model: TrainedModel) -> None:
        """Put the weights on the devices. Raises ValueError for a model that was not trained for relevance."""
        if not model.kind or not kind_of(model.kind).ranks:
            was = f"fine-tuned for {model.kind}" if model.kind else "pretrained alone"
            task = RELEVANCE.own_task
            raise ValueError(f"--rerank {model.directory}: it was {was}; name a run of bertjax finetune {task}")
        self.max_length, self.counts = model.max_length, LengthCounts()
        self._model = TaskModel(model)

    def rerank(
        self,
        queries: Sequence[str],
        found: Sequence[Hits],
        documents: StoredDocuments,
        done: Callable[[int], object] = lambda more: None,
    ) -> list[Hits]:
        """The documents found for each query, the most relevant first; ties keep their order.

        Scores are probabilities. `done` receives the number of documents read since its last call.
        """
        asked = [(query, number) for query, hits in zip(queries, found, strict=True) for number in hits.documents]
        scores = np.array(list(self._probabilities(asked, documents, done)))
        ends = np.cumsum([len(hits.documents) for hits in found])
        return [
            best(hits.documents, own, len(own)) for hits, own in zip(found, np.split(scores, ends[:-1]), strict=True)
        ]

    def _probabilities(
        self, asked: Sequence[tuple[str, int]], documents: StoredDocuments, done: Callable[[int], object]
    ) -> Iterator[float]:
        for start in range(0, len(asked), _PAIRS):
            some = asked[start : start + _PAIRS]
            yield from self._model.predict([(query, documents[number].whole) for query, number in some])
            self.counts = LengthCounts(*map(sum, zip(astuple(self.counts), astuple(self._model.counts), strict=True)))
            done(len(some))
