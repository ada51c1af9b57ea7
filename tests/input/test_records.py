"""Records of google-research/bert: rows are unchanged, each once per epoch; invalid records and configs are refused."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from google_records import Instance, features, make_instances, serialized, write_records, write_vocabulary

from bertjax.config import DataConfig
from bertjax.input.feed import open_feed
from bertjax.input.tfrecords import record_files
from bertjax.input.tfrecords.batches import RecordBatches
from bertjax.input.tfrecords.records import Records
from bertjax.input.training_data import open_training_data
from bertjax.storage.progress import no_progress
from bertjax.text.extended_vocabulary import extend_vocabulary
from bertjax.text.prepare import prepare as prepare_store
from bertjax.text.trained_vocabulary import prepare_vocabulary

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow has no wheel here")

LENGTH, MOST = 32, 5
BATCH_SIZE = 8
UNUSED = 3  # entries before the special tokens, so that all ids differ from those of the published vocabularies


def words(seed: int, documents: int = 60) -> list[list[list[str]]]:
    rng = random.Random(seed)
    sentence = lambda: [f"w{rng.randrange(300)}" for _ in range(rng.randint(3, 12))]  # noqa: E731
    return [[sentence() for _ in range(rng.randint(2, 9))] for _ in range(documents)]


class RecordCorpus:
    """Records, their features and the vocabulary of a small corpus."""

    def __init__(self, folder: Path) -> None:
        documents = words(0)
        self.folder = folder
        self.vocabulary = write_vocabulary(folder / "vocab.txt", documents, UNUSED)
        self.instances = make_instances(documents, self.vocabulary, LENGTH, MOST, seed=0)
        self.examples = [self.features(instance) for instance in self.instances]
        self.records = [serialized(example) for example in self.examples]

    def features(self, instance: Instance) -> dict[str, list]:
        return features(instance, self.vocabulary, LENGTH, MOST)

    def data(self, folder: Path, pattern: str = "*.tfrecord*", **changes) -> DataConfig:
        config = DataConfig(
            sources=(f"tfrecord:{folder}/{pattern}",),
            vocab=str(self.folder / "vocab.txt"),
            root=str(folder / "data"),
            sequence_length=LENGTH,
            max_predictions=MOST,
            held_out=0.1,
            workers=1,
        )
        return replace(config, **changes)

    def file(self, folder: Path, name: str = "a.tfrecord", records: list[bytes] | None = None) -> Path:
        write_records([folder / name], self.records[:40] if records is None else records)
        return folder / name


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> RecordCorpus:
    folder = tmp_path_factory.mktemp("records")
    corpus = RecordCorpus(folder)
    write_records([folder / name for name in ("a.tfrecord", "b.tfrecord", "c.tfrecord")], corpus.records)
    return corpus


@pytest.fixture(scope="module")
def opened(corpus: RecordCorpus) -> Records:
    return open_records(corpus.data(corpus.folder))


def open_records(*stages: DataConfig) -> Records:
    records = open_training_data(stages, no_progress)
    assert isinstance(records, Records)
    return records


def expected(example: dict[str, list]) -> dict[str, list]:
    """The row of a batch for a record's features."""
    return {
        "input_ids": example["input_ids"],
        "token_type_ids": example["segment_ids"],
        "sequence_ids": example["input_mask"],
        "mlm_positions": example["masked_lm_positions"],
        "mlm_labels": example["masked_lm_ids"],
        "mlm_weights": example["masked_lm_weights"],
        "cls_positions": [0],
        "pair_labels": example["next_sentence_labels"],
        "pair_weights": [1.0],
    }


def rows_in(batch: dict[str, np.ndarray]) -> list[str]:
    count = len(batch["input_ids"])
    return [repr({key: values[row].tolist() for key, values in batch.items()}) for row in range(count)]


def train_batches(records: Records, corpus: RecordCorpus, seed: int = 0) -> RecordBatches:
    return records.train(corpus.data(corpus.folder), seed)


