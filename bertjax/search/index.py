"""The index of a set of documents: a folder with their texts, their vectors and their words, that one model made.

manifest.json        whose it is: the model's fingerprint, the encoding, counts, the bytes and SHA-256 of every file
vectors.npy          float32 [documents, width]       documents.jsonl, .offsets.npy    ids, titles and texts
bm25.*.npy           postings, see bertjax.search.bm25
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bertjax.convert.folder import written_whole
from bertjax.embed.encoder import Encoding, TextEncoder
from bertjax.embed.outputs import open_output
from bertjax.search import bm25
from bertjax.search.bm25 import Bm25, PostingsWriter
from bertjax.search.records import Record, sha256_of
from bertjax.search.stored_documents import DocumentWriter, StoredDocuments
from bertjax.tokenization.tokenizer import Tokenizer

MANIFEST, VECTORS = "manifest.json", "vectors.npy"

_FORMAT_VERSION = 1
_TOKENIZED_AT_ONCE = 256  # documents


@dataclass(frozen=True)
class Origin:
    """What an index was made of and by whom."""

    model: str  # as it was named
    fingerprint: str  # the model's, see bertjax.search.fingerprint
    encoding: Encoding  # with the length that rows really have
    files: list[list[str]]  # of documents, in order: each one's name and SHA-256
    field: str | None  # where in them the text is


@dataclass(frozen=True)
class SearchIndex:
    """An index that was opened; what is large stays in its files."""

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
    """Make an index of documents as they come; the folder is there at the end, whole, or not at all.

    `done` is told how many more documents were encoded. Raises ValueError if another process makes it, or has made it.
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
            "documents": encoder.counts.texts,
            "tokens": encoder.counts.tokens,
            "width": encoder.width,
            "bm25": {"k1": bm25.K1, "b": bm25.B},
            "origin": asdict(origin),
            "files": files,
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _kept(
    records: Iterable[Record], kept: DocumentWriter, words: PostingsWriter, tokenizer: Tokenizer
) -> Iterator[str]:
    """The texts of documents, which are written on the way."""
    source = iter(records)
    while some := list(itertools.islice(source, _TOKENIZED_AT_ONCE)):
        texts = [record.whole for record in some]
        for record, terms in zip(some, terms_of(texts, tokenizer), strict=True):
            kept.add(record)
            words.add(terms)
        yield from texts


def terms_of(texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The terms of texts: all their tokens but the unknown one, which stands for many words."""
    return [ids[ids != tokenizer.unk_id] for ids in tokenizer.encode_sentences(texts)]


def has_index(folder: Path) -> bool:
    """Whether there is an index. Raises ValueError if there is something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"--index {folder}: it is no index, for it has no {MANIFEST}; name another folder")
    return True


def open_index(folder: Path) -> SearchIndex:
    """Open an index, all its files checked against their SHA-256.

    Raises ValueError naming the file that is missing or damaged, or an index of another version of the format.
    """
    again = "remove the folder, and make the index again"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        version, files = manifest["format_version"], manifest["files"].items()
        made = manifest["origin"]
        origin = Origin(**made | {"encoding": Encoding(**made["encoding"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST}: damaged ({error}); {again}") from None
    if version != _FORMAT_VERSION:
        raise ValueError(f"{folder}: an index of format {version}, and this is {_FORMAT_VERSION}; {again}")
    for name, told in files:
        path = folder / name
        if not path.is_file() or path.stat().st_size != told["bytes"] or sha256_of(str(path)) != told["sha256"]:
            raise ValueError(f"{path}: missing or damaged, for it is not what {MANIFEST} says; {again}")
    documents = StoredDocuments(folder)
    vectors = np.load(folder / VECTORS, mmap_mode="r")
    return SearchIndex(folder, origin, vectors, documents, Bm25(folder, len(documents)))
