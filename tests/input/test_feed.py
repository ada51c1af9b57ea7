"""Both engines of the feed give the same bytes in the same order, and raise errors unchanged."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents
from stored_documents import write_store
from test_batches import BATCH_SIZE, DATA, SPECIALS, digest, small_batches, two_epochs

import bertjax.input.feed
from bertjax.input.batches import RowBatches
from bertjax.input.feed import MOST_TOGETHER, Feed, group_dataset, open_feed
from bertjax.storage.lean_import import import_tensorflow
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

ENGINES = ["tf.data", "threads"]
TENSORFLOW = find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow has no wheel here")


@pytest.fixture(autouse=True)
def _tensorflow(request: pytest.FixtureRequest) -> None:
    if "tf.data" in request.node.name and not TENSORFLOW:
        pytest.skip("TensorFlow has no wheel here")


def feed(batches, engine: str, start: int = 0, stop: int = 2**62, threads: int = 2, rows=None, **options) -> Feed:
    return open_feed(
        batches,
        start_step=start,
        stop_step=stop,
        global_batch_size=BATCH_SIZE,
        rows=rows,
        threads=threads,
        engine=engine,
        **options,
    )


@pytest.fixture(scope="module")
def stream() -> list[dict[str, np.ndarray]]:
    """Two epochs of batches, made sequentially."""
    batches = small_batches()
    return [batches.batch(step, BATCH_SIZE) for step in range(two_epochs(batches))]


class Jittery:
    """Delays batches by varying times, so that threads overtake each other."""

    def __init__(self, batches: RowBatches) -> None:
        self._batches = batches
        self.spec = batches.spec

    def batch(self, step: int, global_batch_size: int, rows=None) -> dict[str, np.ndarray]:
        time.sleep(0.004 * (step * 7 % 4))
        return self._batches.batch(step, global_batch_size, rows)


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_and_engines_give_the_same_bytes(stream, engine: str, threads: int) -> None:
    with feed(Jittery(small_batches()), engine, stop=len(stream), threads=threads) as fed:
        assert fed.engine == engine
        assert digest(list(fed)) == digest(stream)


@pytest.mark.parametrize("engine", ENGINES)
def test_restart_at_every_step_of_two_epochs(stream, engine: str) -> None:
    for start in range(len(stream)):
        with feed(small_batches(), engine, start, len(stream)) as fed:
            assert digest(list(fed)) == digest(stream[start:])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_hosts_feed_slices_of_the_same_batches(stream, engine: str, hosts: int) -> None:
    share = BATCH_SIZE // hosts
    feeds = [
        feed(small_batches(), engine, stop=len(stream), rows=slice(n * share, (n + 1) * share)) for n in range(hosts)
    ]
    joined = [
        {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} for parts in zip(*feeds, strict=True)
    ]
    assert digest(joined) == digest(stream)


@needs_tensorflow
def test_dataset_is_a_tf_dataset_with_static_shapes(stream) -> None:
    tf = import_tensorflow(required=True)
    spec = small_batches().spec(3)
    expected = [{key: values[None, [5, 1, 2]] for key, values in batch.items()} for batch in stream[3:5]]
    dataset = group_dataset(lambda first: expected[first - 3], range(3, 5), spec, threads=2, errors=[])
    assert isinstance(dataset, tf.data.Dataset)
    assert dataset.element_spec == {
        key: tf.TensorSpec((None, *shape), tf.as_dtype(dtype)) for key, (shape, dtype) in spec.items()
    }
    elements = list(dataset.as_numpy_iterator())
    assert digest(elements) == digest(expected)
    assert tf.config.get_visible_devices("GPU") == tf.config.get_visible_devices("TPU") == []
    assert dataset.options().autotune.enabled is False, "closing would wait for autotune's sleeping thread"


@needs_tensorflow
def test_tensorflow_is_used_if_installed() -> None:
    with feed(small_batches(), None) as fed:
        assert fed.engine == "tf.data"


CODE = """
import sys
sys.path[:0] = {folders!r}
{before}
from test_feed import digest, feed, small_batches
fed = feed(small_batches(), None)
print(fed.engine, digest([next(fed) for _ in range(3)]))
"""


@pytest.mark.run
@pytest.mark.parametrize(
    ("before", "engine"),
    [pytest.param("", "tf.data", marks=pytest.mark.long), ("sys.modules['tensorflow'] = None", "threads")],
)
def test_feed_gives_the_same_bytes_without_tensorflow(stream, before: str, engine: str) -> None:
    """Also: TensorFlow prints nothing, and the process ends although the feed is open."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "text")]
    code = CODE.format(before=before, folders=folders)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split() == [engine, digest(stream[:3])]


