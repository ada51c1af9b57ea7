"""TFRecord files as TensorFlow writes them: every record is found, every flipped byte noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google_records import write_records

from bertjax.input.tfrecords.files import masked_crc32c, scan

pytest.importorskip("tensorflow", reason="TensorFlow has no wheel here")

RECORDS = [np.random.default_rng(size).bytes(size) for size in (300, 1, 700, 64)]


def written(folder: Path) -> bytes:
    """The bytes of a file of `RECORDS`."""
    write_records([folder / "a.tfrecord"], RECORDS)
    return (folder / "a.tfrecord").read_bytes()


def test_checksums_are_crc32c() -> None:
    rng = np.random.default_rng(0)
    parts = [b"123456789", b"\0", *(rng.bytes(size) for size in (1, 4, 5, 64, 1000))]
    crc = 0xE3069283  # of the first, in every table of CRCs
    assert masked_crc32c(parts)[0] == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc32c(parts).tolist() == [int(masked_crc32c([part])[0]) for part in parts]


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_records_are_found_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    content = written(tmp_path)
    pieces = [content[start : start + piece] for start in range(0, len(content), piece)]
    found = list(scan(pieces, "file"))
    assert [record for _, records in found for record in records] == RECORDS
    begins = [begin for edges, _ in found for begin in edges[:-1].tolist()]
    assert [content[begin + 12 :][: len(record)] for begin, record in zip(begins, RECORDS, strict=True)] == RECORDS


@pytest.mark.parametrize("piece", [200, 1 << 20])
def test_every_flipped_byte_is_noticed(tmp_path: Path, piece: int) -> None:
    content = written(tmp_path)
    ends = np.cumsum([16 + len(record) for record in RECORDS])
    for place in range(len(content)):
        flipped = content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
        pieces = [flipped[start : start + piece] for start in range(0, len(flipped), piece)]
        number = np.searchsorted(ends, place, side="right")
        with pytest.raises(ValueError, match=rf"^file, record {number} at byte "):
            list(scan(pieces, "file"))
