"""Make batches ahead of the training step, in order, with tf.data or with a thread pool that gives the same bytes."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

import numpy as np

from bertjax.input.batches import rows_of_batch
from bertjax.storage.lean_import import import_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

Batch = dict[str, np.ndarray]
Rows = slice | np.ndarray | None
Spec = Mapping[str, tuple[tuple[int | None, ...], type[np.generic]]]
MakeGroup = Callable[[int], Batch]  # first step of a group -> arrays [steps, ...] of its batches

AHEAD = 2  # finished batches waiting for the step
ENDLESS = 2**62
# For small batches the overhead of NumPy calls, which hold the GIL, exceeds their work, so one call makes several.
POSITIONS_TOGETHER = 2**18
MOST_TOGETHER = 16  # a restart discards at most this many batches


class Batches(Protocol):
    """A source of batches, such as `bertjax.input.batches.RowBatches`."""

    def batch(self, step: int, global_batch_size: int, rows: Rows = None) -> Batch:
        """Return rows of a step's global batch."""
        ...

    def spec(self, batch_size: int) -> Spec:
        """Shape and dtype of every array of a batch; None for a dim that varies."""
        ...


@runtime_checkable
class ByRows(Batches, Protocol):
    """Batches whose rows are numbered: batch k of B rows is rows k B to k B + B - 1, however they are grouped."""

    def rows(self, numbers: np.ndarray) -> Batch:
        """Make the rows with these numbers, int64 [B]."""
        ...


class Feed:
    """An iterator over batches; close it, or use it as a context manager, to stop its threads."""

    def __init__(self, batches: Generator[Batch, None, None], engine: str) -> None:
        self.engine = engine  # "tf.data" or "threads"
        self._batches = batches
        # Also runs at interpreter exit: TensorFlow aborts the process if its threads call Python after that.
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
    batch_number: Callable[[int], int] = lambda step: step,
    engine: Literal["tf.data", "threads"] | None = None,
) -> Feed:
    """Iterate over this process's `rows` of each batch, from `start_step` up to `stop_step`, excluded.

    `batch_number` maps a step to the number of its batch. By default uses tf.data if TensorFlow is installed, else a
    thread pool, with the same bytes. Errors of `batches` are raised unchanged.
    """
    spec = batches.spec(len(np.arange(global_batch_size)[... if rows is None else rows]))
    group_size = _group_size(spec) if isinstance(batches, ByRows) else 1

    def make_group(first: int) -> Batch:
        """Make the batches of a group in one call."""
        numbers = [batch_number(step) for step in range(first, min(first + group_size, stop_step))]
        if not isinstance(batches, ByRows):
            (number,) = numbers
            return {key: array[None] for key, array in batches.batch(number, global_batch_size, rows).items()}
        whole = batches.rows(np.concatenate([rows_of_batch(number, global_batch_size, rows) for number in numbers]))
        return {key: x.reshape(len(numbers), len(x) // len(numbers), *x.shape[1:]) for key, x in whole.items()}

    groups = range(start_step, stop_step, group_size)
    if (engine or ("tf.data" if import_tensorflow() else "threads")) == "tf.data":
        return Feed(dataset_batches(make_group, groups, spec, threads), "tf.data")
    return Feed(thread_pool_batches(make_group, groups, threads), "threads")


def _group_size(spec: Spec) -> int:
    """Number of batches of this spec to make in one call."""
    shape, _ = spec["input_ids"]
    return min(max(1, POSITIONS_TOGETHER // max(1, math.prod(size or 1 for size in shape))), MOST_TOGETHER)


def dataset_batches(make_group: MakeGroup, groups: range, spec: Spec, threads: int) -> Generator[Batch, None, None]:
    """Iterate over the batches of a `group_dataset` as NumPy arrays; raises the errors of `make_group` unchanged.

    Splits groups of batches in NumPy without a copy, because splitting them in tf.data is as slow as making them.
    """
    errors: list[Exception] = []
    dataset = group_dataset(make_group, groups, spec, threads, errors)
    try:
        for outputs in dataset.prefetch(AHEAD).as_numpy_iterator():
            yield from split_group(cast("Batch", outputs))
    except Exception as wrapped:
        raise (errors[0] if errors else wrapped) from None


def group_dataset(
    make_group: MakeGroup, groups: range, spec: Spec, threads: int, errors: list[Exception]
) -> tf.data.Dataset:
    """The groups as a `tf.data.Dataset` of dicts with a static element_spec, made `threads` at a time, in order.

    Collects in `errors` the errors of `make_group`, which TensorFlow wraps. Raises ModuleNotFoundError if TensorFlow is
    not installed.
    """
    tf = import_tensorflow(required=True)

    def make(first: np.ndarray) -> list[np.ndarray]:
        try:
            outputs = make_group(int(first))
            return [outputs[key] for key in spec]
        except Exception as error:
            errors.append(error)
            raise

    @tf.autograph.experimental.do_not_convert  # a conversion would leave a file in the temporary folder
    def element(first: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = tf.numpy_function(make, [first], [dtype for _, dtype in spec.values()], stateful=False)
        for tensor, (shape, _) in zip(tensors, spec.values(), strict=True):
            tensor.set_shape((None, *shape))
        return dict(zip(spec, tensors, strict=True))

    options = tf.data.Options()
    options.deterministic = True
    # There is nothing to tune, and closing the dataset would wait for autotune's thread, which sleeps up to a minute.
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    dataset = tf.data.Dataset.range(groups.start, groups.stop, groups.step)
    return dataset.map(element, num_parallel_calls=threads, deterministic=True).with_options(options)


def thread_pool_batches(make_group: MakeGroup, groups: range, threads: int) -> Generator[Batch, None, None]:
    """Like `dataset_batches`, with a pool of `threads` threads, for machines without TensorFlow."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
    pending: deque[Future[Batch]] = deque()
    try:
        for first in groups:
            pending.append(pool.submit(make_group, first))
            if len(pending) >= threads + AHEAD:
                yield from split_group(pending.popleft().result())
        while pending:
            yield from split_group(pending.popleft().result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def split_group(outputs: Batch) -> Iterator[Batch]:
    """Split arrays [steps, ...] into batches."""
    return (dict(zip(outputs, arrays, strict=True)) for arrays in zip(*outputs.values(), strict=True))
