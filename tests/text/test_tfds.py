"""The `tfds` source, on data sets that TensorFlow Datasets wrote as TFRecord and as ArrayRecord."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertjax.config import DataConfig
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.corpus import Corpus
from bertjax.text.prepare import prepare
from bertjax.text.sources import tfds
from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.store.format import TokenStore

pytestmark = pytest.mark.run

DOCUMENTS = [f"Document {n}. It has a second sentence.\n\nAnd a paragraph about number {n * n}." for n in range(300)]


@functools.cache
def tales() -> type:
    """Define a data set's builder as an author would."""
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")

    class Tales(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self):
            features = {
                "text": tensorflow_datasets.features.Text(),
                "title": tensorflow_datasets.features.Text(),
                "id": tensorflow_datasets.features.Scalar(np.int64),
            }
            return tensorflow_datasets.core.DatasetInfo(
                builder=self, features=tensorflow_datasets.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(DOCUMENTS),
                "test": self._generate_examples(["Not to be read."] * 3),
            }

        def _generate_examples(self, texts):
            for number, text in enumerate(texts):
                yield number, {"text": text, "title": f"Title {number} of it.", "id": number}

    return Tales


def write_tales(data_dir: Path, file_format: str) -> None:
    """Prepare the data set in several files."""
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    tales()(data_dir=str(data_dir), file_format=file_format).download_and_prepare(
        download_config=tensorflow_datasets.download.DownloadConfig(num_shards=3)
    )


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def data_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_tales(folder, request.param)
    return folder


@pytest.fixture(autouse=True)
def tfds_data_dir(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))


def texts(source: str) -> list[str]:
    return [document.text for file in source_files(parse_source(source)) for document in read_documents(file)]


def test_every_document_comes_once_in_a_stable_order() -> None:
    documents = texts("tfds:tales")
    assert len(source_files(parse_source("tfds:tales"))) == 3
    assert sorted(documents) == sorted(text.replace("\n\n", "\n") for text in DOCUMENTS)
    assert texts("tfds:tales:text") == documents
    assert texts("tfds:tales:1.0.0:text") == documents


def test_another_feature_is_another_corpus(tmp_path: Path) -> None:
    assert sorted(texts("tfds:tales:title")) == sorted(f"Title {n} of it." for n in range(300))
    by_feature = [Corpus.of(DataConfig(sources=(f"tfds:tales:{f}",), root=str(tmp_path))) for f in ("text", "title")]
    assert by_feature[0].description() != by_feature[1].description()


def test_data_set_makes_a_store(tmp_path: Path) -> None:
    data = DataConfig(sources=("tfds:tales",), root=str(tmp_path), vocab_size=300, held_out=0.1, workers=2)
    store = TokenStore.open(prepare(data, lambda *_: None))
    assert sum(store.split(split).num_documents for split in ("train", "held_out")) == 300


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:wikipedia/20230601.en", r"not prepared in data_dir .*gs://tfds-data/datasets/wikipedia/20230601.en"),
        ("tfds:wikipedia/20230601.en", r"wikiextractor:GLOB"),
        ("tfds:tales:9.9.9", r"tfds:tales:9.9.9: not prepared in data_dir"),
        ("tfds:tales:body", r"no text feature 'body'; it has text, title"),
        ("tfds:tales:id", r"no text feature 'id'"),
        ("tfds:tales:text:more", r"write tfds:NAME"),
    ],
)
def test_missing_data_set_is_named(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source_files(parse_source(source))


def test_little_invalid_utf8_is_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    file = source_files(parse_source("tfds:tales"))[0]
    features = tfds._builder(Path(file.path).parent).info.features

    def set_records(*contents: bytes) -> None:
        records = [features.serialize_example({"text": text, "title": "", "id": 1}) for text in contents]
        monkeypatch.setattr(tfds, "_records", lambda path: iter(records))

    counts = ReadCounts()
    set_records(b"Good.", b"caf\xe9 " + b"word " * 100)
    assert [document.text[:6] for document in read_documents(file, counts)] == ["Good.", "caf\ufffd w"]
    assert counts.replaced_characters == 1
    set_records(b"Good.", b"caf\xe9")
    with pytest.raises(ValueError, match=r"not UTF-8, byte 0xe9 at example 1, offset 3 is .*is text really text"):
        list(read_documents(file))


def test_damaged_file_is_named(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_dir, tmp_path / "copy")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "copy"))
    path = Path(source_files(parse_source("tfds:tales"))[1].path)
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte]  # ArrayRecord pads its blocks with zeros
    for place in used[len(used) // 4 : len(used) // 2]:
        content[place] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=path.name.replace(".", r"\.")):
        texts("tfds:tales")
