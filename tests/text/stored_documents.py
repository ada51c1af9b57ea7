"""Write token stores from documents given as ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.text.store.writer import ShardWriter, finish_store
from bertjax.tokenization.tokenizer import Tokenizer


def write_store(
    path: str | Path,
    splits: Mapping[str, Iterable[list[list[int]]]],
    tokenizer: Tokenizer,
    *,
    documents_per_shard: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a store of documents, which are lists of sentences of ids, e.g. `{"train": [[[5, 6], [7]], [[8]]]}`.

    A split starts a new shard after every `documents_per_shard` documents.
    """
    path = Path(path)
    path.mkdir(parents=True)
    shards: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    for split, documents in splits.items():
        documents = list(documents)
        size = documents_per_shard or max(len(documents), 1)
        for number, start in enumerate(range(0, len(documents), size)):
            group = documents[start : start + size]
            sentences = [sentence for document in group for sentence in document]
            writer = ShardWriter(path, f"{split}-{number:05}", tokenizer.vocab_size)
            writer.add(
                np.array([token for sentence in sentences for token in sentence], np.int64),
                np.array([len(sentence) for sentence in sentences], np.int64),
                np.array([len(document) for document in group], np.int64),
                np.zeros(len(group), bool),
            )
            shards[split].append(writer.finish())
    finish_store(path, shards, tokenizer, provenance or {})
    return path