def test_epoch_has_each_record_once_unchanged(corpus: RecordCorpus, opened: Records) -> None:
    batches = train_batches(opened, corpus)
    count = batches.rows_per_epoch
    (held_out,) = opened.held_out(corpus.data(corpus.folder), 7).values()
    assert 0 < held_out.rows_per_epoch < 0.2 * len(corpus.records)
    rest = rows_in(held_out.rows(np.arange(held_out.rows_per_epoch)))
    orders = [rows_in(batches.rows(np.arange(epoch * count, (epoch + 1) * count))) for epoch in range(2)]
    rows = [repr(expected(example)) for example in corpus.examples]
    for order in orders:
        assert Counter(order + rest) == Counter(rows)
    assert orders[0] != orders[1], "two epochs have the same order"
    assert orders[0] != [row for row in rows if row in set(orders[0])], "rows are in the order of the files"


def test_record_batches_match_their_spec(corpus: RecordCorpus, opened: Records) -> None:
    batches = train_batches(opened, corpus)
    for rows in (BATCH_SIZE, 0):
        batch = batches.batch(0, BATCH_SIZE, slice(rows))
        assert {key: (values.shape, values.dtype) for key, values in batch.items()} == batches.spec(rows)


def test_batches_are_consecutive_rows_and_seeds_differ(corpus: RecordCorpus, opened: Records) -> None:
    batches = train_batches(opened, corpus)
    rows = rows_in(batches.rows(np.arange(5 * BATCH_SIZE)))
    assert [row for step in range(5) for row in rows_in(batches.batch(step, BATCH_SIZE))] == rows
    assert rows_in(train_batches(opened, corpus, seed=1).batch(0, BATCH_SIZE)) != rows[:BATCH_SIZE]
    assert rows_in(train_batches(opened, corpus).batch(4, BATCH_SIZE)) == rows[4 * BATCH_SIZE :], "resumed by step"


OTHER_FEEDS = ((1, "threads"), (1, "tf.data"), (2, "threads"), (4, "tf.data"))


