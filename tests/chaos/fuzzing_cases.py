"""Three thousand mutated files through every reader, and those that once were not refused cleanly."""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fuzzing
import fuzzing_mutations as change
import fuzzing_seeds as seeds
import numpy as np
import pytest
from fuzzing import Trial
from fuzzing_readers import READERS, Reader

LEAST = 60  # inputs of a reader
pytestmark = pytest.mark.filterwarnings("ignore")


def trial_of(reader: Reader, folder: Path) -> Trial:
    if reader.missing:
        pytest.skip(f"needs {reader.missing} to read {reader.file}")
    return Trial(reader, folder / "input", folder / "findings")


@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused_cleanly(name: str, tmp_path: Path) -> None:
    trial = trial_of(READERS[name], tmp_path)
    tally = trial.run(range(LEAST * trial.reader.rate), seed=0)
    assert not tally.findings
    assert tally.refused or name == "SHA256SUMS"  # what is wrong there is no error but a finding of `run verify`


def test_there_are_three_thousand() -> None:
    assert sum(LEAST * reader.rate for reader in READERS.values()) >= 3_000


def config_with(family: str, **values: object) -> bytes:
    (content,) = (one for one in seeds.configs() if json.loads(one)["model_type"] == family)
    return json.dumps(json.loads(content) | values).encode()


def piece(content: bytes) -> bytes:
    """A SentencePiece model with one more piece, whose text has these bytes."""
    field = b"\x0a" + change._varint(len(content)) + content
    return seeds.tokenizer("unigram", "spiece.model")[0] + b"\x0a" + change._varint(len(field)) + field


def with_table(content: bytes) -> bytes:
    """A SentencePiece model with another table of its normaliser, which proto2 merges with the one before."""
    field = b"\x12" + change._varint(len(content)) + content
    return seeds.tokenizer("unigram", "spiece.model")[0] + b"\x1a" + change._varint(len(field)) + field


def leading_outside() -> bytes:
    """A table of a normaliser whose trie has 256 units, and a root with children beyond them."""
    return struct.pack("<257I", 1024, 300 << 10, *[0] * 255) + b"a\0"


def with_surrogate() -> bytes:
    """A tokenizer.json with a token that is no Unicode."""
    document = json.loads(seeds.tokenizer("wordpiece", "tokenizer.json")[0])
    vocabulary = document["model"]["vocab"]
    vocabulary["\ud800"] = vocabulary.pop(max(vocabulary, key=vocabulary.get))
    return json.dumps(document).encode()


def forged_store() -> bytes:
    files = dict(seeds._store_files())
    files["train-00000.sentences"] = struct.pack("<4q", 0, 1 << 40, 1, 6)
    return seeds._archived(files)


def store_without_rules() -> bytes:
    """A token store whose manifest does not say how text is normalised, with the right fingerprint."""
    manifest = json.loads(seeds.store_manifest()[0])
    del manifest["tokenizer"]["lowercase"]
    manifest["fingerprint"] = change.content_fingerprint(manifest)
    return json.dumps(manifest).encode()


def saved(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


# What fuzzing found, by the reader that did not refuse it cleanly.
FOUND: list[tuple[str, Callable[[], bytes]]] = [
    ("config.json", lambda: config_with("longformer", attention_window=[[512]])),
    ("config.json", lambda: config_with("longformer", attention_window={"a": 1})),
    ("config.json", lambda: config_with("deberta", pos_att_type=["p2c", 3])),
    ("config.json", lambda: config_with("deberta", pos_att_type=7)),
    ("SentencePiece", lambda: piece(b"\xff\xfe")),
    ("SentencePiece", lambda: piece(b"ab" * (1 << 14))),
    ("SentencePiece", lambda: with_table(b"\x01\x02")),
    ("SentencePiece", lambda: with_table(leading_outside())),
    ("tokenizer.json WordPiece", with_surrogate),
    ("judgements", lambda: b"q1\td1\t" + b"1" * 5000 + b"\n"),
    ("judgements", lambda: b"q1\td1\t\x1f1\n"),
    ("word vectors", lambda: b"3 " + b"9" * 5000 + b"\n"),
    ("JSON Lines", lambda: json.dumps({"text": "a", "spans": [["x" * 100_000]]}).encode() + b"\n"),
    ("table .tsv", lambda: b"9" * 100_000 + b"\ta\nb\tc\n"),
    ("run config.json", lambda: json.dumps({"name": ["x" * 100_000]}).encode()),
    ("store manifest", store_without_rules),
    ("store arrays", forged_store),
    ("word vectors", lambda: b"the " + b"1" * (1 << 21)),
    ("TFRecord", lambda: change._framed(b"\x0a\x06\x0a\x04\x0a\x02\xff\xfe")),
]


@pytest.mark.parametrize("number", range(len(FOUND)))
def test_what_was_found_is_refused_cleanly(number: int, tmp_path: Path) -> None:
    name, make = FOUND[number]
    trial = trial_of(READERS[name], tmp_path)
    trial.one(make())
    assert not trial.tally.findings and trial.tally.refused == 1


def outside(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_text("x")


def careless(path: Path) -> None:
    pickle.loads(pickle.dumps(os.getcwd))


def swallowing(path: Path) -> None:
    try:
        subprocess.run(["true"])
    except BaseException:
        raise ValueError(f"{path}: refused") from None


def running(path: Path) -> None:
    exec(compile(path.read_text(), str(path), "exec"))


def slow(path: Path) -> None:
    until = time.process_time() + 5
    while time.process_time() < until:
        pass


def hungry(path: Path) -> None:
    with mmap.mmap(-1, 1 << 26) as fresh:  # of the heap, what others have freed would not count
        fresh[:: 1 << 12] = b"x" * (1 << 14)


def unnamed(path: Path) -> None:
    raise ValueError("something is wrong")


def of_a_library(path: Path) -> None:
    json.loads(path.read_text())


def forging(path: Path) -> None:
    raise KeyError(f"{path}")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fuzzing, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(fuzzing, "MOST_BYTES", 1 << 25)
    yield


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (outside, "forbidden: opens"),
        (careless, "forbidden: pickle.find_class"),
        (swallowing, "forbidden: "),
        (running, "forbidden: runs code"),
        (slow, "TooSlow"),
        (hungry, "too much memory"),
        (unnamed, "it does not name the file"),
        (of_a_library, "JSONDecodeError"),
        (forging, "KeyError"),
    ],
)
def test_the_watch_sees_what_no_reader_may_do(read: Callable, named: str, limits: None, tmp_path: Path) -> None:
    calls = []

    def once_trusted(path: Path) -> object:
        calls.append(path)
        return None if len(calls) <= 1 + fuzzing._WARMING else read(path)  # the seed and the inputs of the warm-up

    trial = Trial(
        Reader("planted", "a.txt", once_trusted, lambda: [b"x = ("[:3] + b" 1"]), tmp_path / "in", tmp_path / "out"
    )
    trial.one(b"nothing")
    assert len(trial.tally.findings) == 1 and named in next(iter(trial.tally.findings)), trial.tally.findings
