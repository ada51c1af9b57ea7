"""Batches match recorded SHA-256 digests for a split, a config and a seed.

`python tests/input/test_golden_batches.py` rewrites the record. A change of the record changes every user's runs.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches

RECORD = Path(__file__).with_name("batches.golden.json")
BATCH_SIZE, STEPS, SEED = 16, 12, 7
PAIRS = DataConfig(sequence_length=64, max_predictions=10)
MASKS = replace(PAIRS, sequence_length=128, max_predictions=20, keep_share=0.2, random_share=0.3, mask_probability=0.2)
NGRAMS = replace(PAIRS, masking="ngrams", ngram_shares=(6 / 11, 3 / 11, 2 / 11))
SPANS = replace(PAIRS, rows="doc_sentences", masking="spans", replace_by="span", random_ids="corpus")
ROBERTA = replace(PAIRS, rows="full_sentences", mask_count="random_round", random_ids="ordinary")
EACH = replace(PAIRS, mask_count="each", mask_probability=0.3, max_predictions=34)
STREAMS = {
    "pairs": PAIRS,
    "pairs_packed": replace(PAIRS, sequence_length=256, packing="pairs", pairs_per_row=5),
    "pairs_of_whole_words": replace(PAIRS, masking="words"),
    "pairs_of_whole_words_packed": replace(PAIRS, packing="pairs", pairs_per_row=3, masking="words"),
    "other_shares": MASKS,
    "full_sentences": replace(PAIRS, rows="full_sentences"),
    "doc_sentences": replace(PAIRS, rows="doc_sentences"),
    "doc_sentences_packed": replace(PAIRS, rows="doc_sentences", packing="pairs", pairs_per_row=4),
    "documents": replace(PAIRS, rows="documents"),
    "documents_packed": replace(PAIRS, rows="documents", packing="pairs", pairs_per_row=4),
    "next_tokens": replace(PAIRS, rows="doc_sentences", predict="next"),
    "ngrams": NGRAMS,
    "spans": SPANS,
    "spans_packed": replace(SPANS, packing="pairs", pairs_per_row=4),
    "random_round_of_ordinary": ROBERTA,
    "each": EACH,
    "each_packed": replace(EACH, packing="pairs", pairs_per_row=4),
    "special_too": replace(ROBERTA, mask_special=True),
    "sentence_order": PAIRS,
    "sentence_order_of_ngrams_packed": replace(NGRAMS, packing="pairs", pairs_per_row=4),
}
OBJECTIVES = {"sentence_order": ("mlm", "sop"), "sentence_order_of_ngrams_packed": ("mlm", "sop")}  # else BERT's


def digests(name: str) -> dict[str, str]:
    """Digest each array of some batches in four epochs: key -> SHA-256 over dtype, shape and bytes."""
    split = MemorySplit(random_documents(60, seed=3, sentences=9, tokens=14))
    objectives = OBJECTIVES.get(name, ("mlm", "nsp"))
    batches = RowBatches(split, Specials(), STREAMS[name], SEED, objectives=objectives)
    epoch_steps = -(-batches.rows_per_epoch // BATCH_SIZE)
    hashes: dict[str, Any] = defaultdict(hashlib.sha256)
    for epoch in range(4):
        for step in range(epoch * epoch_steps, epoch * epoch_steps + STEPS):
            for key, values in batches.batch(step, BATCH_SIZE).items():
                hashes[key].update(f"{values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return {key: sha.hexdigest() for key, sha in sorted(hashes.items())}


@pytest.mark.parametrize("name", STREAMS)
def test_batches_match_recorded_digests(name):
    assert digests(name) == json.loads(RECORD.read_text())[name]


if __name__ == "__main__":
    RECORD.write_text(json.dumps({name: digests(name) for name in STREAMS}, indent=2) + "\n")
