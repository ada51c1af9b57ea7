"""The index of a set of documents: a folder with their texts, vectors and postings, built with one model.

manifest.json        the origin: the model's fingerprint, the encoding, counts, the bytes and SHA-256 of every file
vectors.npy          float32 [documents, width]       documents.jsonl, .offsets.npy    ids, titles and texts
bm25.*.npy           postings, see bertjax.search.bm25
"""

from __future__ import annotations

import hashlib
import itertools
import json
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
from bertjax.search.bm25 import Bm25, PostingsWriter
from bertjax.search.records import DocumentWriter, Record, StoredDocuments, sha256_of
from bertjax.storage.json_documents import Count, Sha256, read_json
from bertjax.storage.sums import SUMS_FILE, read_sums, write_sums
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.digest import digest_arrays

MANIFEST, VECTORS = "manifest.json", "vectors.npy"

_FORMAT_VERSION = 1
_AGAIN = "remove the folder, and make the index again"
_TOKENIZED_AT_ONCE = 256  # documents
# What decides the encoder's outputs in addition to its weights, and shows in none of them.
_FORWARD = (
    "num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps", "position_embedding", "window",
    "global_every", "causal", "rope_theta", "rope_theta_local", "rope_interleaved", "norm", "norm_place",
)  # fmt: skip
# The same with other options alone: left out of models without those, whose indexes keep their fingerprint.
_FORWARD_OF_SOME: tuple[tuple[Callable[[ModelConfig], bool], tuple[str, ...]], ...] = (
    (lambda model: model.attention_block > 0, ("attention_block", "random_blocks", "random_blocks_seed")),
    (lambda model: model.global_tokens == "first", ("global_tokens",)),  # others are marked by a task
    (lambda model: model.relative_buckets > 0, ("relative_max", "relative_buckets")),
    (lambda model: model.position_embedding == "sinusoidal", ("initializer_range",)),  # the size of the waves
)


@dataclass(frozen=True)
class Origin:
    """The model, the encoding and the documents of an index."""

    model: str  # as named on the command line
    fingerprint: str  # the model's, see `model_fingerprint`
    encoding: Encoding  # with the actual length of rows
    files: list[list[str]]  # of documents, in order: each one's name and SHA-256
    field: str | None  # the field with the text


@dataclass(frozen=True)
class SearchIndex:
    """An open index; vectors, postings and texts are memory-mapped."""

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
    building it, or has built it.
    """
    with written_whole(folder, MANIFEST) as partial:
        if has_index(folder):
            raise ValueError(f"--index {folder}: another process has just made it; the same command opens it")
        words = PostingsWriter(partial, tokenizer.vocab_size)
        with (
            open_output(partial / VECTORS, encoder.width, False, []) as add,
            DocumentWriter.at(partial) as kept,
        ):
            for embedding in encoder.encode(_kept(records, kept, words, tokenizer), done):
                add(embedding)
        words.finish()
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(str(path))}
            for path in sorted(partial.iterdir())
        }
        manifest = {
            "format_version": _FORMAT_VERSION,
            "documents": encoder.counts.examples,
            "tokens": encoder.counts.tokens,
            "width": encoder.width,
            "bm25": {"k1": bm25.K1, "b": bm25.B},
            "origin": asdict(origin),
            "files": files,
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        write_sums(partial)


def _kept(
    records: Iterable[Record], kept: DocumentWriter, words: PostingsWriter, tokenizer: Tokenizer
) -> Iterator[str]:
    """The texts of documents, each written to the index when it is read."""
    source = iter(records)
    while some := list(itertools.islice(source, _TOKENIZED_AT_ONCE)):
        texts = [record.whole for record in some]
        for record, terms in zip(some, terms_of(texts, tokenizer), strict=True):
            kept.add(record)
            words.add(terms)
        yield from texts


def terms_of(texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The terms of texts: all tokens except [UNK], which replaces many words; a word has one term in every position."""
    return [ids[ids != tokenizer.unk_id] for ids in tokenizer.encode_sentences(texts, [False] * len(texts))]


