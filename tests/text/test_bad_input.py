"""Hostile and broken text is counted, replaced or refused by rule, in bounded memory, and never crashes.

Damaged compressed data and bad JSON are in test_sources.py, truncated dumps in test_wikipedia.py, Parquet files in
test_parquet.py, missing data sets in test_tfds.py.
"""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from bertjax.config import DataConfig
from bertjax.storage import utf8
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.prepare import prepare
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(path, kind, counts=None):
    return [document.text for document in read_documents(SourceFile(kind, str(path)), counts)]


def refusal(path, kind):
    with pytest.raises(ValueError) as error:
        texts(path, kind)
    assert str(path) in str(error.value)
    return str(error.value)


def store_of(folder, *sources):
    """Make a store from some sources, with enough other documents for both splits."""
    folder.mkdir(exist_ok=True)
    vocab = write(folder / "vocab.txt", "\n".join([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)]))
    plain = write(folder / "plain.txt", "\n\n".join(f"it {letter}." for letter in LETTERS))
    data = DataConfig(
        sources=(*sources, f"lines:{plain}"), root=str(folder / "root"), vocab=str(vocab), held_out=0.3, workers=1
    )
    return TokenStore.open(prepare(data))


def tokens(store):
    return sum(store.split(split).num_tokens for split in SPLITS)


# invalid UTF-8

SENTENCE = b"caf\xe9 and words that are of the text. "
RECORD = {
    "text": lambda text: text + b"\n",
    "lines": lambda text: text + b"\n",
    "jsonl": lambda text: b'{"text": "' + text + b'"}\n',
    "wikiextractor": lambda text: b'<doc id="1" title="T">\n' + text + b"\n</doc>\n",
    "wikipedia": lambda text: (
        b"<mediawiki><page><title>T</title><revision><text>" + text + b"</text></revision></page></mediawiki>"
    ),
}


