"""The index of a set of documents: a folder with their texts, vectors and BM25 scores, built with one model.

manifest.json        the origin (model fingerprint, encoding) and counts
vectors.npy          float32 [documents, width]       documents.jsonl, .offsets.npy    ids, titles and texts
bm25/                scores of terms, see bertjax.search.bm25
SHA256SUMS           digests of all of them
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.folder import written_whole
from bertjax.embed.encoder import Encoding, TextEncoder
from bertjax.embed.outputs import open_output
from bertjax.model.pooling import Pooling
from bertjax.run.run_directory import TrainedModel
from bertjax.search import bm25
from bertjax.search.bm25 import Bm25, write_bm25
from bertjax.search.records import Record, StoredDocuments, store_documents
from bertjax.storage.json_documents import read_json
from bertjax.storage.sums import check_sums, write_sums
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.digest import digest_arrays

MANIFEST, VECTORS, BM25 = "manifest.json", "vectors.npy", "bm25"

_FORMAT_VERSION = 2
_REBUILD = "remove the folder and build the index again"
_TOKENIZED_AT_ONCE = 256  # documents
# Options that change the encoder's outputs but not the shapes of its weights. They are part of every fingerprint, so an
# addition makes all existing indexes invalid: new options belong in _CONDITIONAL_FORWARD.
_FORWARD = (
    "num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps", "position_embedding", "window",
    "global_every", "causal", "rope_theta", "rope_theta_local", "rope_interleaved", "norm", "norm_place",
)  # fmt: skip
# Further such options, each with the condition under which it is part of the fingerprint: other models keep theirs.
_CONDITIONAL_FORWARD: tuple[tuple[Callable[[ModelConfig], bool], tuple[str, ...]], ...] = (
    (lambda model: model.attention_block > 0, ("attention_block", "random_blocks", "random_blocks_seed")),
    (lambda model: model.global_tokens == "first", ("global_tokens",)),  # a task marks other tokens
    (lambda model: model.score_bias_buckets > 0, ("score_bias_reach",)),
    (lambda model: model.token_dropout > 0, ("token_dropout", "mask_token_id")),  # scales the embeddings everywhere
    (lambda model: model.residual_depth > 0, ("residual_depth",)),
    (lambda model: model.first_global > 0, ("first_global",)),
    (lambda model: model.relative_buckets > 0, ("relative_max", "relative_buckets")),
    (lambda model: model.position_embedding == "sinusoidal", ("initializer_range",)),  # the size of the waves
)


@dataclass(frozen=True)
class Origin:
    """The model, the encoding and the documents of an index."""

    model: str  # as named on the command line
    fingerprint: str  # of the model, see `model_fingerprint`
    encoding: Encoding  # with the actual length of rows
    files: list[list[str]]  # name and SHA-256 of each file of documents, in order
    field: str | None  # the field with the text


@dataclass(frozen=True)
class SearchIndex:
    """An open index; vectors, BM25 scores and texts are memory-mapped."""

    folder: Path
    origin: Origin
    vectors: np.ndarray
    documents: StoredDocuments
    words: Bm25


def build_index(
    folder: Path,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    records: Iterable[Record],
    origin: Origin,
    done: Callable[[int], object] = lambda more: None,
) -> None:
    """Build an index from a stream of documents; the folder is published atomically at the end.

    `done` receives the number of documents encoded since its last call. Raises ValueError if another process is
    building the index, or has built it.
    """
    with written_whole(folder, MANIFEST) as partial:
        if has_index(folder):
            raise ValueError(
                f"--index {folder}: another process has just built the index; run the same command to open it"
            )
        terms: list[array[int]] = []
        with (
            open_output(partial / VECTORS, encoder.width, False, []) as add_vector,
            store_documents(partial) as add_document,
        ):

            def texts() -> Iterator[str]:
                source = iter(records)
                while batch := list(itertools.islice(source, _TOKENIZED_AT_ONCE)):
                    batch_texts = [record.whole for record in batch]
                    terms.extend(array("i", ids.tolist()) for ids in search_terms(batch_texts, tokenizer))
                    for record in batch:
                        add_document(record)
                    yield from batch_texts

            for embedding in encoder.encode(texts(), done):
                add_vector(embedding)
        write_bm25(partial / BM25, terms, tokenizer.vocab_size)
        manifest = {
            "format_version": _FORMAT_VERSION,
            "documents": encoder.counts.examples,
            "tokens": encoder.counts.tokens,
            "width": encoder.width,
            "bm25": {"k1": bm25.K1, "b": bm25.B},
            "origin": asdict(origin),
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        write_sums(partial)


def search_terms(texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Tokenize texts into terms: all tokens except [UNK]. A word has the same terms in every position."""
    return [ids[ids != tokenizer.unk_id] for ids in tokenizer.encode_sentences(texts, [False] * len(texts))]


def has_index(folder: Path) -> bool:
    """Check whether a folder holds an index. Raises ValueError if it holds something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"--index {folder}: not an index, because it has no {MANIFEST}; name another folder")
    return True


class _OriginRecord(TypedDict):
    model: str
    fingerprint: str
    encoding: dict[str, Any]
    files: list[list[str]]
    field: str | None


class _Manifest(TypedDict):
    format_version: int
    origin: _OriginRecord


def open_index(folder: Path) -> SearchIndex:
    """Open an index and check all its files against their SHA-256.

    Raises ValueError naming a missing or damaged file, or an unsupported format version.
    """
    manifest: _Manifest = read_json(folder / MANIFEST, _Manifest, remedy=f"it is damaged: {_REBUILD}")
    if (version := manifest["format_version"]) != _FORMAT_VERSION:
        raise ValueError(
            f"{folder}: an index of format {version}, but this version of bertjax reads {_FORMAT_VERSION}; {_REBUILD}"
        )
    for problem in check_sums(folder):
        raise ValueError(f"{problem}: the index is damaged; {_REBUILD}")
    origin = manifest["origin"]
    try:
        encoding = Encoding(**origin["encoding"])
        vectors = np.load(folder / VECTORS, mmap_mode="r")
        documents, words = StoredDocuments(folder), Bm25(folder / BM25)
    except Exception as error:  # NumPy parses headers as Python and raises any exception of the parser
        raise ValueError(f"{folder}: the index cannot be read ({error}); {_REBUILD}") from None
    if not (len(vectors) == len(documents) == len(words)):
        raise ValueError(
            f"{folder}: vectors for {len(vectors)} documents, BM25 for {len(words)}, texts of {len(documents)}; "
            f"{_REBUILD}"
        )
    index_origin = Origin(origin["model"], origin["fingerprint"], encoding, origin["files"], origin["field"])
    return SearchIndex(folder, index_origin, vectors, documents, words)


def model_fingerprint(model: TrainedModel, pooling: Pooling) -> str:
    """Hash the encoder, the pooler if pooling uses it, the vocabulary and `forward_options`; SHA-256, hex."""
    modules = {"encoder": model.params["encoder"]} | ({"pooler": model.params["pooler"]} if pooling == "pooler" else {})
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(modules)}
    content = {
        "weights": {name: digest.hex for name, digest in digest_arrays(leaves).items()},
        "tokenizer": model.tokenizer.fingerprint,
        "network": {name: getattr(model.config.model, name) for name in forward_options(model.config.model)},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def forward_options(model: ModelConfig) -> tuple[str, ...]:
    """List the options that change a model's vectors but not the shapes of its weights."""
    return (*_FORWARD, *(name for has, names in _CONDITIONAL_FORWARD if has(model) for name in names))
