"""Train one recipe on several shapes (processes, devices, mesh) and collect what every process reports."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from several_processes import Group

STEPS = 20


@dataclass(frozen=True)
class Shape:
    """A number of processes, of devices per process, and mesh sizes."""

    processes: int
    devices: int
    fsdp: int = 1
    tensor: int = 1
    length: int = 1

    @property
    def name(self) -> str:
        """A short name, usable in file names."""
        axes = {"fsdp": self.fsdp, "tensor": self.tensor, "length": self.length}
        return "".join(
            [f"{self.processes}x{self.devices}", *(f"-{axis}{size}" for axis, size in axes.items() if size > 1)]
        )


class Matrix:
    """Runs of one tiny recipe on several shapes, below one folder. `seen` has the reports of their processes."""

    def __init__(self, folder: Path, recipe: Path, source: Path) -> None:
        self.folder, self.recipe = folder, recipe
        self.overrides = ["--data.sources", f"lines:{source}", "--data.root", str(folder / "data")]
        self.seen: dict[str, list[dict[str, Any]]] = {}

    def run(self, shape: Shape, *, steps: int = STEPS, save: bool = False, restore: list[Shape] | None = None) -> None:
        """Run the recipe on this shape, and keep the reports of its processes."""
        out = self.folder / f"{shape.name}.out"
        job = self.folder / f"{shape.name}.json"
        job.write_text(json.dumps(self.job(shape, steps=steps, save=save, restore=restore or []) | {"out": str(out)}))
        script = Path(__file__).with_name("steps_on_hosts.py")
        log = self.folder / f"{shape.name}.log"
        command = [sys.executable, str(script), str(job)]
        with Group(command, shape.processes, log, devices=shape.devices) as group:
            group.finish()
        self.seen[shape.name] = [json.loads(Path(f"{out}.{n}").read_text()) for n in range(shape.processes)]

    def job(self, shape: Shape, *, steps: int, save: bool, restore: list[Shape]) -> dict[str, Any]:
        """The job description for `steps_on_hosts`."""
        sizes = {"fsdp": shape.fsdp, "tensor": shape.tensor, "length": shape.length}
        mesh = [word for axis, size in sizes.items() for word in (f"--mesh.{axis}", str(size))]
        return {
            "recipe": str(self.recipe),
            "overrides": [*self.overrides, *mesh],
            "steps": steps,
            "save": str(self.saved(shape)) if save else "",
            "restore": [str(self.saved(other)) for other in restore],
        }

    def saved(self, shape: Shape) -> Path:
        """The folder of a shape's checkpoint."""
        return self.folder / f"{shape.name}-checkpoints"

    def rows(self, shape: Shape) -> list[dict[str, str]]:
        """The rows of every step, merged from all processes, which must agree on rows that they share."""
        steps: list[dict[str, str]] = []
        for views in zip(*(seen["rows"] for seen in self.seen[shape.name]), strict=True):
            whole: dict[str, str] = {}
            for view in views:
                assert all(whole.get(row, digest) == digest for row, digest in view.items()), shape
                whole |= view
            steps.append(whole)
        return steps

    def losses(self, shape: Shape) -> np.ndarray:
        """The loss of every step, which must be equal in all processes."""
        first, *others = [seen["losses"] for seen in self.seen[shape.name]]
        assert all(losses == first for losses in others), shape
        return np.array(first)

    def row_counts(self, shape: Shape) -> list[int]:
        """Number of rows of a batch that each process reads."""
        return [len(seen["local_rows"]) for seen in self.seen[shape.name]]
