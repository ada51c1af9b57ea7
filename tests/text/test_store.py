"""The token store: documents are read back across shards, and damage to any file is named."""

import hashlib
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_documents import write_store

from bertjax.text.store import writer
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import BLOCK_BYTES, content_fingerprint, json_sha256, token_dtype
from bertjax.text.store.verify import check_store
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

TOKENS = [*SPECIAL_TOKENS, *(f"t{number}" for number in range(995))]
WORDPIECE = WordPiece(TOKENS, TextRules(True, False))


def generated(documents, seed=0):
    draw = np.random.default_rng(seed)
    return [
        [draw.integers(5, 1000, draw.integers(1, 9)).tolist() for _ in range(draw.integers(1, 6))]
        for _ in range(documents)
    ]


@pytest.fixture
def large(tmp_path):
    """A store with two full blocks of tokens and a third."""
    document = [[token % 995 + 5 for token in range(400)]] * 10
    return write_store(tmp_path / "store", {"train": [document] * 300, "held_out": [document] * 2}, WORDPIECE)


def read(store, split):
    """Read the documents of a split through the public interface."""
    view = store.split(split)
    ids = view.tokens(view.sentence_offsets[:-1], np.diff(view.sentence_offsets)).tolist()
    sentences = [ids[a:b] for a, b in zip(view.sentence_offsets[:-1], view.sentence_offsets[1:], strict=True)]
    return [sentences[a:b] for a, b in zip(view.document_offsets[:-1], view.document_offsets[1:], strict=True)]


@pytest.mark.parametrize("per_shard", [None, 1, 7, 100])
def test_written_store_is_read_back(tmp_path, per_shard):
    train, held_out = generated(40), generated(3, seed=1)
    path = write_store(tmp_path / "s", {"train": train, "held_out": held_out}, WORDPIECE, documents_per_shard=per_shard)
    store = TokenStore.open(path)
    assert (read(store, "train"), read(store, "held_out")) == (train, held_out)
    view = store.split("train")
    sentences = [sentence for document in train for sentence in document]
    assert (view.num_documents, view.num_sentences) == (40, len(sentences))
    assert view.num_tokens == sum(map(len, sentences))
    assert view.document_offsets.dtype == view.sentence_offsets.dtype == np.int64
    store.verify()


def test_source_without_documents_in_a_split_is_counted(tmp_path):
    """Also counts the last source, whose documents may all be held out, or without tokens."""
    homes = {"train": [0], "held_out": [1]}
    provenance = {"shard_sources": homes, "sources": [{"kind": "text", "files": []}] * 3}
    documents = {"train": generated(4), "held_out": generated(2)}
    store = TokenStore.open(write_store(tmp_path / "s", documents, WORDPIECE, provenance=provenance))
    for split, edges in (("train", [0, 4, 4, 4]), ("held_out", [0, 0, 2, 2])):
        assert store.split(split).num_sources == 3
        assert store.split(split).source_edges.tolist() == edges


