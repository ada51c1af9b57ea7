"""TFRecord files: records are read by number, and every damaged byte is detected."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from google_records import write_records

from bertjax.config import DataConfig
from bertjax.input.tfrecords.record_files import RecordFile, open_record_files, read_record_batches
from bertjax.storage.progress import no_progress
from bertjax.text.corpus import Corpus
from bertjax.text.sources.registry import parse_sources

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow has no wheel here")

RECORDS = [np.random.default_rng(size).bytes(size) for size in (300, 1, 700, 64)]
ENDS = np.cumsum([16 + len(record) for record in RECORDS])


def opened(folder: Path) -> RecordFile:
    """Write and index a file of `RECORDS`."""
    write_records([folder / "a.tfrecord"], RECORDS)
    sources = parse_sources((f"tfrecord:{folder}/a.tfrecord",))
    data = DataConfig(root=str(folder / "data"), workers=1)
    (file,) = open_record_files(Corpus.from_sources(sources, data), data, no_progress)
    return file


def test_records_are_read_in_any_order(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.edges.tolist() == [0, *ENDS.tolist()]
    order = np.array([2, 0, 3, 1, 2])
    assert file.read(order) == [RECORDS[number] for number in order.tolist()]


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=[pytest.mark.long] * (number != 1)) for number in range(len(RECORDS))]
)
def test_flipped_bytes_are_detected(tmp_path: Path, number: int) -> None:
    path, file = tmp_path / "a.tfrecord", opened(tmp_path)
    content, end = path.read_bytes(), int(ENDS[number])
    begin = end - 16 - len(RECORDS[number])
    for place in [*range(begin, begin + 13), *range(end - 5, end)]:
        flipped = content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=rf"^file, record {number} at byte {begin}: "):
            list(read_record_batches(str(path), "file"))
        if begin + 12 <= place < end - 4:
            with pytest.raises(ValueError, match=rf"record {number}: damaged, or changed"):
                file.read(np.arange(len(RECORDS)))
