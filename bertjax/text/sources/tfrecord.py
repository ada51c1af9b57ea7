"""The `tfrecord` source: rows of ids from google-research/bert's `create_pretraining_data.py`, without text."""

from __future__ import annotations

from bertjax.text.sources.source import SourceKind

KIND = SourceKind(
    "tfrecord",
    read=None,
    no_text="its records are already prepared rows of ids: `bertjax pretrain` trains on them with --data.vocab, the "
    "vocab.txt that they were made with",
    needs=("tensorflow", "tensorflow, or pretrain from text"),
    example="pretraining_data/*.tfrecord",
)
