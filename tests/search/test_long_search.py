"""`bertjax search` distinguishes documents of 8,000 tokens that begin with the same words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from family_models import TEXTS, family_model

import bertjax
from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.search.index import open_index

LENGTH, COUNT = 8192, 6


@pytest.mark.long
@pytest.mark.parametrize("family", ["modernbert"])
def test_long_documents_with_equal_starts_are_distinguished(family: str, tmp_path: Path) -> None:
    model = family_model(tmp_path / "run", family, max_position_embeddings=LENGTH, window=64)
    run = write_run(
        replace(model, config=replace(model.config, data=replace(model.config.data, sequence_length=LENGTH)))
    )
    draw, words = np.random.default_rng(0), " ".join(TEXTS[:-3]).split()
    _, sizes = model.tokenizer.encode(words)
    # All begin with the same 2,000 tokens, followed by 5,000 of eight words that are drawn for each document.
    drawn = [draw.choice(len(words), 8192)] + [
        draw.choice(draw.choice(len(words), 8, replace=False), 8192) for _ in range(COUNT)
    ]
    start, *parts = (
        [words[n] for n in numbers[np.cumsum(sizes[numbers]) <= room]]
        for numbers, room in zip(drawn, [2000] + [5000] * COUNT, strict=True)
    )
    texts = [" ".join([*start, *part]) for part in parts]
    documents = [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(texts)]
    queries = [{"_id": f"q{number}", "text": text} for number, text in enumerate(texts)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index, results = tmp_path / "index", tmp_path / "found.jsonl"
    words = ["search", str(run), "--index", str(index), "--documents", str(tmp_path / "corpus.jsonl")]
    assert main([*words, "--queries", str(tmp_path / "queries.jsonl"), "--output", str(results)]) == 0
    first = [json.loads(line)["results"][0]["id"] for line in results.read_text().splitlines()]
    assert first == [f"d{number}" for number in range(COUNT)]
    # No text was truncated: a document without its last words has another vector.
    encoder = bertjax.load(str(run))
    np.testing.assert_array_equal(open_index(index).vectors, encoder.encode(texts, normalize=True))
    without = encoder.encode([" ".join(texts[0].split()[:-50])], normalize=True)
    assert np.abs(without[0] - open_index(index).vectors[0]).max() > 1e-4
