"""A table of all importers and readers of foreign files, with their seeds and mutations."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fuzzing_mutations as change
import fuzzing_seeds as seeds
import numpy as np

from bertjax.config.values import from_dict
from bertjax.convert.folder import read_object
from bertjax.convert.huggingface.config import from_config_json, read_pad_id
from bertjax.convert.huggingface.safetensors_reader import read_safetensors
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer
from bertjax.convert.huggingface.torch_reader import read_torch_tensors
from bertjax.convert.tf1 import tf1_format as tf1
from bertjax.finetune.data.choices import read_swag
from bertjax.finetune.data.questions import read_questions
from bertjax.finetune.data.tables import Columns, Selection, read_rows, read_table
from bertjax.finetune.data.tags import read_tagged, tag_layout
from bertjax.input.masking.similar import SimilarTable
from bertjax.input.tfrecords.record_files import read_record_batches
from bertjax.input.tfrecords.rows import parse, record_shape, rows_from_features
from bertjax.run.checkpoint_metadata import parse_document
from bertjax.run.telemetry import curves, read_metrics
from bertjax.search.records import count_records, read_judgements, read_records
from bertjax.storage.json_documents import read_json
from bertjax.storage.sums import check_sums
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.similar_words import read_vectors
from bertjax.text.sources.registry import read_documents, split_file
from bertjax.text.sources.source import SourceFile
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import BLOCK_BYTES
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer

Read = Callable[[Path], object]
_PLAIN = TextRules(lowercase=False, strip_accents=False)
_TEXT = "The museum of drawings opened in 1877. 北京 naïve [MASK] \u0301 x"


@dataclass(frozen=True)
class Reader:
    """A reader of one file, in a folder of its own that also has the other files it needs.

    `read` takes the file's path and reads all of its content. `modules` must be installed.
    """

    name: str
    file: str
    read: Read
    seeds: Callable[[], list[bytes]]
    mutation: change.Mutation = change.mutated_bytes
    beside: Callable[[Path], object] = lambda folder: None  # writes the other files
    modules: tuple[str, ...] = ()
    rate: int = 1  # number of inputs in the suite, as a multiple of the least

    @property
    def missing(self) -> str:
        """The first required module that is not installed, or ""."""
        return next((name for name in self.modules if importlib.util.find_spec(name) is None), "")


def _arrays(read: Callable[[Path], dict[str, np.ndarray]]) -> Read:
    """Make a reader of all array values."""
    return lambda path: [array.tobytes() for array in read(path).values()]


def _config(path: Path) -> object:
    values = read_object(path)
    return from_config_json(values, path), read_pad_id(values, path)


def _use(tokenizer: Tokenizer) -> object:
    """Encode and decode a text, and compute the tables for masking."""
    (ids,) = tokenizer.encode_sentences([_TEXT])
    return tokenizer.decode(ids.tolist()), tokenizer.surfaces, tokenizer.is_continuation, tokenizer.fingerprint


def _vocabulary(path: Path) -> object:
    return _use(load_tokenizer(path, _PLAIN))


def _folder_vocabulary(path: Path) -> object:
    return _use(read_tokenizer(path.parent, "bert"))


def _pieces(path: Path) -> object:
    return _use(read_tokenizer(path.parent, "xlm-roberta"))


def _source(kind: str, **options: str) -> Read:
    """Make a reader of all documents of a source."""

    def read(path: Path) -> int:
        file = SourceFile(kind, str(path), **options)
        parts = split_file(file, 3) if path.suffix == ".bz2" and kind == "wikipedia" else [file]
        return sum(len(document.text) for part in parts for document in read_documents(part))

    return read


def _records(path: Path) -> object:
    counts = ReadCounts()
    records = list(read_records([str(path)], None, counts))
    return records, count_records([str(path)], None)


def _tf_records(path: Path) -> object:
    name = str(path)
    read = [record for records in read_record_batches(name, name) for record in records]
    if not read:
        return None
    shape = record_shape(read[0], name)
    features = parse(read, shape, lambda number: f"{name}, record {number}")
    return rows_from_features(features, seeds.wordpiece(), lambda number: f"{name}, record {number}")


def _tf1(path: Path) -> object:
    return tf1.read_arrays(path.parent)


def _bert_config(path: Path) -> object:
    return from_config_json(read_object(path), path, tf1.ACTIVATIONS)


def _store(folder: Path) -> object:
    store = TokenStore.open(folder)
    store.verify()
    for name in ("train", "held_out"):
        view = store.split(name)
        edges = view.document_offsets, view.sentence_offsets, view.works
        starts = edges[1][:-1]
        view.tokens(starts, np.diff(edges[1]))
    return store.tokenizer()


def _store_archive(path: Path) -> object:
    """Read the store in an archive, after updating the digests in its manifest."""
    folder = _unpack(path)
    with contextlib.suppress(*_IN_A_MANIFEST):
        manifest = json.loads((folder / "manifest.json").read_bytes())
        for split in manifest["splits"].values():
            for shard in split["shards"]:
                for record in shard["files"].values():
                    content = (folder / Path(record["name"]).name).read_bytes()
                    blocks = [content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
                    record |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                    record["blocks"] = [hashlib.sha256(block).hexdigest() for block in blocks]
        manifest["fingerprint"] = change.content_fingerprint(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return _store(folder)


_IN_A_MANIFEST = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError)  # from a mutated manifest


def _unpack(path: Path) -> Path:
    """Extract an archive that we wrote ourselves."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        for name in archive.namelist():
            (folder / name).write_bytes(archive.read(name))
    return folder


