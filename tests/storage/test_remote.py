"""Sources and stores in object storage: the same bytes as on this machine, and errors with advice.

Runs against an S3 server if s3fs and moto are installed, and against fsspec's storage in memory everywhere.
"""

import hashlib
import importlib.util
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from small_corpus import changed, content, generated_text
from test_sources import COMPRESS, article
from test_wikipedia import head, noise, streams

from bertjax.config import DataConfig
from bertjax.storage import remote
from bertjax.storage.remote import RemoteError, RemotePath
from bertjax.text import beam, corpus, shards
from bertjax.text import prepare as module
from bertjax.text.corpus import Corpus
from bertjax.text.open_store import open_store
from bertjax.text.prepare import prepare, prepare_share
from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.store import blocks, local_copy
from bertjax.text.store.format import TokenStore
from bertjax.text.store.local_copy import open_near
from bertjax.text.store.manifest import SPLITS, file_records, read_manifest
from bertjax.text.store.verify import check_store
from bertjax.text.trained_vocabulary import prepare_vocabulary
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS

pytestmark = pytest.mark.run

_UNIT_BYTES = 1300
# The suite uses the server where s3fs's requests matter: whole stores, ranges, kills, and error messages.
in_memory = pytest.mark.parametrize("bucket", ["memory", pytest.param("s3", marks=pytest.mark.long)], indirect=True)


@pytest.fixture
def data(data, tmp_path, monkeypatch):
    """Sixteen small files in about five units."""
    monkeypatch.setattr(corpus, "UNIT_BYTES", _UNIT_BYTES)
    for number in range(16, 40):
        (tmp_path / "text" / f"{number}.txt").unlink()
    return data


def upload_folder(folder, url):
    """Upload the files of a folder; returns the URL."""
    for path in sorted(folder.iterdir()):
        (RemotePath(url) / path.name).upload(path)
    return url


def moved(data, bucket, **values):
    """Move the text of a config and its root to a bucket."""
    text = upload_folder(Path(data.sources[0].removeprefix("text:")).parent, f"{bucket}/text")
    return changed(data, sources=(f"text:{text}/*.txt",), root=f"{bucket}/root", **values)


def remote_content(folder):
    return {
        url.rpartition("/")[2]: hashlib.sha256(RemotePath(url).read_bytes()).hexdigest()
        for url in remote.remote_files(f"{folder}/**")
    }


def test_remote_store_equals_the_local_one(data, bucket, tmp_path):
    """Compares stores and vocabularies with remote sources and root; in memory, also with either alone."""
    local = changed(data, vocab="", vocab_size=60)
    expected, vocabulary = content(prepare(local)), content(prepare_vocabulary(local).parent)
    there = moved(local, bucket)
    store = prepare(there)
    assert isinstance(store, RemotePath) and str(store).startswith(f"{there.root}/store-")
    assert remote_content(store) == expected
    assert prepare(there) == store
    assert {n: d for n, d in remote_content(prepare_vocabulary(there).parent).items() if n == "vocab.txt"} == {
        "vocab.txt": vocabulary["vocab.txt"]
    }
    if bucket.startswith("memory"):
        assert content(prepare(changed(local, sources=there.sources, root=str(tmp_path / "here")))) == expected
        assert remote_content(prepare(changed(local, root=f"{bucket}/other"))) == expected


@pytest.mark.long  # the suite has processes in tests/text/test_prepare.py, and remote shards below
def test_remote_store_is_the_same_from_processes(data, s3):
    assert remote_content(prepare(moved(data, s3, workers=2))) == content(prepare(data))


@in_memory
def test_remote_store_is_the_same_from_shards(data, bucket):
    expected = content(prepare(data))
    shared = moved(data, bucket)
    for index in (1, 0):
        done, units = prepare_share(shared, index, 2)
    assert done == units and not remote.remote_files(f"{shared.root}/store-*/manifest.json")
    assert remote_content(prepare(shared)) == expected
    assert prepare_share(shared, 0, 2) == (units, units)