@pytest.mark.parametrize("kind", RECORD)
@pytest.mark.parametrize("bad", [b"\xe9", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xf8", b"\x80"], ids=bytes.hex)
def test_little_invalid_utf8_is_replaced_and_counted(tmp_path, kind, bad):
    words = b"words of a text " * 100
    content = RECORD[kind](b"caf" + bad + b" " + words + bad * 2 + b"end \xef\xbf\xbd")
    counts = ReadCounts()
    (document,) = texts(write(tmp_path / "a", content), kind, counts)
    expected = bad.decode(errors="replace")
    assert document == f"caf{expected} {words.decode()}{expected * 2}end \ufffd"
    assert counts.replaced_characters == 3 * len(expected)  # U+FFFD in the file itself does not count


@pytest.mark.parametrize("kind", RECORD)
def test_other_encodings_are_refused_with_an_offset(tmp_path, kind):
    path = write(tmp_path / "a", RECORD[kind]("Größe über Länge. ".encode("latin-1") * 50))
    start = RECORD[kind](b"").index(b"</text") if kind == "wikipedia" else RECORD[kind](b"|").index(b"|")
    message = refusal(path, kind)
    assert f"a: not UTF-8, byte 0xf6 at offset {start + 2} is invalid start byte, one of 200 among " in message
    assert "it is likely cp1252; convert the file (iconv -f cp1252 -t utf-8)" in message


def test_share_of_replaced_characters_is_limited(tmp_path):
    counts = ReadCounts()
    path = write(tmp_path / "a", b"\xe9" + b"x" * 99)
    assert len(texts(path, "text", counts)) == 1 == counts.replaced_characters
    assert "one of 1 among 99 characters" in refusal(write(path, b"\xe9" + b"x" * 98), "text")
    assert "at offset 4 is" in refusal(write(path, b"\xef\xbb\xbfx\xe9y"), "lines")


def test_large_binary_file_is_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(utf8, "JUDGED_EARLY", 1 << 20)
    counts = ReadCounts()
    path = write(tmp_path / "a", (b"\xe9" * 9 + b"\n") * (1 << 20))
    with pytest.raises(ValueError, match="not UTF-8, byte 0xe9 at offset 0"):
        texts(path, "lines", counts)
    assert counts.replaced_characters <= 1 << 20
    # The same number of bytes is a small share of a longer text.
    write(path, b"\xe9" * 9000 + b"\n" + b"words\n" * (1 << 18))
    assert sum(map(len, texts(path, "lines"))) > 1 << 20


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_replacement_depends_only_on_the_text(tmp_path, suffix):
    text = SENTENCE + b"\xe9" * 2000 + b"x" * (5 << 20) + b"\n" + SENTENCE * 1000
    counts = ReadCounts()
    documents = texts(write(tmp_path / f"a{suffix}", COMPRESS.get(suffix, bytes)(text)), "lines", counts)
    assert "".join(documents).count("\ufffd") == counts.replaced_characters == 3001


def test_prepare_reports_replaced_characters(tmp_path):
    path = write(tmp_path / "a.txt", SENTENCE * 5 + b"\0" + b"more words. " * 100)
    store = store_of(tmp_path / "store", f"text:{path}")
    assert [counts["replaced_characters"] for counts in store.manifest["provenance"]["reading"]] == [6, 0]


# NUL and control characters


@pytest.mark.parametrize("kind", ["text", "lines", "wikiextractor", "wikipedia"])
def test_nul_bytes_are_replaced_if_they_are_few(tmp_path, kind):
    counts = ReadCounts()
    content = RECORD[kind](b"one\0two " + b"words " * 50)
    (document,) = texts(write(tmp_path / "a", content), kind, counts)
    assert document.startswith("one\ufffdtwo words") and counts.replaced_characters == 1
    utf16 = RECORD[kind](b"x").decode().replace("x", "Text. " * 99).encode("utf-16-le")
    assert "a: not a text file, it has a NUL byte at offset 1, one of " in refusal(write(tmp_path / "a", utf16), "text")


@pytest.mark.parametrize("kind", ["text", "lines", "jsonl"])
def test_control_characters_give_no_tokens(tmp_path, kind):
    # Characters that end lines or paragraphs in some formats count as spaces here.
    separators = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
    controls = [chr(n) for n in (*range(32), *range(127, 160)) if chr(n) not in separators]
    spoiled, plain = (
        ". ".join(f"some{sign}words of{between}it" for sign in signs for between in betweens) + "."
        for signs, betweens in (
            (controls, separators.replace("\n", "").replace("\r", "")),
            ([""] * len(controls), " " * 8),
        )
    )
    stores = []
    for name, text in (("spoiled", spoiled), ("plain", plain)):
        content = json.dumps({"text": text}) if kind == "jsonl" else text + " and plain words" * 300
        path = write(tmp_path / f"{name}.txt", content)
        stores.append(tokens(store_of(tmp_path / name, f"{kind}:{path}")))
    assert stores[0] == stores[1] > 3000


# long lines


@pytest.mark.parametrize("suffix", COMPRESS)
def test_endless_line_of_records_is_refused_in_bounded_memory(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", COMPRESS[suffix](b"a" * (8 << 20)) * 8)
    for kind, message in {
        "jsonl": "line 1: a record of more than 32 MiB; is it JSON Lines?",
        "wikipedia": "line 1: a line of more than 32 MiB; is it a MediaWiki XML dump",
    }.items():
        tracemalloc.start()
        refusal_text = refusal(path, kind)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert message in refusal_text
        assert peak < 180 << 20


# giant lines, words and characters

PEAK = """
import sys
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
def most():  # getrusage would include the parent's memory
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = most()
count = 0
for document in read_documents(SourceFile("lines", sys.argv[1])):
    count += sum(len(sentence.split()) for sentence in document.sentences())
print(count, (most() - before) >> 10)
"""


@pytest.mark.run
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
@pytest.mark.parametrize("size", [50 << 20, pytest.param(1 << 30, marks=pytest.mark.long)])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_line_of_a_gigabyte_runs_in_bounded_memory(tmp_path, size, suffix):
    member = COMPRESS[suffix](b" ".join(b"word%d" % (n % 7919) for n in range(110_000))[: 1 << 20])
    path = tmp_path / f"a{suffix}"
    with open(path, "wb") as stream:
        for _ in range(size >> 20):
            stream.write(member)
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    words, peak = map(int, done.stdout.split())
    assert words > size / 11 and peak < 64  # MiB


GIANTS = {
    "a word of 10 MB": "x" * (10 << 20),
    "marks on one letter": "e" + "\u0301" * (1 << 20),
    "marks on each letter": "a\u0323\u0301\u0327" * (1 << 18),
    "joiners": "\u200d" * (1 << 20),
}


# Each giant with one kind of source, and each kind at least once.
@pytest.mark.parametrize(("giant", "kind"), list(zip(GIANTS, ("text", "lines", "jsonl", "text"), strict=True)))
@pytest.mark.filterwarnings("ignore:.*of the tokens are .UNK.:UserWarning")
def test_giant_words_become_few_tokens(tmp_path, kind, giant):
    text = f"it was. {GIANTS[giant]} and so on."
    path = write(tmp_path / "a.txt", json.dumps({"text": text}) if kind == "jsonl" else text)
    store = store_of(tmp_path / "store", f"{kind}:{path}")
    plain = tokens(store_of(tmp_path / "plain"))
    # Sentences are cut at 10,000 characters, and a word of more than 100 is one [UNK].
    assert len("itwas.andsoon.") <= tokens(store) - plain <= len("itwas.andsoon.") + len(GIANTS[giant]) // 5000 + 10
    assert store.manifest["provenance"]["reading"][0]["documents"] >= 1
