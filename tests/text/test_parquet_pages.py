"""The sizes of a Parquet file's pages are told before one is decompressed; what is too large is refused in little."""

from __future__ import annotations

import random
from pathlib import Path

import fsspec
import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import parquet, parquet_pages
from bertjax.text.sources.parquet_pages import _Compact, largest_pages
from bertjax.text.sources.source import SourceFile

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"{number} " + "word " * (number % 50) for number in range(500)]


def column(values: list[str]) -> object:
    return pa.table({"id": range(len(values)), "text": pa.array(values, pa.string())})


def read(path: Path) -> int:
    return sum(1 for _ in parquet.read(SourceFile("parquet", str(path)), ReadCounts()))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_pages_have_together_what_the_footer_says(tmp_path: Path, version: str, compression: str) -> None:
    path = tmp_path / "a.parquet"
    written = {"compression": compression, "data_page_version": version, "row_group_size": 200}
    pq.write_table(column(TEXTS), path, use_dictionary=False, data_page_size=10**9, **written)
    metadata = pq.ParquetFile(path).metadata
    sums = [metadata.row_group(number).column(1).total_uncompressed_size for number in range(metadata.num_row_groups)]
    pages = largest_pages(str(path), ["text"])
    # One page to a group; the footer counts the header of the page too, and has the size of each text in 4 bytes.
    texts = max(sum(4 + len(text) for text in TEXTS[start : start + 200]) for start in range(0, 500, 200))
    assert pages.dictionary == 0 and texts <= pages.largest < max(sums)
    pq.write_table(column(TEXTS[:3] * 900), path, **written)
    assert largest_pages(str(path), ["text"]).dictionary == sum(4 + len(text) for text in TEXTS[:3])
    assert largest_pages(str(path), ["none"]) == (0, 0)


def test_large_columns_of_remote_files_are_known_by_their_pages(tmp_path: Path, bucket: str, monkeypatch) -> None:
    """The sum of all pages, in the footer, is no bound for a row group of a million rows."""
    path, url = tmp_path / "a.parquet", f"{bucket}/a.parquet"
    pq.write_table(column(TEXTS[:3] * 900), path, data_page_size=1024)
    with fsspec.open(url, "wb") as file:
        file.write(path.read_bytes())
    pages, sums = largest_pages(str(path), ["text"]), largest_pages(url, ["text"])
    assert sums.largest == sums.dictionary > pages.dictionary > 0
    monkeypatch.setattr(parquet_pages, "_SMALL_SUM", 0)
    assert largest_pages(url, ["text"]) == pages


def test_a_dictionary_that_expands_is_refused_before_it_is_decompressed(tmp_path: Path, monkeypatch) -> None:
    size = 48 << 20  # the bounds are eight times as large in use
    monkeypatch.setattr(parquet, "_EXPANDED_BYTES", 16 << 20)
    monkeypatch.setattr(parquet, "MOST_PAGE_BYTES", 32 << 20)
    dictionary, plain = tmp_path / "dictionary.parquet", tmp_path / "plain.parquet"
    entry = pa.DictionaryArray.from_arrays(pa.array([0] * 8, pa.int32()), pa.array(["x" * size]))
    pq.write_table(pa.table({"text": entry}), dictionary, store_schema=False)
    pq.write_table(column(["x" * size]), plain, use_dictionary=False)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ValueError, match=r"dictionary\.parquet: a dictionary of 48 MiB, and at most 16 MiB"):
            read(dictionary)
        with pytest.raises(ValueError, match=r"plain\.parquet: a page of 48 MiB, and at most 32 MiB"):
            read(plain)
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 4 << 20


def test_rows_whose_values_are_copies_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch) -> None:
    path, rows = tmp_path / "a.parquet", []
    entry = pa.DictionaryArray.from_arrays(pa.array([0] * 12, pa.int32()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"text": entry}), path, store_schema=False)
    monkeypatch.setattr(parquet, "_EXPANDED_BYTES", 3 << 20)
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda file, size, **given: rows.append(size) or batches(file, size, **given)
    )
    assert len(list(parquet.records(str(path), ["text"]))) == 12
    assert rows == [2]  # with its length, the entry is a little over 1 MiB


def test_no_damage_is_anything_but_read_or_refused(tmp_path: Path) -> None:
    path, rng, refused = tmp_path / "a.parquet", random.Random(0), 0
    pq.write_table(column(TEXTS), path, row_group_size=100)
    whole = path.read_bytes()
    places = [*range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole)), *range(0, 200)]
    for _ in range(500):
        content = bytearray(whole)
        content[rng.choice(places)] = rng.randrange(256)
        path.write_bytes(content)
        try:
            largest_pages(str(path), ["text"])
        except ValueError:
            refused += 1
    assert refused > 50


def test_lists_in_lists_in_the_head_of_a_page_end_early() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        _Compact(b"\x19" * 10_000).struct()