@pytest.mark.long  # the suite has Beam in tests/text/test_beam.py
@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is None, reason="needs Apache Beam")
@in_memory
def test_remote_store_is_the_same_from_beam(data, bucket):
    expected = content(prepare(changed(data, vocab="", vocab_size=60)))
    there = moved(data, bucket, vocab="", vocab_size=60)
    runner = partial(beam.run_units, options=["--runner=DirectRunner"], folder=RemotePath(there.root))
    assert remote_content(prepare(there, runner=runner)) == expected
    assert not RemotePath(there.root).glob("beam-*")
    (RemotePath(f"{bucket}/text") / "11.txt").write_bytes(b"ELF\x00\xff\xfe\x80" * 99)
    with pytest.raises(ValueError, match=r"text/11\.txt: not "):
        prepare(there, runner=runner)


SCRIPT = """
import pathlib, time
from bertjax.config import DataConfig
from bertjax.text import corpus, prepare
corpus.UNIT_BYTES, corpus.MAX_UNITS = {unit_bytes}, 1000
def no_further(what, done, total):
    if what == "preparing text, bytes" and done > total / 2:
        pathlib.Path({sleeps!r}).touch()
        time.sleep(600)
if __name__ == "__main__":
    prepare.prepare(DataConfig(**{values!r}), no_further)
"""


@pytest.mark.long  # the suite kills one in tests/text/test_prepare.py, and has failing storage below
def test_killed_prepare_continues(data, s3, tmp_path, monkeypatch):
    expected = content(prepare(data))
    there = moved(data, s3)
    # Killed while it sends nothing, because the effect of an interrupted request would depend on the server.
    sleeps = tmp_path / "sleeps"
    script = SCRIPT.format(values=vars(there), unit_bytes=_UNIT_BYTES, sleeps=str(sleeps))
    (tmp_path / "script.py").write_text(script)
    running = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    deadline = time.monotonic() + 120
    while not sleeps.exists():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    finished = len(remote.remote_files(f"{there.root}/store-*/partial/unit-*.json"))
    assert finished >= 2
    assert not remote.remote_files(f"{there.root}/store-*/manifest.json")
    processed = []
    monkeypatch.setattr(
        module, "make_shards", lambda unit, job: processed.append(unit) or shards.make_shards(unit, job)
    )
    assert remote_content(prepare(there)) == expected
    assert len(processed) == len(Corpus.of(there).units) - finished


@in_memory
def test_storage_failure_keeps_finished_work(data, bucket, monkeypatch):
    expected = content(prepare(data))
    there = moved(data, bucket)
    storage = remote._storage(bucket)[0]  # fsspec caches one object per bucket
    get, reports = storage.cat_file, []

    def cat_file(path, **span):
        if reports and path.endswith("09.txt"):
            raise ConnectionError("it hung up")
        return get(path, **span)

    with monkeypatch.context() as broken:
        broken.setattr(storage, "cat_file", cat_file)
        with pytest.raises(RemoteError, match=r"text/09\.txt: cannot be read \(ConnectionError: it hung up\); check"):
            prepare(there, lambda *values: reports.append(values))
    assert remote.remote_files(f"{there.root}/store-*/partial/unit-*.json")
    assert remote_content(prepare(there)) == expected


@in_memory
def test_bad_text_costs_no_finished_unit(data, bucket):
    there = moved(data, bucket)
    (RemotePath(f"{bucket}/text") / "11.txt").write_bytes(b"ELF\x00\xff\xfe\x80" * 99)
    with pytest.raises(ValueError, match=r":///?bucket-.*/text/11\.txt: not UTF-8"):
        prepare(there)
    assert remote.remote_files(f"{there.root}/store-*/partial/unit-*.json")
    assert not remote.remote_files(f"{there.root}/store-*/manifest.json")


@in_memory
def test_file_changed_during_prepare_is_refused(data, bucket, monkeypatch):
    there = moved(data, bucket)
    path = RemotePath(f"{bucket}/text/00.txt")

    def meddle(unit, job):
        path.write_bytes(path.read_bytes().upper())  # the same length, and the same content each time
        return shards.make_shards(unit, job)

    monkeypatch.setattr(module, "make_shards", meddle)
    with pytest.raises(ValueError, match=r"00\.txt was changed while it was read"):
        prepare(there)


