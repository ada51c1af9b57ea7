"""Shapes of a run, processes x devices and mesh, and what a run of each saw, compared."""

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
    """So many processes with so many devices each."""

    processes: int
    devices: int
    fsdp: int = 1
    tensor: int = 1
    length: int = 1

    @property
    def name(self) -> str:
        """Short, and usable in the name of a file."""
        axes = {"fsdp": self.fsdp, "tensor": self.tensor, "length": self.length}
        return "".join(
            [f"{self.processes}x{self.devices}", *(f"-{axis}{size}" for axis, size in axes.items() if size > 1)]
        )


class Matrix:
    """Runs of one tiny recipe on several shapes, below one folder."""

    def __init__(self, folder: Path, recipe: Path, source: Path) -> None:
        self.folder, self.recipe = folder, recipe
        self.overrides = ["--data.sources", f"lines:{source}", "--data.root", str(folder / "data")]
        self.seen: dict[str, list[dict[str, Any]]] = {}

    def run(self, shape: Shape, *, steps: int = STEPS, save: bool = False, restore: list[Shape] | None = None) -> None:
        """Start a run of this shape, wait for it, and keep what its processes saw."""
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
        """What `steps_on_hosts` is told."""
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
        """Where a shape's checkpoint is."""
        return self.folder / f"{shape.name}-checkpoints"

    def rows(self, shape: Shape) -> list[dict[str, str]]:
        """Every row of every step, put together from all processes, which must agree where they share rows."""
        steps: list[dict[str, str]] = []
        for views in zip(*(seen["rows"] for seen in self.seen[shape.name]), strict=True):
            whole: dict[str, str] = {}
            for view in views:
                assert all(whole.get(row, digest) == digest for row, digest in view.items()), shape
                whole |= view
            steps.append(whole)
        return steps

    def losses(self, shape: Shape) -> np.ndarray:
        """Of every step; the same in every process."""
        first, *others = [seen["losses"] for seen in self.seen[shape.name]]
        assert all(losses == first for losses in others), shape
        return np.array(first)

    def made(self, shape: Shape) -> list[int]:
        """How many rows of a batch each process made."""
        return [len(seen["made"]) for seen in self.seen[shape.name]]
