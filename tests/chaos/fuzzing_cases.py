"""Run three thousand mutated files through the readers, and the inputs that once were not refused cleanly."""

from __future__ import annotations

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
import pytest
from fuzzing import Trial
from fuzzing_readers import READERS, Reader

LEAST = 60  # inputs per reader
pytestmark = pytest.mark.filterwarnings("ignore")


def make_trial(reader: Reader, folder: Path) -> Trial:
    if reader.missing:
        pytest.skip(f"needs {reader.missing} to read {reader.file}")
    return Trial(reader, folder / "input", folder / "findings")


@pytest.mark.parametrize("name", READERS)
def test_reader_reads_or_refuses_mutated_files_cleanly(name: str, tmp_path: Path) -> None:
    trial = make_trial(READERS[name], tmp_path)
    tally = trial.run(range(LEAST * trial.reader.rate), seed=0)
    assert not tally.findings
    assert tally.refused or name == "SHA256SUMS"  # damage there is a finding of `run verify`, not an error


def test_readers_get_three_thousand_inputs() -> None:
    assert sum(LEAST * reader.rate for reader in READERS.values()) >= 3_000


def config_with(family: str, **values: object) -> bytes:
    (content,) = (one for one in seeds.configs() if json.loads(one)["model_type"] == family)
    return json.dumps(json.loads(content) | values).encode()


def piece(content: bytes) -> bytes:
    """A SentencePiece model with an additional piece, whose text has these bytes."""
    field = b"\x0a" + change._varint(len(content)) + content
    return seeds.tokenizer("unigram", "spiece.model")[0] + b"\x0a" + change._varint(len(field)) + field


def with_table(content: bytes) -> bytes:
    """A SentencePiece model with a second normaliser table, which proto2 merges with the first."""
    field = b"\x12" + change._varint(len(content)) + content
    return seeds.tokenizer("unigram", "spiece.model")[0] + b"\x1a" + change._varint(len(field)) + field


def leading_outside() -> bytes:
    """A normaliser table whose trie has 256 units, and whose root has children beyond them."""
    return struct.pack("<257I", 1024, 300 << 10, *[0] * 255) + b"a\0"


def with_surrogate() -> bytes:
    """A tokenizer.json with a token that is not valid Unicode."""
    document = json.loads(seeds.tokenizer("wordpiece", "tokenizer.json")[0])
    vocabulary = document["model"]["vocab"]
    vocabulary["\ud800"] = vocabulary.pop(max(vocabulary, key=vocabulary.get))
    return json.dumps(document).encode()


def forged_store() -> bytes:
    files = dict(seeds._store_files())
    files["train-00000.sentences"] = struct.pack("<4q", 0, 1 << 40, 1, 6)
    return seeds._archived(files)


def store_without_rules() -> bytes:
    """A store manifest that lacks the normalisation rules, with a valid fingerprint."""
    manifest = json.loads(seeds.store_manifest()[0])
    del manifest["tokenizer"]["lowercase"]
    manifest["fingerprint"] = change.content_fingerprint(manifest)
    return json.dumps(manifest).encode()


# Inputs found by fuzzing, with the reader that did not refuse them cleanly.
REGRESSIONS: list[tuple[str, Callable[[], bytes]]] = [
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


@pytest.mark.parametrize("number", range(len(REGRESSIONS)))
def test_past_findings_are_refused_cleanly(number: int, tmp_path: Path) -> None:
    name, make = REGRESSIONS[number]
    trial = make_trial(READERS[name], tmp_path)
    trial.try_input(make())
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
    with mmap.mmap(-1, 1 << 26) as fresh:  # not from the heap, whose free memory would hide the growth
        fresh[:: 1 << 12] = b"x" * (1 << 14)


def unnamed(path: Path) -> None:
    raise ValueError("something is wrong")


def library_error(path: Path) -> None:
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
        (unnamed, "does not name the file"),
        (library_error, "JSONDecodeError"),
        (forging, "KeyError"),
    ],
)
def test_watch_reports_forbidden_actions(read: Callable, named: str, limits: None, tmp_path: Path) -> None:
    calls = []

    def misbehave_after_warm_up(path: Path) -> object:
        calls.append(path)
        return None if len(calls) <= 1 + fuzzing._WARMING else read(path)  # the seed and the inputs of the warm-up

    trial = Trial(
        Reader("planted", "a.txt", misbehave_after_warm_up, lambda: [b"x = ("[:3] + b" 1"]),
        tmp_path / "in",
        tmp_path / "out",
    )
    trial.try_input(b"nothing")
    assert len(trial.tally.findings) == 1 and named in next(iter(trial.tally.findings)), trial.tally.findings