def _run_config(path: Path) -> object:
    try:
        return from_dict(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None  # every caller adds the path


def _metadata(path: Path) -> object:
    step = path.parent / "3"
    return parse_document(path.read_bytes(), step, str(path))


def _rows(path: Path) -> object:
    return [
        list(read_rows(path, Selection(("text", "label"), ("id",)), lambda line: None)),
        read_table(path, Columns(), lambda line: None),
    ]


def _tags(path: Path) -> object:
    return read_tagged(path, tag_layout(path))


def _similar(path: Path) -> object:
    return SimilarTable.read(str(path), seeds.wordpiece())


def _sums(path: Path) -> object:
    return list(check_sums(path.parent))


def _readers() -> Iterator[Reader]:
    lines, js, jsonl, raw = change.mutated_lines, change.mutated_json, change.mutated_json_lines, change.mutated_bytes
    torch = partial(Reader, file="pytorch_model.bin", read=_arrays(read_torch_tensors), modules=("torch",))
    yield torch("torch zip", seeds=partial(seeds.torch, zipped=True), mutation=change.zip_members, rate=2)
    yield torch("torch legacy", seeds=partial(seeds.torch, zipped=False), rate=2)
    yield Reader(
        "safetensors", "model.safetensors", _arrays(read_safetensors), seeds.safetensors, change.safetensors, rate=2
    )
    yield Reader("config.json", "config.json", _config, seeds.configs, js, rate=3)
    yield Reader("run config.json", "config.json", _run_config, seeds.run_configs, js)
    yield Reader("checkpoint metadata", "metadata.json", _metadata, seeds.metadata, change.signed_metadata)
    yield Reader(
        "tokenizer.json WordPiece",
        "tokenizer.json",
        _folder_vocabulary,
        partial(seeds.tokenizer, "wordpiece", "tokenizer.json"),
        js,
    )
    yield Reader(
        "tokenizer.json BPE", "tokenizer.json", _vocabulary, partial(seeds.tokenizer, "byte_bpe", "tokenizer.json"), js
    )
    yield Reader(
        "tokenizer_config.json",
        "tokenizer_config.json",
        _folder_vocabulary,
        partial(seeds.tokenizer, "wordpiece", "tokenizer_config.json"),
        js,
        beside=partial(seeds.beside_tokenizer, "wordpiece", "tokenizer.json"),
    )
    yield Reader("vocab.txt", "vocab.txt", _vocabulary, partial(seeds.tokenizer, "wordpiece", "vocab.txt"), lines)
    yield Reader(
        "entity map",
        "entity_map.tsv",
        lambda path: _vocabulary(path.with_name("vocab.txt")),
        seeds.entity_map,
        lines,
        beside=partial(seeds.beside_tokenizer, "wordpiece", "vocab.txt"),
    )
    yield Reader(
        "vocab.json",
        "vocab.json",
        _vocabulary,
        partial(seeds.tokenizer, "byte_bpe", "vocab.json"),
        js,
        beside=partial(seeds.beside_tokenizer, "byte_bpe", "merges.txt"),
    )
    yield Reader(
        "merges.txt",
        "merges.txt",
        _vocabulary,
        partial(seeds.tokenizer, "byte_bpe", "merges.txt"),
        lines,
        beside=partial(seeds.beside_tokenizer, "byte_bpe", "vocab.json"),
    )
    yield Reader(
        "SentencePiece",
        "spiece.model",
        _vocabulary,
        partial(seeds.tokenizer, "unigram", "spiece.model"),
        change.protobuf,
    )
    yield Reader(
        "SentencePiece BPE",
        "spiece.model",
        _vocabulary,
        partial(seeds.tokenizer, "bpe", "spiece.model"),
        change.protobuf,
    )
    yield Reader("SentencePiece numbered", "sentencepiece.bpe.model", _pieces, seeds.numbered_pieces, change.protobuf)
    yield Reader("similar words", "similar.tsv", _similar, seeds.similar_words, lines)
    yield Reader("word vectors", "vectors.txt", lambda path: read_vectors(str(path), 1000), seeds.word_vectors, lines)
    yield Reader("text", "a.txt", _source("text"), seeds.texts, lines)
    for suffix in (".gz", ".bz2", ".xz", ".zst"):
        packed = partial(seeds.packed, suffix)
        modules = ("zstandard",) if suffix == ".zst" else ()
        yield Reader(
            f"lines{suffix}",
            f"a.txt{suffix}",
            _source("lines"),
            packed,
            change.compressed(suffix, lines),
            modules=modules,
        )
    yield Reader("JSON Lines", "a.jsonl", _source("jsonl", spans="spans"), seeds.json_lines, jsonl)
    yield Reader("XML dump", "a.xml", _source("wikipedia"), seeds.dumps, lines, rate=2)
    yield Reader(
        "XML dump .bz2", "a.xml.bz2", _source("wikipedia"), seeds.multistream, change.compressed(".bz2", lines)
    )
    yield Reader("CSV source", "a.csv", _source("csv"), seeds.csv, lines)
    yield Reader("web page", "a.html", _source("html"), seeds.pages, lines, modules=("trafilatura",))
    yield Reader("PDF", "a.pdf", _source("pdf"), seeds.pdfs, lines, modules=("pypdf",))
    yield Reader(
        "Word document", "a.docx", _source("docx"), seeds.word_documents, change.zip_members, modules=("docx",)
    )
    yield Reader("WikiExtractor", "wiki_00", _source("wikiextractor"), seeds.extracted, jsonl)
    columns = {"modules": ("pyarrow",)}
    yield Reader("Parquet", "a.parquet", _source("parquet"), seeds.parquet, raw, **columns)
    yield Reader("Arrow file", "a.arrow", _source("parquet"), partial(seeds.arrow, stream=False), raw, **columns)
    yield Reader("Arrow stream", "a.arrow", _source("parquet"), partial(seeds.arrow, stream=True), raw, **columns)
    yield Reader("table Parquet", "a.parquet", _rows, seeds.parquet, raw, **columns)
    for suffix, make_seeds, mutation in (
        (".csv", seeds.csv, lines),
        (".tsv", seeds.tsv, lines),
        (".json", seeds.json_table, js),
        (".jsonl", seeds.json_lines, jsonl),
    ):
        yield Reader(f"table {suffix}", f"train{suffix}", _rows, make_seeds, mutation)
    yield Reader("table .csv.gz", "train.csv.gz", _rows, seeds.packed_table, change.compressed(".gz", lines))
    yield Reader("SQuAD", "train.json", lambda path: read_questions(path, True), seeds.questions, js)
    yield Reader(
        "SWAG", "train.csv", lambda path: read_swag(path.parent, "train", lambda line: None), seeds.choices, lines
    )
    yield Reader("CoNLL", "train.txt", _tags, seeds.tags, lines)
    yield Reader("CoNLL-U", "train.conllu", _tags, seeds.treebank, lines)
    yield Reader("judgements", "qrels.tsv", lambda path: read_judgements(str(path)), seeds.judgements, lines)
    yield Reader("search records", "docs.jsonl", _records, seeds.documents, jsonl)
    yield Reader("metrics.jsonl", "metrics.jsonl", lambda path: curves(read_metrics(path)), seeds.metrics, jsonl)
    yield Reader("SHA256SUMS", "SHA256SUMS", _sums, seeds.sums, lines)
    yield Reader(
        "store manifest",
        "manifest.json",
        lambda path: _store(path.parent),
        seeds.store_manifest,
        change.signed_manifest,
        beside=seeds.beside_store,
    )
    yield Reader("store arrays", "store.zip", _store_archive, seeds.store_archive, change.signed_archive)
    tensorflow = {"modules": ("tensorflow",)}
    yield Reader("TFRecord", "a.tfrecord", _tf_records, seeds.tf_records, change.tf_records, **tensorflow)
    yield Reader("TF1 config", "bert_config.json", _bert_config, seeds.bert_configs, js)
    yield Reader(
        "TF1 index",
        "bert_model.ckpt.index",
        _tf1,
        partial(seeds.tf1, "index"),
        raw,
        beside=partial(seeds.beside_tf1, "data-00000-of-00001"),
        **tensorflow,
    )
    yield Reader(
        "TF1 data",
        "bert_model.ckpt.data-00000-of-00001",
        _tf1,
        partial(seeds.tf1, "data-00000-of-00001"),
        raw,
        beside=partial(seeds.beside_tf1, "index"),
        **tensorflow,
    )


READERS = {reader.name: reader for reader in _readers()}