def documents(source):
    return [document for file in source_files(parse_source(source)) for document in read_documents(file)]


def test_every_kind_and_compression_is_read_remotely(tmp_path, bucket):
    words = "\n".join(json.dumps({"text": generated_text(number)}) for number in range(300))
    for suffix, compress in COMPRESS.items():
        (tmp_path / f"a.jsonl{suffix}").write_bytes(compress(words.encode()))
        (tmp_path / f"a.txt{suffix}").write_bytes(compress(generated_text(1, 4000).encode()))
        (tmp_path / f"a.xml{suffix}").write_bytes(compress((head() + "".join(noise(40)) + "</mediawiki>\n").encode()))
        (tmp_path / f"a.wiki{suffix}").write_bytes(compress(article("River", "It is on.\nBy the river.").encode()))
    upload_folder(tmp_path, f"{bucket}/deep/er")
    for source in ("jsonl:{}/a.jsonl*", "jsonl:{}/a.jsonl:text", "text:{}/a.txt*", "lines:{}/a.txt.gz"):
        assert documents(source.format(f"{bucket}/deep/er")) == documents(source.format(tmp_path))
    for source in ("wikipedia:{}/a.xml*", "wikiextractor:{}/**/a.wiki*"):
        assert len(documents(source.format(tmp_path))) in (5, 200)
        assert documents(source.format(f"{bucket}/deep/er")) == documents(source.format(tmp_path))


