"""The `parquet` source, and equal stores from every kind of source."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.config import DataConfig
from bertjax.storage.utf8 import ReadCounts
from bertjax.text import corpus
from bertjax.text.corpus import Corpus
from bertjax.text.prepare import prepare
from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.sources.source import SourceFile
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["One. Two.\n\n Three. ", None, "", "é話 🙂", "Last."]
EXPECTED = ["One. Two.\nThree.", "é話 🙂", "Last."]


def write_parquet(path, table, **options):
    pq.write_table(table, path, **options)


def write_stream(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_file(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


WRITERS = {"a.parquet": write_parquet, "a.arrow": write_stream, "b.arrow": write_file}


def table(texts=TEXTS, field="text", kind=None):
    kind = kind or pa.string()
    return pa.table({"id": range(len(texts)), field: pa.array(texts, kind), "title": ["T"] * len(texts)})


def texts(path, field="", counts=None):
    return [d.text for d in read_documents(SourceFile("parquet", str(path), feature=field), counts)]


def refusal(path, field=""):
    with pytest.raises(ValueError) as error:
        texts(path, field)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_row_is_a_document_and_a_null_an_empty_one(tmp_path, name, kind):
    path, counts = tmp_path / name, ReadCounts()
    WRITERS[name](path, table(kind=getattr(pa, kind)()))
    assert texts(path, counts=counts) == EXPECTED
    assert counts == ReadCounts(documents=3, characters=sum(map(len, EXPECTED)), empty_documents=2)


def test_row_groups_and_compression_change_nothing(tmp_path):
    for number, compression in enumerate(("none", "snappy", "gzip", "zstd", "lz4", "brotli")):
        write_parquet(tmp_path / "a.parquet", table(), compression=compression, row_group_size=number + 1)
        assert texts(tmp_path / "a.parquet") == EXPECTED


def test_field_is_named_after_the_glob(tmp_path):
    for name in ("2.parquet", "1.parquet"):
        write_parquet(tmp_path / name, table([f"Body of {name}."], "body"))
    files = source_files(parse_source(f"parquet:{tmp_path}/*.parquet:body"))
    assert [d.text for file in files for d in read_documents(file)] == ["Body of 1.parquet.", "Body of 2.parquet."]
    root = str(tmp_path)
    sources = [f"parquet:{tmp_path}/*.parquet:{field}" for field in ("body", "title")]
    assert len({json.dumps(Corpus.of(DataConfig(sources=(s,), root=root)).description()) for s in sources}) == 2
    with pytest.raises(ValueError, match=r"1.parquet: no field 'text'; it has id, body, title; name one of them"):
        source_files(parse_source(f"parquet:{tmp_path}/*.parquet"))
    with pytest.raises(ValueError, match=r"1.parquet: field 'id' is int64, not string; name a field of text"):
        source_files(parse_source(f"parquet:{tmp_path}/*.parquet:id"))


def test_default_field_may_be_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", table())
    files = [source_files(parse_source(f"parquet:{tmp_path}/*{end}")) for end in ("", ":text")]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_or_truncated_files_are_refused(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, table([f"Document {n}. " + hashlib.sha256(b"%d" % n).hexdigest() for n in range(300)]))
    whole = path.read_bytes()
    for size in (9, 12, len(whole) // 2, len(whole) - 12, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "damaged or cut off (" in refusal(path)
    for content in (b"", b"{}\n", bytes(100), b"\x1f\x8b" + whole):
        path.write_bytes(content)
        assert "neither Parquet nor Arrow" in refusal(path)


SWEEP = """
import sys
from bertjax.text.documents import ReadCounts
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
for path in sys.argv[1:]:
    whole, refused = open(path, "rb").read(), 0
    for place in range(4, len(whole), max(1, len(whole) // 80)):
        for flip in (0xFF, 0x01, 0x80):
            content = bytearray(whole)
            content[place] ^= flip
            open(path, "wb").write(content)
            try:
                for document in read_documents(SourceFile("parquet", path)):
                    assert len(document.text) < 1 << 20
            except ValueError as error:
                assert path in str(error), error
                refused += 1
    assert refused >= 7, (path, refused)
"""


@pytest.mark.run
def test_no_flipped_byte_crashes(tmp_path):
    """Runs in a separate process, because a crash would end it."""
    for name, write in WRITERS.items():
        write(tmp_path / name, table([f"Document {n}." for n in range(6)]))
    paths = [str(tmp_path / name) for name in WRITERS]
    done = subprocess.run([sys.executable, "-c", SWEEP, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_few_invalid_bytes_are_replaced(tmp_path):
    def strings(values):
        return pa.table({"text": pa.array(values, pa.binary()).view(pa.string())})

    counts = ReadCounts()
    write_stream(tmp_path / "a.arrow", strings([b"caf\xe9 " + b"word " * 100, b"More."]))
    assert texts(tmp_path / "a.arrow", counts=counts) == ["caf\ufffd " + ("word " * 100).strip(), "More."]
    assert counts.replaced_characters == 1
    write_stream(tmp_path / "a.arrow", strings([b"Good.", b"caf\xe9"]))
    assert "not UTF-8, byte 0xe9 at row 2, offset 3 is" in refusal(tmp_path / "a.arrow")


def test_overlong_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.text.sources.parquet.RECORD_CAP", 1 << 20)
    write_stream(tmp_path / "a.arrow", table(["One.", "x" * (1 << 20), "y" * ((1 << 20) + 1)]))
    assert "row 3: a text of more than 1 MiB" in refusal(tmp_path / "a.arrow")


PEAK = """
import sys
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
import pyarrow.parquet
def most():  # getrusage would include the parent's memory
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = most()
print(sum(len(d.text) for d in read_documents(SourceFile("parquet", sys.argv[1]))))
print((most() - before) >> 10)
"""


@pytest.mark.run
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
@pytest.mark.parametrize("groups", [1, 50])
def test_memory_does_not_grow_with_a_parquet_file(tmp_path, groups):
    block = [os.urandom(5000).hex() for _ in range(100)]
    rows = table(block)
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema, compression="none", use_dictionary=False) as writer:
        if groups == 1:
            writer.write_table(pa.concat_tables([rows] * 100), row_group_size=10_000)
        else:
            for _ in range(100):
                writer.write_table(rows)
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path / "a.parquet"], capture_output=True, text=True)
    characters, peak = map(int, done.stdout.split())
    assert characters == 100_000_000 and peak < 48  # MiB


# the same documents through every kind

WORDS = ("river", "bank", "water", "stone", "boat", "stood", "under", "bridge", "for", "years")
SENTENCES = [[f"The {WORDS[n % 10]} {WORDS[m % 7]} {WORDS[(n * m) % 9]}." for m in range(2, 9)] for n in range(120)]


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    """A folder with a data set of the documents in order, prepared by TensorFlow Datasets."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class OrderedTales(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, sentences in enumerate(SENTENCES):
                yield number, {"text": in_paragraphs(sentences)}

    folder = tmp_path_factory.mktemp("tales")
    OrderedTales(data_dir=str(folder)).download_and_prepare()
    return folder


def in_paragraphs(sentences):
    return f"{' '.join(sentences[:3])}\n\n{' '.join(sentences[3:])}\n"


def test_every_kind_of_source_makes_the_same_store(tmp_path, tales, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tales))
    monkeypatch.setattr(corpus, "UNIT_BYTES", 1 << 30)
    rows = [in_paragraphs(sentences) for sentences in SENTENCES]
    write_parquet(tmp_path / "a.parquet", table(rows, "body"), row_group_size=7)
    write_stream(tmp_path / "a.arrow", table(rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"story": row}) + "\n" for row in rows))
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(sentences) for sentences in SENTENCES))
    letters = "abcdefghijklmnopqrstuvwxyz"
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIAL_TOKENS, ".", *WORDS, *letters, *(f"##{c}" for c in letters)])
    )
    sources = ("tfds:ordered_tales", f"parquet:{tmp_path}/a.parquet:body", f"parquet:{tmp_path}/a.arrow")
    sources += (f"jsonl:{tmp_path}/a.jsonl:story", f"lines:{tmp_path}/a.txt")
    stores = [store_digests(tmp_path, source) for source in sources]
    assert len(stores[0]) >= 7 and sum(map(len, stores)) == 5 * len(stores[0])
    assert all(store == stores[0] for store in stores)


def store_digests(folder: Path, source: str) -> dict[str, str]:
    """Prepare a source and return the digests of the store's files; the manifest counts without its provenance."""
    vocab = str(folder / "vocab.txt")
    store = prepare(DataConfig(sources=(source,), root=str(folder / "root"), vocab=vocab, held_out=0.2, workers=1))
    files = {path.name: path.read_bytes() for path in store.iterdir()}
    manifest = json.loads(files["manifest.json"])
    assert manifest["provenance"]["reading"][0]["documents"] == len(SENTENCES)
    del manifest["provenance"], manifest["provenance_sha256"]
    files["manifest.json"] = json.dumps(manifest, sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
