"""Plans kept on disk: what takes a minute to build is there at once at the next start, and for other hosts.

Each is a folder of .npy files under a fingerprint of everything it is made from, with the SHA-256 of each file in
`plan.json`. It appears whole or not at all. One that is damaged is named and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PLAN_VERSION = 1  # of making pairs and packing them; a change makes other plans
LEAST_KEPT_BYTES = 16 << 20  # a smaller plan is built as quickly as it is read
MOST_KEPT = 4  # in a folder; the current epoch's and the next one's of a run are two

Arrays = dict[str, np.ndarray]


class PlanFiles:
    """The plans in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_or_make(self, made_of: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The arrays of the plan that is made of these JSON values: memory-mapped from disk, or made and kept."""
        inputs = json.dumps({"version": PLAN_VERSION, **made_of}, sort_keys=True)
        place = self._folder / f"plan-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"
        if (arrays := self._load(place, inputs)) is not None:
            return arrays
        arrays = make()
        if sum(array.nbytes for array in arrays.values()) >= LEAST_KEPT_BYTES:
            self._keep(place, inputs, arrays)
        return arrays

    def _load(self, place: Path, inputs: str) -> Arrays | None:
        if not place.is_dir():
            return None
        try:
            about = json.loads((place / "plan.json").read_text())
            if about["inputs"] != inputs:
                raise ValueError("it is of other inputs")
            for name, digest in about["sha256"].items():
                if _digest(place / f"{name}.npy") != digest:
                    raise ValueError(f"{name}.npy is damaged")
            os.utime(place)
            return {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in about["sha256"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"plan {place}: {error}; it is built again", stacklevel=2)
            shutil.rmtree(place, ignore_errors=True)
            return None

    def _keep(self, place: Path, inputs: str, arrays: Arrays) -> None:
        """Write a plan, and remove the ones that were not used for longest; a full disk only costs the next start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=self._folder))
        try:
            for name, array in arrays.items():
                np.save(partial / f"{name}.npy", array, allow_pickle=False)
            digests = {name: _digest(partial / f"{name}.npy") for name in arrays}
            (partial / "plan.json").write_text(json.dumps({"inputs": inputs, "sha256": digests}))
            os.chmod(partial, 0o755)
            os.rename(partial, place)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not place.is_dir():  # another host may have been quicker
                warnings.warn(f"plan {place} could not be kept ({error}); it is built again when needed", stacklevel=2)
            return
        kept = sorted(self._folder.glob("plan-????????????????"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