def test_parquet_and_arrow_are_read_remotely(tmp_path, bucket):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pa.table({"text": [generated_text(number) for number in range(50)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    for name, begin in (("b.arrow", pa.ipc.new_stream), ("c.arrow", pa.ipc.new_file)):
        with begin(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, 7)
    upload_folder(tmp_path, bucket)
    assert len(documents(f"parquet:{bucket}/*")) == 150
    assert documents(f"parquet:{bucket}/*") == documents(f"parquet:{tmp_path}/*")
    with pytest.raises(ValueError, match=r"a\.parquet: no field 'abstract'; it has text"):
        documents(f"parquet:{bucket}/a.parquet:abstract")


def test_parquet_fetches_the_bytes_of_its_column(tmp_path, bucket, monkeypatch):
    """Fetches at most a tenth more than the text column, whole or by row groups; computing digests reads nothing."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    fetched = []
    exact_reader = remote._exact_reader

    def counting(storage, path):
        fetch = exact_reader(storage, path)
        return lambda start, end: (fetched.append(end - start), fetch(start, end))[1]

    monkeypatch.setattr(remote, "_exact_reader", counting)
    monkeypatch.setattr(corpus, "UNIT_BYTES", 4 << 20)
    noise = [hashlib.shake_256(b"%d" % number).hexdigest(1000) for number in range(2100)]
    table = pa.table({"id": range(2100), "other": noise[::-1], "text": noise})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100, compression="none")
    footer = pyarrow.parquet.read_metadata(tmp_path / "a.parquet")
    column = sum(footer.row_group(group).column(2).total_compressed_size for group in range(21))
    upload_folder(tmp_path, bucket)
    source = f"parquet:{bucket}/a.parquet"
    assert [document.text for document in documents(source)] == noise
    assert column < sum(fetched) < 1.1 * column
    whole = Corpus.of(DataConfig(sources=(source,), root=str(tmp_path / "root")))
    fetched.clear()
    parts = [file for unit in whole.units for file in unit.files]
    assert [document.text for part in parts for document in read_documents(part)] == noise
    assert len(parts) > 4 and sum(fetched) < 1.1 * column


@in_memory
def test_multistream_dump_is_read_in_spans(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(corpus, "UNIT_BYTES", 10_000)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "a.xml.bz2").write_bytes(streams(head(), *noise(100), "</mediawiki>\n"))
    upload_folder(tmp_path / "dump", bucket)
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIAL_TOKENS, ":", *(f"{m}{c}" for c in "0123456789abcdef" for m in ("", "##"))])
    )
    base = DataConfig(vocab=str(tmp_path / "vocab.txt"), held_out=0.2, workers=1, root=str(tmp_path / "a"))
    here, there = (changed(base, sources=(f"wikipedia:{place}/a.xml.bz2",)) for place in (tmp_path / "dump", bucket))
    assert len(Corpus.of(there).units) == len(Corpus.of(here).units) > 3
    assert content(prepare(here)) == content(prepare(changed(there, root=str(tmp_path / "b"))))


@pytest.mark.long  # the suite has the sizes of requests, below
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak of memory from /proc")
def test_memory_does_not_grow_with_a_remote_file(s3):
    text = RemotePath(f"{s3}/large.txt")
    text.write_bytes((generated_text(1, 400) + "\n\n").encode() * 4000)
    RemotePath(f"{text}.small").write_bytes(b"Some text.")
    script = f"""
from bertjax.text.sources.registry import parse_source, read_documents, source_files
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
small, file = (source_files(parse_source(f"text:{{name}}"))[0] for name in ("{text}.small", "{text}"))
list(read_documents(small))
before = peak()
print(sum(len(document.text) for document in read_documents(file)), peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    characters, more = map(int, done.stdout.split())
    assert characters > 40e6 and more < 42 << 10  # KiB: some pieces of 8 MiB, and not the file


def test_missing_objects_are_reported_with_advice(data, bucket):
    command = "aws s3 ls" if bucket.startswith("s3") else ""
    with pytest.raises(
        ValueError, match=rf"source text:{bucket}/no/\*: the glob matches nothing .list the files.*{command}"
    ):
        prepare(changed(data, sources=(f"text:{bucket}/no/*",)))
    with pytest.raises(ValueError, match=rf"vocabulary {bucket}/v\.txt: cannot be read .FileNotFoundError.*{command}"):
        prepare(changed(data, vocab=f"{bucket}/v.txt"))
    with pytest.raises(ValueError, match=rf"token store {bucket}/store: no manifest\.json in it"):
        open_near(RemotePath(f"{bucket}/store"))


def test_missing_bucket_is_reported(data, s3):
    with pytest.raises(
        RemoteError, match=r"s3://nowhere-at-all/x/.* cannot be written .*bucket does not exist.*aws s3 ls"
    ):
        prepare(changed(data, root="s3://nowhere-at-all/x"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket", r"gs://bucket/.*: the library that opens gs:// is not installed; pip install 'bertjax\[gcs\]'"),
        ("gz://bucket", r"gz://bucket/.*: Protocol not known: gz; use gs://, s3://, another URL that fsspec supp"),
    ],
)
def test_unopenable_urls_are_named(data, monkeypatch, url, message):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for values in ({"sources": (f"text:{url}/*.txt",)}, {"root": f"{url}/root"}, {"vocab": f"{url}/vocab.txt"}):
        with pytest.raises(ValueError, match=message):
            prepare(changed(data, **values))


# the copy on this machine


@pytest.fixture
def store(data, bucket):
    return prepare(moved(data, bucket))


def content_of_copy(folder):
    files = content(folder)
    assert files.pop("origin")
    return files


def count_requests(monkeypatch, stop_after=10**9):
    """Record (name, first byte) of each fetched range of a store; interrupt after `stop_after` requests."""
    requests, read = [], blocks.read_range

    def counting_read(source, start, stop):
        if len(requests) == stop_after:
            raise KeyboardInterrupt
        requests.append((source.name, start))
        return read(source, start, stop)

    monkeypatch.setattr(blocks, "read_range", counting_read)
    return requests


def test_remote_store_is_read_from_a_copy(data, bucket, tmp_path):
    here = TokenStore.open(prepare(data))
    there = open_store(moved(data, bucket, cache_dir=str(tmp_path / "cache")))
    assert there.path.parent == tmp_path / "cache" and content_of_copy(there.path) == content(here.path)
    for split in SPLITS:
        one, two = here.split(split), there.split(split)
        starts, lengths = one.sentence_offsets[:-1], np.diff(one.sentence_offsets)
        np.testing.assert_array_equal(one.tokens(starts, lengths), two.tokens(starts, lengths))
    assert there.tokenizer().tokens == here.tokenizer().tokens
    assert not list(check_store(there.path))
    near = open_store(changed(data, cache_dir=str(tmp_path / "near")))
    assert near.path.parent == tmp_path / "near" and content_of_copy(near.path) == content(here.path)
    assert open_store(data).path == here.path


@in_memory
def test_interrupted_copy_continues(store, tmp_path, monkeypatch):
    reports, files = [], file_records(read_manifest(store))
    with monkeypatch.context() as interrupted:
        before = count_requests(interrupted, stop_after=len(files) // 2)
        with pytest.raises(KeyboardInterrupt):
            open_near(store, str(tmp_path), lambda *progress: reports.append(progress))
    size = sum(file["bytes"] for file in files)
    assert reports[0][1:] == (0, size) and reports[0][0].startswith(f"copying the token store to {tmp_path}")
    after = count_requests(monkeypatch)
    assert content_of_copy(open_near(store, str(tmp_path)).path) == remote_content(store)
    assert sorted([*before, *after]) == sorted((file["name"], 0) for file in files), "each block once"


@in_memory
def test_damaged_remote_file_is_named(store, tmp_path):
    damaged = store / "train-00002.tokens"
    whole = bytearray(damaged.read_bytes())
    whole[100] ^= 1
    damaged.write_bytes(bytes(whole))
    with pytest.raises(ValueError, match=rf"token store file {damaged}: the block at byte 0 is damaged .its SHA-256 "):
        open_near(store, str(tmp_path))
    whole[100] ^= 1
    damaged.write_bytes(bytes(whole))
    assert content_of_copy(open_near(store, str(tmp_path)).path) == remote_content(store)


def test_too_little_room_is_reported_first(data, tmp_path, monkeypatch):
    store = prepare(data)
    monkeypatch.setattr(local_copy.shutil, "disk_usage", lambda _: local_copy.shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(OSError, match=r"data\.cache_dir=.*: 0\.\d MB of .* must be copied .* 0\.0 MB are free"):
        open_near(store, str(tmp_path))
    with pytest.raises(ValueError, match=r"data\.cache_dir=s3://b/c is not on this machine; name a folder on a local"):
        open_near(store, "s3://b/c")


@in_memory
def test_blocks_of_a_large_store_are_fetched_when_read(store, tmp_path, monkeypatch):
    most = 5 * blocks.BLOCK_BYTES / 1e9
    with pytest.raises(ValueError, match=r"data\.cache_gb=1e-05: a run holds 3 windows .* here 0\.\d\d\d GB; allow at"):
        open_near(store, str(tmp_path), most_gigabytes=1e-5)
    monkeypatch.setattr(local_copy, "WINDOW_TOKENS", 0)
    requests = count_requests(monkeypatch)
    bounded = open_near(store, str(tmp_path), most_gigabytes=most)
    train = bounded.split("train")
    parts = train.parts(10**9)
    assert not requests and len(parts) > 2
    assert not [*bounded.path.glob("train-*")] and not list(check_store(bounded.path)), "made when they are read"
    whole = open_near(store, str(tmp_path / "whole")).split("train")
    for part in (*parts, *parts):
        there, here = (split.select([part]) for split in (train, whole))
        every = there.sentence_offsets[:-1], np.diff(there.sentence_offsets)
        assert (there.tokens(*every) == here.tokens(*every)).all()
    assert not list(check_store(bounded.path)), "holes are not damage"
    present = [path for path in bounded.path.glob("train-*") if path.stat().st_blocks]
    assert 2 <= len(present) <= 5
    assert requests.count(("train-00000.tokens", 0)) == 3, "once by one copy, and twice by the bounded one"
    assert open_near(store, str(tmp_path), most_gigabytes=most) is bounded
    with pytest.raises(ValueError, match=r"another process reads this copy, and data\.cache_gb bounds it; give"):
        TokenStore.open(bounded.path)


def test_open_bytes_requests_pieces(bucket, monkeypatch):
    """Reads any part of a file with requests as large as the buffer, not the file."""
    monkeypatch.setattr(remote, "_READ_AT_ONCE", 100)
    content = bytes(range(256)) * 10
    (RemotePath(bucket) / "a").write_bytes(content)
    with remote.open_bytes(f"{bucket}/a") as file:
        assert [file.read(3), file.seek(1000), file.read(5)] == [content[:3], 1000, content[1000:1005]]
        assert file.seek(-6, 2) == 2554 and file.read() == content[-6:] and file.read(1) == b""
        assert file.seek(0) == 0 and file.read() == content
    assert remote.file_size(f"{bucket}/a") == 2560


def test_paths_are_listed_moved_and_removed(bucket, tmp_path):
    place = RemotePath(f"{bucket}/a/b")
    assert not place.exists() and not place.is_dir() and not list(place.iterdir()) and not place.sizes()
    (tmp_path / "deep").mkdir()
    files = {"one.txt": b"1", "deep/two": b"22"}
    for name, file_content in files.items():
        (tmp_path / name).write_bytes(file_content)
    place.upload_all(tmp_path, files)
    assert place.exists() and place.is_dir() and not place.is_file()
    assert [entry.name for entry in place.iterdir()] == ["deep", "one.txt"] and (place / "one.txt").suffix == ".txt"
    assert place.sizes() == {"one.txt": 1, "deep/two": 2}
    copy = RemotePath(f"{bucket}/copy")
    place.copy_to(copy)
    copy.download_all(tmp_path / "back", files)
    assert {name: (tmp_path / "back" / name).read_bytes() for name in files} == files
    (copy / "one.txt").unlink()
    (copy / "one.txt").unlink(missing_ok=True)
    copy.rmtree()
    copy.rmtree()
    assert not copy.exists() and place.sizes().keys() == files.keys()


def test_unreachable_storage_is_not_empty(monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()  # cached instances have another endpoint
    place = RemotePath("s3://bucket/file")
    tries = [place.exists, place.is_file, place.is_dir, place.rmtree, partial(place.unlink, missing_ok=True)]
    try:
        for attempt in tries:
            with pytest.raises(RemoteError, match=r"s3://bucket/file: cannot be looked up .*Could not connect"):
                attempt()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("kinds", [("ConnectError", "NetworkError"), ("ReadTimeout", "TimeoutException"), ("Offline",)])
def test_data_set_without_network_names_the_download_command(kinds, monkeypatch):
    error = Exception if len(kinds) > 1 else ConnectionError
    for name in reversed(kinds):
        error = type(name, (error,), {})

    class Storage:
        def glob(self, *_, **__):
            raise error("unreachable")

    monkeypatch.setattr(remote, "_storage", lambda url: (Storage(), url))
    with pytest.raises(RemoteError) as raised:
        source_files(parse_source("parquet:hf://datasets/org/name@v2/**/*.parquet:content"))
    assert str(raised.value) == (
        "hf://datasets/org/name@v2/**/*.parquet: no network; on a machine with network, run `hf download org/name "
        "--repo-type dataset --revision v2 --include '*.parquet' --local-dir name`, copy the folder here, and give "
        "name/**/*.parquet instead of the URL"
    )
    with pytest.raises(RemoteError, match=r"cannot be listed .*unreachable.*; check with "):
        source_files(parse_source("text:memory://a/*.txt"))


def test_listing_command_of_a_data_set_is_its_page():
    page = "https://huggingface.co/datasets/org/name/tree"
    assert remote.listing_command("hf://datasets/org/name/*.parquet") == f"{page}/main"
    assert remote.listing_command("hf://datasets/org/name@v2/*.parquet") == f"{page}/v2"


def test_folder_in_object_storage_is_a_source():
    for name in ("a.txt", "deep/b.txt", "c.png"):
        (RemotePath("memory://folder-source") / name).write_bytes(b"One.")
    paths = [file.path for file in source_files(parse_source("text:memory://folder-source/"))]
    assert paths == ["memory:///folder-source/a.txt", "memory:///folder-source/deep/b.txt"]