@pytest.mark.parametrize("engine", ENGINES)
def test_feed_raises_errors_of_a_damaged_store_unchanged(tmp_path, engine: str) -> None:
    """The message has the store's file and byte offset; TensorFlow does not wrap it."""
    lengths = random_documents(30, seed=2, sentences=6, tokens=9)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(5, 1000))]
    wordpiece = WordPiece(tokens, TextRules(True, True))
    documents = [[[7] * length for length in document] for document in lengths]
    path = write_store(tmp_path / "store", {"train": documents}, wordpiece)
    shard = path / "train-00000.tokens"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    batches = RowBatches(TokenStore.open(path).split("train"), wordpiece, DATA, 0)
    with feed(batches, engine) as fed, pytest.raises(ValueError, match=r"train-00000\.tokens.*byte 0 ") as caught:
        next(fed)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("engine", ENGINES)
def test_feed_yields_batches_before_an_error(stream, engine: str) -> None:
    class Broken(Jittery):
        def batch(self, step: int, global_batch_size: int, rows=None) -> dict[str, np.ndarray]:
            if step == 4:
                raise OSError("the disk went away")
            return super().batch(step, global_batch_size, rows)

    received = []
    with feed(Broken(small_batches()), engine) as fed, pytest.raises(OSError, match="the disk went away"):
        for batch in fed:
            received.append(batch)
    assert digest(stream[: len(received)]) == digest(received) and len(received) <= 4


@pytest.mark.parametrize("engine", ENGINES)
def test_closing_the_feed_stops_its_threads(engine: str) -> None:
    started, finished = [], []

    class Recorded(Jittery):
        def batch(self, step: int, global_batch_size: int, rows=None) -> dict[str, np.ndarray]:
            started.append(step)
            batch = super().batch(step, global_batch_size, rows)
            finished.append(step)
            return batch

    fed = feed(Recorded(small_batches()), engine)
    next(fed)
    fed.close()
    assert next(fed, None) is None
    deadline = time.monotonic() + 60
    while len(finished) < len(started) or any(thread.name.startswith("batch") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = len(started)
    time.sleep(0.1)
    assert len(started) == before < 12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("hosts", "skipped"), [(1, 0), (3, 0), (1, 2)])
def test_several_small_batches_are_made_in_one_call(monkeypatch, stream, engine: str, hosts: int, skipped: int) -> None:
    """Even if the first or last step is inside a group, for a part of the rows, and across skipped batches."""
    positions = DATA.sequence_length * BATCH_SIZE // hosts
    monkeypatch.setattr(bertjax.input.feed, "POSITIONS_TOGETHER", 3 * positions)
    rows, calls = None if hosts == 1 else np.arange(BATCH_SIZE)[1::hosts], []

    class Counted(RowBatches):
        def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
            calls.append(len(numbers))
            return super().rows(numbers)

    split = MemorySplit(random_documents(24, seed=2, sentences=6, tokens=9))

    def batch_number(step: int) -> int:
        return step + skipped * (step >= 4)

    stop = len(stream) - 1 - skipped
    with feed(Counted(split, SPECIALS, DATA, 0), engine, 2, stop, rows=rows, batch_number=batch_number) as fed:
        batches = list(fed)
    whole = [stream[batch_number(step)] for step in range(2, stop)]
    expected = [{key: x if rows is None else x[rows] for key, x in batch.items()} for batch in whole]
    assert digest(batches) == digest(expected)
    per_batch = len(batches[0]["input_ids"])
    group_size = 3 * positions // (DATA.sequence_length * per_batch)
    assert max(calls) == group_size * per_batch and len(calls) == -(-len(expected) // group_size) > 2


def test_feed_makes_only_a_few_batches_ahead() -> None:
    split = MemorySplit(random_documents(50, seed=2))
    calls = []

    class Recorded(RowBatches):
        def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
            calls.append(int(numbers.max()) // (BATCH_SIZE * MOST_TOGETHER))
            return super().rows(numbers)

    with feed(Recorded(split, Specials(), DATA, 0), "threads", threads=2) as fed:
        next(fed)
        time.sleep(0.2)
        assert max(calls) <= 4
