"""Make batches ahead of the training step, in order: by tf.data, or by a thread pool with the same bytes."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

import numpy as np

from bertjax.input.batches import rows_of_batch
from bertjax.storage.lean_import import import_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

Batch = dict[str, np.ndarray]
Rows = slice | np.ndarray | None

AHEAD = 2  # finished batches waiting for the step
ENDLESS = 2**62
# On small batches, NumPy's calls, which hold Python's lock, take longer than their work: one call makes several.
POSITIONS_TOGETHER = 2**18
MOST_TOGETHER = 16  # so that a restart discards few batches


class Batches(Protocol):
    """A source of batches, such as `bertjax.input.batches.PairBatches`."""

    def batch(self, step: int, global_batch_size: int, rows: Rows = None) -> Batch:
        """Return rows of a step's global batch."""
        ...

    def spec(self, batch_size: int) -> Mapping[str, tuple[tuple[int | None, ...], type[np.generic]]]:
        """Shape and dtype of every array of a batch of that many rows; None for a dim that varies."""
        ...


@runtime_checkable
class ByRows(Batches, Protocol):
    """Batches whose rows have numbers: batch k of B rows has those from k B on, whichever are made together."""

    def rows(self, numbers: np.ndarray) -> Batch:
        """The rows with these numbers, int64 [B]."""
        ...


class Feed:
    """An iterator over batches; close it, or use it in a `with`, to stop its threads."""

    def __init__(self, batches: Generator[Batch, None, None], engine: str) -> None:
        self.engine = engine  # "tf.data" or "threads"
        self._batches = batches
        # Also when the interpreter ends: TensorFlow aborts the process if its threads then want to call Python.
        self._stop = weakref.finalize(self, batches.close)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Stop making batches."""
        self._stop()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_feed(
    batches: Batches,
    *,
    start_step: int,
    global_batch_size: int,
    rows: Rows = None,
    threads: int,
    stop_step: int = ENDLESS,
    engine: Literal["tf.data", "threads"] | None = None,
) -> Feed:
    """Iterate over this process's `rows` of each batch, from `start_step` up to `stop_step`, excluded.

    By default uses tf.data if TensorFlow is installed, else a thread pool, with the same bytes. The feed raises errors
    of `batches` unchanged.
    """
    engine = engine or ("tf.data" if import_tensorflow() else "threads")
    make = {"tf.data": dataset_batches, "threads": thread_pool_batches}[engine]
    return Feed(make(batches, range(start_step, stop_step), global_batch_size, rows, threads), engine)


def make_dataset(
    batches: Batches,
    *,
    start_step: int,
    global_batch_size: int,
    rows: Rows = None,
    threads: int,
    stop_step: int = ENDLESS,
) -> tf.data.Dataset:
    """The batches as a `tf.data.Dataset` of dicts, with a static element_spec, made `threads` at a time, in order.

    To resume at step k, start there. Raises ModuleNotFoundError where TensorFlow is missing.
    """
    steps = range(start_step, stop_step)
    return _dataset_of_several(batches, steps, global_batch_size, rows, threads).unbatch().prefetch(AHEAD)


def _dataset_of_several(
    batches: Batches,
    steps: range,
    global_batch_size: int,
    rows: Rows,
    threads: int,
    errors: list[Exception] | None = None,
) -> tf.data.Dataset:
    """A dataset of the outputs of `several`; `errors` gets the errors of `batches`, which TensorFlow wraps."""
    tf = import_tensorflow(required=True)
    spec = batches.spec(_count(global_batch_size, rows))
    together = _together(batches, global_batch_size, rows)

    def make(first: np.ndarray) -> list[np.ndarray]:
        try:
            outputs = several(
                batches, range(int(first), min(int(first) + together, steps.stop)), global_batch_size, rows
            )
            return [outputs[key] for key in spec]
        except Exception as error:
            if errors is not None:
                errors.append(error)
            raise

    @tf.autograph.experimental.do_not_convert  # which would leave a file in the temporary folder
    def element(first: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = tf.numpy_function(make, [first], [dtype for _, dtype in spec.values()], stateful=False)
        for tensor, (shape, _) in zip(tensors, spec.values(), strict=True):
            tensor.set_shape((None, *shape))
        return dict(zip(spec, tensors, strict=True))

    options = tf.data.Options()
    options.deterministic = True
    # Nothing is left to tune, and its thread sleeps for up to a minute, for the end of which closing a dataset waits.
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    dataset = tf.data.Dataset.range(steps.start, steps.stop, together)
    return dataset.map(element, num_parallel_calls=threads, deterministic=True).with_options(options)


def several(batches: Batches, steps: range, global_batch_size: int, rows: Rows) -> Batch:
    """Make the batches of several steps at once: arrays [steps, ...]."""
    if not isinstance(batches, ByRows):
        (step,) = steps
        return {key: array[None] for key, array in batches.batch(step, global_batch_size, rows).items()}
    whole = batches.rows(np.concatenate([rows_of_batch(step, global_batch_size, rows) for step in steps]))
    return {key: x.reshape(len(steps), len(x) // len(steps), *x.shape[1:]) for key, x in whole.items()}


def apart(outputs: Batch) -> Iterator[Batch]:
    """Split the output of `several` into batches."""
    return (dict(zip(outputs, arrays, strict=True)) for arrays in zip(*outputs.values(), strict=True))


def _count(global_batch_size: int, rows: Rows) -> int:
    """The number of rows that this process makes of a batch."""
    return len(np.arange(global_batch_size)[... if rows is None else rows])


def _together(batches: Batches, global_batch_size: int, rows: Rows) -> int:
    """The number of batches that one call makes."""
    if not isinstance(batches, ByRows):
        return 1
    shape, _ = batches.spec(_count(global_batch_size, rows))["input_ids"]
    return min(max(1, POSITIONS_TOGETHER // max(1, math.prod(size or 1 for size in shape))), MOST_TOGETHER)


def dataset_batches(
    batches: Batches, steps: range, global_batch_size: int, rows: Rows, threads: int
) -> Generator[Batch, None, None]:
    """The elements of `make_dataset` as NumPy arrays, and the errors of `batches` unchanged.

    Batches that were made together are split here, without a copy; splitting them in tf.data is as slow as making them.
    """
    errors: list[Exception] = []
    dataset = _dataset_of_several(batches, steps, global_batch_size, rows, threads, errors)
    try:
        for outputs in dataset.prefetch(AHEAD).as_numpy_iterator():
            yield from apart(cast("Batch", outputs))
    except Exception as wrapped:
        raise (errors[0] if errors else wrapped) from None


def thread_pool_batches(
    batches: Batches, steps: range, global_batch_size: int, rows: Rows, threads: int
) -> Generator[Batch, None, None]:
    """The same batches from a pool of `threads` threads, for machines without TensorFlow."""
    together = _together(batches, global_batch_size, rows)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
    under_way: deque[Future[Batch]] = deque()
    try:
        for n in range(0, len(steps), together):
            under_way.append(pool.submit(several, batches, steps[n : n + together], global_batch_size, rows))
            if len(under_way) >= threads + AHEAD:
                yield from apart(under_way.popleft().result())
        while under_way:
            yield from apart(under_way.popleft().result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