def test_manifest_records_tokenizer_and_counts(tmp_path):
    path = write_store(tmp_path / "s", {"train": generated(4)}, WORDPIECE, provenance={"from": "here"})
    store = TokenStore.open(path)
    assert store.vocab_size == 1000
    assert store.special == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert store.manifest["tokenizer"]["fingerprint"] == WORDPIECE.fingerprint == store.tokenizer().fingerprint
    assert store.manifest["provenance"]["from"] == "here"
    view = store.split("train")
    ids = view.tokens(view.sentence_offsets[:-1], np.diff(view.sentence_offsets))
    assert view.token_counts.tolist() == np.bincount(ids, minlength=1000).tolist()
    assert store.manifest["splits"]["held_out"] == {"documents": 0, "sentences": 0, "tokens": 0, "shards": []}
    assert store.split("held_out").num_tokens == 0
    assert store.split("held_out").document_offsets.tolist() == [0]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A store of 8 shards."""
    path = tmp_path_factory.mktemp("sharded") / "store"
    return write_store(path, {"train": generated(30, seed=3)}, WORDPIECE, documents_per_shard=4)


@settings(max_examples=100)
@given(st.data())
def test_ranges_are_read_across_shards(sharded, data):
    view = TokenStore.open(sharded).split("train")
    flat = [token for document in generated(30, seed=3) for sentence in document for token in sentence]
    numbers = data.draw(st.lists(st.integers(0, view.num_sentences - 1), max_size=40))
    starts = view.sentence_offsets[:-1][numbers]
    lengths = np.diff(view.sentence_offsets)[numbers]
    lengths = np.array([data.draw(st.integers(0, int(n))) for n in lengths], np.int64)
    expected = [token for a, n in zip(starts, lengths, strict=True) for token in flat[a : a + n]]
    assert view.tokens(starts, lengths).tolist() == expected


def test_file_bytes_follow_the_format(tmp_path):
    # Format version 1. If a value changes, users' existing stores cannot be read any more.
    path = write_store(tmp_path / "s", {"train": [[[5, 6], [999]], [[7]]], "held_out": [[[8]]]}, WORDPIECE)
    assert (path / "train-00000.tokens").read_bytes() == bytes([5, 0, 6, 0, 231, 3, 7, 0])
    assert np.fromfile(path / "train-00000.sentences", "<i8").tolist() == [0, 2, 3, 4]
    assert np.fromfile(path / "train-00000.documents", "<i8").tolist() == [0, 2, 3]
    assert TokenStore.open(path).fingerprint == "ca3ddd7a538e76a78e16edc93ebdf3d54645814f676a5d34329774b0d99437ef"


def test_fingerprint_covers_the_content(tmp_path):
    def fingerprint(name, documents, tokenizer=WORDPIECE, provenance=None):
        return TokenStore.open(
            write_store(tmp_path / name, {"train": documents}, tokenizer, provenance=provenance)
        ).fingerprint

    first = fingerprint("a", [[[5, 6]]])
    assert fingerprint("b", [[[5, 6]]], provenance={"from": "elsewhere"}) == first
    assert fingerprint("c", [[[5, 7]]]) != first
    assert fingerprint("d", [[[5], [6]]]) != first
    assert fingerprint("e", [[[5, 6]]], WordPiece(TOKENS, TextRules(True, True))) != first


def test_ids_of_large_vocabularies_have_32_bits(tmp_path):
    assert (token_dtype(1 << 16), token_dtype((1 << 16) + 1)) == ("<u2", "<u4")
    large = WordPiece([*SPECIAL_TOKENS, *map(str, range(70_000))], TextRules(True, True))
    view = TokenStore.open(write_store(tmp_path / "s", {"train": [[[70_004, 5]]]}, large)).split("train")
    assert view.tokens(np.array([0]), np.array([2])).tolist() == [70_004, 5]


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_damaged_block_is_named_when_it_is_read(large):
    flip(large / "train-00000.tokens", BLOCK_BYTES + 12_345)
    view = TokenStore.open(large).split("train")
    per_block = BLOCK_BYTES // 2
    assert len(view.tokens(np.array([0, 2 * per_block]), np.array([per_block, 50]))) == per_block + 50
    message = (
        rf"train-00000\.tokens: the block at byte {BLOCK_BYTES} is damaged .*delete the store and prepare it again"
    )
    for start, length in [(per_block, 1), (per_block - 1, 2), (0, 2 * per_block + 1), (2 * per_block - 1, 1)]:
        with pytest.raises(ValueError, match=message):
            view.tokens(np.array([5, start]), np.array([3, length]))
    with pytest.raises(ValueError, match=message):
        TokenStore.open(large).verify()


@pytest.mark.parametrize("part", ["sentences", "documents"])
def test_damaged_offsets_are_named(large, part):
    flip(large / f"held_out-00000.{part}", 9)
    view = TokenStore.open(large).split("held_out")
    with pytest.raises(ValueError, match=rf"held_out-00000\.{part}: the block at byte 0 is damaged"):
        view.document_offsets, view.sentence_offsets  # noqa: B018


def test_every_flipped_bit_is_detected(tmp_path):
    path = write_store(
        tmp_path / "s", {"train": generated(6), "held_out": generated(2)}, WORDPIECE, documents_per_shard=3
    )
    for file in sorted(path.glob("*-0*")):
        whole = file.read_bytes()
        for offset in range(0, len(whole), 7):
            flip(file, offset)
            with pytest.raises(ValueError, match=f"{file.name}: the block at byte 0 is damaged"):
                TokenStore.open(path).verify()
            file.write_bytes(whole)
    TokenStore.open(path).verify()
    flip(path / "train.counts", 9)
    with pytest.raises(ValueError, match=r"train\.counts: the block at byte 0 is damaged"):
        TokenStore.open(path).verify()


def test_missing_and_truncated_files_are_refused_at_once(large):
    tokens = large / "train-00000.tokens"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=rf"train-00000\.tokens has {len(whole) - 2} bytes instead of {len(whole)}"):
        TokenStore.open(large)
    tokens.unlink()
    with pytest.raises(ValueError, match=r"train-00000\.tokens is missing; delete the store and prepare it again"):
        TokenStore.open(large)


def test_changed_manifest_is_refused(large):
    manifest = json.loads((large / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["documents"] -= 1
    (large / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged; delete the store and prepare it again"):
        TokenStore.open(large)
    manifest["splits"]["train"]["shards"][0]["documents"] += 1
    (large / "manifest.json").write_text(json.dumps(manifest | {"provenance": ["x"]}))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        TokenStore.open(large)
    (large / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        TokenStore.open(large)
    (large / "manifest.json").write_text(json.dumps({"format_version": 3}))
    with pytest.raises(ValueError, match=r"format version 3; this program reads up to 2; prepare it again"):
        TokenStore.open(large)


def test_other_folders_are_not_stores(tmp_path):
    with pytest.raises(ValueError, match=r"no manifest\.json in it; make a store with `bertjax prepare`"):
        TokenStore.open(tmp_path)


def test_another_vocabulary_is_refused(large):
    (large / "vocab.txt").write_bytes(WordPiece([*TOKENS[:-1], "other"], TextRules(True, False)).files["vocab.txt"])
    with pytest.raises(ValueError, match=r"its vocabulary differs from the one it was made with"):
        TokenStore.open(large).tokenizer()


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1), (10**9, 1), (1_199_999, 2)])
def test_ranges_outside_are_refused(large, start, length):
    view = TokenStore.open(large).split("train")
    with pytest.raises(ValueError, match=rf"token range 1: start {start}, length {length} is not inside one shard"):
        view.tokens(np.array([0, start]), np.array([1, length]))


def test_range_over_the_end_of_a_shard_is_refused(tmp_path):
    documents = {"train": [[[5, 6, 7]], [[8, 9]]]}
    view = TokenStore.open(write_store(tmp_path / "s", documents, WORDPIECE, documents_per_shard=1)).split("train")
    with pytest.raises(ValueError, match="not inside one shard"):
        view.tokens(np.array([2]), np.array([2]))


def test_unknown_split_is_refused(large):
    with pytest.raises(ValueError, match=r"no split 'test'; it has train, held_out"):
        TokenStore.open(large).split("test")


WRONG = [None, True, -1, 7, 0.5, "../x", [[1]], {"a": 1}, "\ud800", 10**40]


def test_forged_manifest_value_is_read_or_named(tmp_path):
    """Changes each value of a manifest and updates its fingerprints to match."""
    path = write_store(tmp_path / "s", {"train": generated(4), "held_out": generated(2)}, WORDPIECE)
    file, whole = path / "manifest.json", json.loads((path / "manifest.json").read_text())
    documents, refused = read(TokenStore.open(path), "train"), 0

    def change(holder, key):
        nonlocal refused
        before = holder[key]
        for value in WRONG:
            holder[key] = value
            forged = dict(whole)
            if key != "fingerprint" and isinstance(whole.get("splits"), dict):
                forged["provenance_sha256"] = json_sha256(whole["provenance"])
                forged["fingerprint"] = content_fingerprint(forged)
            file.write_text(json.dumps(forged))
            try:
                store = TokenStore.open(path)
                store.verify()
                assert read(store, "train") == documents
            except ValueError as error:
                refused += 1
                assert str(path) in str(error) and "; " in str(error), error
        holder[key] = before
        for inner in before if isinstance(before, dict) else range(len(before)) if isinstance(before, list) else ():
            change(before, inner)

    for key in list(whole):
        change(whole, key)
    assert refused > 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["provenance"].update(inputs="others"), "provenance does not match provenance_sha256"),
        (
            lambda m: m.update(provenance_sha257=m.pop("provenance_sha256")),
            "provenance_sha257 is not a key of a manifest",
        ),
        (lambda m: m["splits"]["train"].update(tokens=1), "its fingerprint does not match its content"),
    ],
)
def test_changed_manifest_value_is_named(tmp_path, change, message):
    path = write_store(tmp_path / "s", {"train": generated(4)}, WORDPIECE, provenance={"inputs": "ours"})
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"{message}; manifest.json is damaged; delete the store and prepare it again"):
        TokenStore.open(path)


def test_digests_of_large_files_are_beside_them(large, tmp_path, monkeypatch):
    """The content stays the same, and the manifest is as short as a small store's."""
    monkeypatch.setattr(writer, "MOST_IN_MANIFEST", 1)
    document = [[token % 995 + 5 for token in range(400)]] * 10
    path = write_store(tmp_path / "apart", {"train": [document] * 300, "held_out": [document] * 2}, WORDPIECE)
    tokens, digests = path / "train-00000.tokens", path / "train-00000.tokens.blocks"
    assert digests.read_bytes() == b"".join(
        hashlib.sha256(tokens.read_bytes()[at : at + BLOCK_BYTES]).digest()
        for at in range(0, 3 * BLOCK_BYTES, BLOCK_BYTES)
    )
    store = TokenStore.open(path)
    assert store.manifest["format_version"] == 2
    assert "blocks" not in store.manifest["splits"]["train"]["shards"][0]["files"]["tokens"]
    assert read(store, "train") == read(TokenStore.open(large), "train")
    assert not list(check_store(path))
    flip(tokens, BLOCK_BYTES)
    assert list(check_store(path)) == [
        f"{tokens}: the block at byte {BLOCK_BYTES:,} differs from the one that was written"
    ]
    with pytest.raises(ValueError, match=rf"train-00000\.tokens: the block at byte {BLOCK_BYTES} is damaged"):
        TokenStore.open(path).verify()
    flip(digests, 0)
    with pytest.raises(ValueError, match=r"train-00000\.tokens\.blocks: the block at byte 0 is damaged"):
        TokenStore.open(path).verify()
    digests.write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-00000\.tokens\.blocks has 0 bytes instead of 96"):
        TokenStore.open(path).verify()


def test_mapped_files_are_not_open(large):
    store = TokenStore.open(large)
    store.verify()
    open_files = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    assert not [path for path in open_files if path.startswith(str(large))]