@pytest.mark.parametrize(
    ("hosts", "engine"),
    [(4, "threads"), (2, "tf.data"), *(pytest.param(*cell, marks=pytest.mark.long) for cell in OTHER_FEEDS)],
)
def test_hosts_threads_and_engines_give_the_same_bytes(
    corpus: RecordCorpus, opened: Records, engine: str, hosts: int
) -> None:
    stop = 2 * train_batches(opened, corpus).rows_per_epoch // BATCH_SIZE + 1  # beyond the end of an epoch
    alone = train_batches(opened, corpus)
    stream = [rows_in(alone.batch(step, BATCH_SIZE)) for step in range(stop)]
    share = BATCH_SIZE // hosts
    for start in (0, stop // 2, stop - 3):
        joined: list[list[str]] = [[] for _ in range(start, stop)]
        for host in range(hosts):
            options = {"global_batch_size": BATCH_SIZE, "threads": 1 + host, "engine": engine, "stop_step": stop}
            rows = slice(host * share, (host + 1) * share)
            with open_feed(train_batches(opened, corpus), start_step=start, rows=rows, **options) as feed:
                for whole, batch in zip(joined, feed, strict=True):
                    whole += rows_in(batch)
        assert joined == stream[start:]


def test_compressed_records_are_decompressed_once(
    corpus: RecordCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for folder, name in ((plain, "a.tfrecord"), (packed, "a.tfrecord.gz")):
        folder.mkdir()
        corpus.file(folder, name)
    assert (packed / "a.tfrecord.gz").read_bytes()[:2] == b"\x1f\x8b"
    both = [open_records(corpus.data(folder)).train(corpus.data(folder), 0) for folder in (plain, packed)]
    assert rows_in(both[0].batch(0, 20)) == rows_in(both[1].batch(0, 20))
    monkeypatch.setattr(record_files, "read_record_batches", None)  # fails if the index is rebuilt
    again = open_records(corpus.data(packed)).train(corpus.data(packed), 0)
    assert rows_in(again.batch(0, 20)) == rows_in(both[0].batch(0, 20))
    (copy,) = (packed / "data").glob("records-*/decompressed.tfrecord")
    assert copy.read_bytes() == (plain / "a.tfrecord").read_bytes()
    copy.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.tfrecord\.gz \(as .*decompressed\.tfrecord\), record \d+: damaged"):
        again.batch(0, 20)


def test_identical_files_are_both_read(corpus: RecordCorpus, tmp_path: Path) -> None:
    for name in ("a.tfrecord.gz", "b.tfrecord.gz"):
        (tmp_path / name).write_bytes(
            gzip.compress(corpus.file(corpus.folder, "some", corpus.records[:40]).read_bytes(), mtime=0)
        )
    batches = open_records(corpus.data(tmp_path)).train(corpus.data(tmp_path), 0)
    counts = Counter(rows_in(batches.rows(np.arange(batches.rows_per_epoch))))
    assert set(counts.values()) == {2} and len(counts) > 30


def test_fingerprint_depends_on_contents_not_names(corpus: RecordCorpus, tmp_path: Path) -> None:
    fingerprints = []
    for name, records in (("one", corpus.records[:40]), ("two", corpus.records[:40]), ("other", corpus.records[1:41])):
        (tmp_path / name).mkdir()
        corpus.file(tmp_path / name, f"{name}.tfrecord", records)
        fingerprints.append(open_records(corpus.data(tmp_path / name)).fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_held_out_records_depend_on_their_content(corpus: RecordCorpus, tmp_path: Path) -> None:
    """Only on it; and a larger share holds out a superset."""
    corpus.file(tmp_path, records=corpus.records[::-1])
    sets = []
    for folder, share in ((corpus.folder, 0.1), (tmp_path, 0.1), (tmp_path, 0.3)):
        data = corpus.data(folder, held_out=share)
        (held_out,) = open_records(data).held_out(data, 0).values()
        sets.append(set(rows_in(held_out.rows(np.arange(held_out.rows_per_epoch)))))
    assert sets[0] == sets[1] < sets[2]


def test_held_out_text_has_no_masks(corpus: RecordCorpus, opened: Records) -> None:
    (held_out,) = opened.held_out(corpus.data(corpus.folder), 0).values()
    rows = set(rows_in(held_out.rows(np.arange(held_out.rows_per_epoch))))
    segments = Counter()
    for instance, example in zip(corpus.instances, corpus.examples, strict=True):
        if repr(expected(example)) in rows:
            tokens = list(instance.tokens)
            for place, label in zip(instance.positions, instance.labels, strict=True):
                tokens[place] = label
            first_sep = tokens.index("[SEP]")
            segments.update([" ".join(tokens[1:first_sep]), " ".join(tokens[first_sep + 1 : -1])])
    text = opened.held_out_text()
    lengths = np.diff(text.sentence_offsets)
    ids = np.split(text.tokens(text.sentence_offsets[:-1], lengths), text.sentence_offsets[1:-1])
    assert Counter(" ".join(corpus.vocabulary[i] for i in one) for one in ids) == segments
    assert text.num_sentences == len(ids)


def test_each_stage_reads_records_of_its_row_size(corpus: RecordCorpus, tmp_path: Path) -> None:
    long = make_instances(words(0), corpus.vocabulary, 64, 10, seed=1)
    write_records([tmp_path / "long.tfrecord"], [serialized(features(i, corpus.vocabulary, 64, 10)) for i in long])
    corpus.file(tmp_path, "short.tfrecord")
    first = corpus.data(tmp_path)
    second = replace(first, sequence_length=64, max_predictions=10)
    records = open_records(first, second)
    assert records.train(first, 0).batch(0, 4)["input_ids"].shape == (4, 32)
    batch = records.train(second, 0).batch(0, 4)
    assert (batch["input_ids"].shape, batch["mlm_positions"].shape) == ((4, 64), (4, 10))
    assert records.size("train").startswith("3") and "records of 64 tokens and 10 predictions" in records.size("train")


def test_each_source_has_a_held_out_set(corpus: RecordCorpus, tmp_path: Path) -> None:
    for name, records in (("a", corpus.records[:100]), ("b", corpus.records[100:])):
        corpus.file(tmp_path, f"{name}.tfrecord", records)
    data = corpus.data(tmp_path, sources=(f"tfrecord:{tmp_path}/a.tfrecord", f"tfrecord:{tmp_path}/b.tfrecord"))
    sets = open_records(data).held_out(data, 0)
    rows = {name: set(rows_in(one.rows(np.arange(one.rows_per_epoch)))) for name, one in sets.items()}
    assert list(rows) == ["eval", "eval/source_0", "eval/source_1"]
    assert rows["eval"] == rows["eval/source_0"] | rows["eval/source_1"]
    assert rows["eval/source_0"] <= {repr(expected(one)) for one in corpus.examples[:100]}


@pytest.mark.parametrize("place", [3, 9, 300, -2])
def test_damaged_record_is_reported_by_file_and_number(corpus: RecordCorpus, tmp_path: Path, place: int) -> None:
    path = corpus.file(tmp_path)
    content = bytearray(path.read_bytes())
    begin = sum(16 + len(record) for record in corpus.records[:30])
    end = begin + 16 + len(corpus.records[30])
    content[(begin if place >= 0 else end) + place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.tfrecord, record 30 at byte {begin}: .*damaged"):
        open_records(corpus.data(tmp_path))
    assert not list((tmp_path / "data").glob("records-*")), "an index of the damaged file remains"


def test_damage_after_indexing_is_detected_on_reading(corpus: RecordCorpus, tmp_path: Path) -> None:
    path = corpus.file(tmp_path)
    batches = open_records(corpus.data(tmp_path)).train(corpus.data(tmp_path), 0)
    content = bytearray(path.read_bytes())
    content[sum(16 + len(record) for record in corpus.records[:7]) + 200] ^= 1
    path.write_bytes(content)
    for engine in ("tf.data", "threads"):
        options = {"start_step": 0, "global_batch_size": BATCH_SIZE, "threads": 2, "engine": engine}
        with open_feed(batches, **options) as feed, pytest.raises(ValueError, match=r"a\.tfrecord, record 7: damaged"):
            for _ in range(10):
                next(feed)
    path.write_bytes(content[:1000])
    with pytest.raises(ValueError, match=r"a\.tfrecord, record \d+: damaged"):
        batches.batch(0, BATCH_SIZE)


def test_damaged_index_is_reported(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path)
    open_records(corpus.data(tmp_path))
    (index,) = (tmp_path / "data").glob("records-*/index.npz")
    content = bytearray(index.read_bytes())
    content[content.index(np.int64(16 + len(corpus.records[0])).tobytes())] ^= 1
    index.write_bytes(content)
    with pytest.raises(ValueError, match=r"index\.npz is missing or damaged .*delete the folder"):
        open_records(corpus.data(tmp_path))


def with_feature(corpus: RecordCorpus, number: int, **changes) -> list[bytes]:
    """Forty records, one of them with changed features; None removes a feature."""
    features = dict(corpus.examples[number])
    for key, value in changes.items():
        features[key] = value(list(features[key])) if callable(value) else value
    present = {key: values for key, values in features.items() if values is not None}
    return [*corpus.records[:number], serialized(present), *corpus.records[number + 1 : 40]]


def put(place: int, value: float):
    return lambda values: [*values[:place], value, *values[place + 1 :]]


BAD_RECORDS = {
    "an id beyond the vocabulary": ({"input_ids": put(3, 5000)}, r"input_ids\[3\]=5000; data.vocab has \d+ entries"),
    "a negative id": ({"input_ids": put(3, -1)}, r"input_ids\[3\]=-1; data.vocab"),
    "a label beyond it": ({"masked_lm_ids": put(0, 5000)}, r"masked_lm_ids\[0\]=5000; data.vocab has"),
    "a position outside": ({"masked_lm_positions": put(0, 32)}, r"masked_lm_positions\[0\]=32; the row has 32 tokens"),
    "a mask of two": ({"input_mask": put(1, 2)}, r"input_mask\[1\]=2; it must be 0 or 1"),
    "a third segment": ({"segment_ids": put(1, 2)}, r"segment_ids\[1\]=2; it must be 0 or 1"),
    "a third label": ({"next_sentence_labels": [2]}, r"next_sentence_labels\[0\]=2; it must be 0 or 1"),
    "no weight": ({"masked_lm_weights": put(0, float("nan"))}, r"masked_lm_weights\[0\]=nan; it must be between"),
    "a hidden padding": ({"input_mask": lambda m: [1] * 4 + [0] * 28}, r"masked_lm_positions.*; this position is pad"),
    "a missing feature": ({"masked_lm_ids": None}, r"no feature masked_lm_ids; create_pretraining_data.py .* writes"),
    "a longer row": (
        {key: lambda v: v + [0] * 32 for key in ("input_ids", "input_mask", "segment_ids")},
        r"a row of 64 tokens and 5 predictions, in a file that begins with a row of 32 tokens and 5 predictions",
    ),
    "a short feature": ({"segment_ids": lambda v: v[:-1]}, r"segment_ids has 31 values, .* needs 32"),
    "floats for ids": ({"input_ids": [0.5] * 32}, r"not a record of create_pretraining_data.py \(Key: input_ids"),
}


@pytest.mark.parametrize(
    ("what", "number"), [*((what, 37) for what in BAD_RECORDS), ("an id beyond the vocabulary", 0), ("a longer row", 0)]
)
def test_invalid_record_is_reported_by_file_and_number(
    corpus: RecordCorpus, tmp_path: Path, what: str, number: int
) -> None:
    """At the start if it is one of the first of its file, otherwise when it is read."""
    changes, message = BAD_RECORDS[what]
    if what == "a longer row" and number == 0:
        message = r"record 1: a row of 32 tokens .* begins with a row of 64 tokens"
    else:
        message = rf"a\.tfrecord, record {number}: {message}"
    corpus.file(tmp_path, records=with_feature(corpus, number, **changes))
    data = corpus.data(tmp_path, held_out=0.05)
    with pytest.raises(ValueError, match=message):
        records = open_records(data)
        for batches in (records.train(data, 0), *records.held_out(data, 0).values()):
            batches.rows(np.arange(batches.rows_per_epoch))
        pytest.fail("the record was accepted")


def test_record_that_is_not_an_example_is_refused(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path, records=[*corpus.records[:3], b"\x00junk", *corpus.records[3:20]])
    with pytest.raises(ValueError, match=r"record 3: not a record of create_pretraining_data.py \(Could not parse"):
        open_records(corpus.data(tmp_path))


FILES = {
    "cut off": (lambda content: content[:-5], r"a\.tfrecord, record 39 at byte \d+: the file ends inside it"),
    "compressed": (gzip.compress, r"record 0 at byte 0: the file is compressed; give it a name that ends in \.gz"),
    "text": (lambda content: b"one sentence a line\n" * 100, r"record 0 at byte 0: .*not in a TFRecord file"),
    "empty": (lambda content: b"", r"every file is empty \(1, e\.g\. .*a\.tfrecord\)"),
}


@pytest.mark.parametrize("what", FILES)
def test_file_that_is_not_a_tfrecord_is_refused(corpus: RecordCorpus, tmp_path: Path, what: str) -> None:
    change, message = FILES[what]
    path = corpus.file(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        open_records(corpus.data(tmp_path))


def test_empty_file_among_others_is_skipped(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path)
    corpus.file(tmp_path, "b.tfrecord", [])
    assert open_records(corpus.data(tmp_path)).train(corpus.data(tmp_path), 0).rows_per_epoch > 30


def test_long_record_without_features_is_refused(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path, records=[corpus.records[0], bytes(70_000)])
    with pytest.raises(ValueError, match=r"record 1: no feature input_ids"):
        open_records(corpus.data(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root": "s3://bucket/data"}, r"data\.root=s3://bucket/data: records must be on a local disk"),
        (
            {"sequence_length": 64},
            r"a\.tfrecord: its rows have 32 tokens and 5 predictions, and the run has data\.sequence_length=64, "
            r"data\.max_predictions=5; set these",
        ),
        ({"max_predictions": 6}, r"32 tokens and 5 predictions, .*data\.max_predictions=6"),
        ({"vocab": ""}, r"data\.vocab is empty; .* the vocab\.txt that the records were made with"),
        ({"vocab": "nowhere.txt"}, r"nowhere\.txt: no such file"),
        ({"sources": ("tfrecord:nowhere/*",)}, r"source tfrecord:nowhere/\*: the glob matches nothing"),
        ({"weights": (1.0,)}, r"data\.weights=\(1\.0,\): .* were drawn .*leave it at \(\)"),
        ({"temperature": 0.5}, r"data\.temperature=0\.5"),
        ({"rows": "doc_sentences"}, r"data\.rows='doc_sentences'"),
        ({"packing": "pairs"}, r"data\.packing='pairs'"),
        ({"predict": "next"}, r"data\.predict='next'"),
        ({"masking": "words"}, r"data\.masking='words': .*leave it at 'tokens'"),
        ({"mask_probability": 0.2}, r"data\.mask_probability=0\.2"),
        ({"short_sequence_probability": 0.0}, r"data\.short_sequence_probability=0\.0"),
        ({"held_out": 0.0}, r"data\.held_out=0\.0 leaves 0 of 40 records of 32 tokens and 5 predictions for eval"),
        ({"held_out": 0.999}, r"for evaluation and 0 for training; give another share"),
    ],
)  # fmt: skip
def test_invalid_configs_are_refused(corpus: RecordCorpus, tmp_path: Path, changes: dict, message: str) -> None:
    corpus.file(tmp_path)
    with pytest.raises(ValueError, match=message):
        open_records(corpus.data(tmp_path, **changes))


def test_records_with_text_sources_are_refused(corpus: RecordCorpus, tmp_path: Path) -> None:
    data = corpus.data(tmp_path)
    with pytest.raises(ValueError, match=r"data\.sources has text:books and tfrecord sources"):
        open_records(replace(data, sources=("text:books", *data.sources)))


def test_records_serve_only_mlm_and_nsp(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path)
    stages = [corpus.data(tmp_path)]
    batches = open_training_data(stages, no_progress, ("mlm",)).train(stages[0], 0)
    everything = open_training_data(stages, no_progress).train(stages[0], 0).batch(0, 8)
    batch = batches.batch(0, 8)
    assert {key: (values.shape, values.dtype.type) for key, values in batch.items()} == batches.spec(8)
    assert len(batch) == 6 and all((batch[key] == everything[key]).all() for key in batch)
    with pytest.raises(ValueError, match=r"have no arrays for sop; choose from mlm, nsp, or pretrain from text"):
        open_training_data(stages, no_progress, ("mlm", "sop"))


def test_stage_without_records_is_refused(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path)
    data = corpus.data(tmp_path)
    message = r"stages\.0\.sequence_length=64, stages\.0\.max_predictions=10: .* no such records, only 32 tokens"
    with pytest.raises(ValueError, match=message):
        open_records(data, replace(data, sequence_length=64, max_predictions=10))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"[CLS]": "[SEP]"}, r"a\.tfrecord, record 0: input_ids\[0\]=5 should be \[CLS\], which is 6 in data\.vocab"),
        (
            {"[SEP]": "[MASK]"},
            r"a\.tfrecord, record 0: input_ids\[\d+\]=6 should be \[SEP\], which is 7 in data\.vocab",
        ),
        ({"[MASK]": "[UNK]"}, r"a\.tfrecord, record 0: none of the \d+ tokens masked .* is \[MASK\]"),
    ],
)
def test_another_vocabulary_is_refused(
    corpus: RecordCorpus, tmp_path: Path, tokens: dict[str, str], message: str
) -> None:
    corpus.file(tmp_path)
    swapped = tokens | {there: here for here, there in tokens.items()}
    vocabulary = [swapped.get(token, token) for token in corpus.vocabulary]
    (tmp_path / "other.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    with pytest.raises(ValueError, match=message):
        open_records(corpus.data(tmp_path, vocab=str(tmp_path / "other.txt")))


MAKERS = [prepare_store, prepare_vocabulary, lambda data: extend_vocabulary(data, 10)]


@pytest.mark.parametrize(("make", "has_vocabulary"), [*((make, True) for make in MAKERS), (prepare_vocabulary, False)])
def test_preparing_records_is_refused(corpus: RecordCorpus, tmp_path: Path, make, has_vocabulary: bool) -> None:
    corpus.file(tmp_path)
    data = corpus.data(tmp_path) if has_vocabulary else corpus.data(tmp_path, vocab="")
    with pytest.raises(ValueError, match=r"\.tfrecord\*: its records are already prepared rows of ids"):
        make(data)


def test_inspect_refuses_records(corpus: RecordCorpus, tmp_path: Path, capsys) -> None:
    from bertjax.__main__ import main

    corpus.file(tmp_path)
    recipe = tmp_path / "recipe.py"
    recipe.write_text("from bertjax.config import Config\n\ndef config():\n    return Config()\n")
    data = corpus.data(tmp_path)
    assert main(["inspect", str(recipe), "--data.sources", *data.sources, "--data.vocab", data.vocab]) == 1
    assert "its records are already prepared rows" in capsys.readouterr().err


WITHOUT = """
import sys
sys.modules["tensorflow"] = None
from bertjax.config import DataConfig
from bertjax.input.training_data import open_training_data
from bertjax.storage.progress import no_progress
try:
    open_training_data([{data!r}], no_progress)
except ValueError as error:
    print(error)
"""


@pytest.mark.run
def test_missing_tensorflow_is_reported(corpus: RecordCorpus, tmp_path: Path) -> None:
    corpus.file(tmp_path)
    code = WITHOUT.format(data=corpus.data(tmp_path))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert re.match(r"/.*\.tfrecord: reading it requires tensorflow; pip install tensorflow, or ", ran.stdout)
