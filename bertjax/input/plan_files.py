"""Caches for epoch plans: in memory, built ahead of time, and on disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

Plan = TypeVar("Plan")
PLAN_VERSION = 1  # of the rules for pairs and packing; a change makes other plans
LEAST_KEPT_BYTES = 16 << 20  # a smaller plan is built as quickly as it is read
MOST_KEPT = 4  # in a folder; the current epoch's and the next one's of a run are two

Arrays = dict[str, np.ndarray]


class PlanCache(Generic[Plan]):
    """The few plans in use, each built once: at first use, or ahead of time in the background."""

    def __init__(self, build: Callable[[int], Plan]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, Future[Plan]] = OrderedDict()
        self.capacity = 2  # plans kept: the current one and the next

    def get(self, epoch: int) -> Plan:
        """The plan of an epoch; waits for it, and raises what building it raised."""
        plan, is_new = self._claim(epoch)
        if is_new:
            self._fill(plan, epoch)
        return plan.result()

    def prepare(self, epoch: int) -> None:
        """Build the plan of an epoch in the background, unless it is built or being built."""
        plan, is_new = self._claim(epoch)
        if is_new:
            threading.Thread(target=self._fill, args=(plan, epoch), name=f"plan-{epoch}", daemon=True).start()

    def _claim(self, epoch: int) -> tuple[Future[Plan], bool]:
        with self._lock:
            is_new = epoch not in self._plans
            plan = self._plans.setdefault(epoch, Future())
            self._plans.move_to_end(epoch)
            while len(self._plans) > self.capacity:
                self._plans.popitem(last=False)
        return plan, is_new

    def _fill(self, plan: Future[Plan], epoch: int) -> None:
        try:
            plan.set_result(self._build(epoch))
        except BaseException as error:
            plan.set_exception(error)


class PlanFiles:
    """The plans in one folder, each with the digests of its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_or_make(self, inputs: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """Memory-map the plan with these inputs (JSON values), or make it and write it to disk."""
        key = json.dumps({"version": PLAN_VERSION, **inputs}, sort_keys=True)
        folder = self._folder / f"plan-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if (arrays := self._load(folder, key)) is not None:
            return arrays
        arrays = make()
        if sum(array.nbytes for array in arrays.values()) >= LEAST_KEPT_BYTES:
            self._keep(folder, key, arrays)
        return arrays

    def _load(self, folder: Path, inputs: str) -> Arrays | None:
        if not folder.is_dir():
            return None
        try:
            about = json.loads((folder / "plan.json").read_text())
            if about["inputs"] != inputs:
                raise ValueError("it has other inputs")
            for name, digest in about["sha256"].items():
                if _digest(folder / f"{name}.npy") != digest:
                    raise ValueError(f"{name}.npy is damaged")
            os.utime(folder)
            return {
                name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in about["sha256"]
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(f"plan {folder}: {error}; it is built again", stacklevel=2)
            shutil.rmtree(folder, ignore_errors=True)
            return None

    def _keep(self, folder: Path, inputs: str, arrays: Arrays) -> None:
        """Write a plan, and remove the least recently used ones; if the disk is full, warn and continue."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=self._folder))
        try:
            for name, array in arrays.items():
                np.save(partial / f"{name}.npy", array, allow_pickle=False)
            digests = {name: _digest(partial / f"{name}.npy") for name in arrays}
            (partial / "plan.json").write_text(json.dumps({"inputs": inputs, "sha256": digests}))
            os.chmod(partial, 0o755)  # noqa: S103  (a cache that other users may read)
            os.rename(partial, folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # another host may have written it
                warnings.warn(f"plan {folder} was not written ({error}); it is built again when needed", stacklevel=2)
            return
        kept = sorted(self._folder.glob("plan-????????????????"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