def has_index(folder: Path) -> bool:
    """Whether the folder holds an index. Raises ValueError if it holds something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"--index {folder}: it is no index, for it has no {MANIFEST}; name another folder")
    return True


class _FileRecord(TypedDict):
    bytes: Count
    sha256: Sha256


class _OriginRecord(TypedDict):
    model: str
    fingerprint: str
    encoding: dict[str, Any]
    files: list[list[str]]
    field: str | None


class _Manifest(TypedDict):
    """What is read of `MANIFEST`."""

    format_version: int
    origin: _OriginRecord
    files: dict[str, _FileRecord]


def _read_manifest(folder: Path) -> tuple[Origin, dict[str, _FileRecord]]:
    """Whose documents and model an index is of, and its files. Raises ValueError for a manifest that was changed."""
    path = folder / MANIFEST
    manifest: _Manifest = read_json(path, _Manifest, remedy=f"it is damaged: {_AGAIN}")
    if (version := manifest["format_version"]) != _FORMAT_VERSION:
        raise ValueError(f"{folder}: an index of format {version}, and this is {_FORMAT_VERSION}; {_AGAIN}")
    if not (folder / SUMS_FILE).is_file() or read_sums(folder).get(MANIFEST) != sha256_of(str(path)):
        raise ValueError(f"{path}: damaged, for it is not the one that {SUMS_FILE} is of; {_AGAIN}")
    made = manifest["origin"]
    try:
        return Origin(**made | {"encoding": Encoding(**made["encoding"])}), manifest["files"]
    except TypeError as error:
        raise ValueError(f"{path}: damaged ({error}); {_AGAIN}") from None


def open_index(folder: Path) -> SearchIndex:
    """Open an index and check all its files against their SHA-256.

    Raises ValueError naming the file that is missing or damaged, or an index of another version of the format.
    """
    origin, files = _read_manifest(folder)
    for name, recorded in files.items():
        if Path(name).name != name:
            raise ValueError(f"{folder / MANIFEST}: it lists {name[:80]!r}, which is no file of this folder; {_AGAIN}")
        path = folder / name
        if not path.is_file() or path.stat().st_size != recorded["bytes"] or sha256_of(str(path)) != recorded["sha256"]:
            raise ValueError(f"{path}: missing or damaged, for it is not what {MANIFEST} says; {_AGAIN}")
    try:
        documents = StoredDocuments(folder)
        vectors = np.load(folder / VECTORS, mmap_mode="r")
        words = Bm25(folder, len(documents))
    except Exception as error:  # NumPy parses a header as Python, and passes on what the parser raises
        raise ValueError(f"{folder}: an array of it cannot be read ({error}); {_AGAIN}") from None
    are_vectors = vectors.dtype == np.float32 and vectors.ndim == 2 and len(vectors) == len(documents)
    if not (are_vectors and documents.are_sound and words.are_sound):
        raise ValueError(f"{folder}: its arrays contradict each other; {_AGAIN}")
    return SearchIndex(folder, origin, vectors, documents, words)


def model_fingerprint(model: TrainedModel, pooling: Pooling) -> str:
    """SHA-256 (hex) of the encoder's weights, the pooler's if used, the vocabulary and the `forward_options`."""
    used = {"encoder": model.params["encoder"]} | ({"pooler": model.params["pooler"]} if pooling == "pooler" else {})
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(used)}
    content = {
        "weights": {name: digest.hex for name, digest in digest_arrays(named).items()},
        "tokenizer": model.tokenizer.fingerprint,
        "network": {name: getattr(model.config.model, name) for name in forward_options(model.config.model)},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def forward_options(model: ModelConfig) -> tuple[str, ...]:
    """The options that decide a model's vectors in addition to its weights, and show in none of them."""
    return (*_FORWARD, *(name for has, names in _FORWARD_OF_SOME if has(model) for name in names))
