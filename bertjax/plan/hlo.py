"""Parse compiled programs as HLO text: which instructions run, how often, and on which shapes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\(([^)]*)\)(.*)$")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_NAME = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Shape:
    """One array. `space` 0 is the device's main memory; others are closer to its cores."""

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def bytes(self) -> int:
        """Size without the padding of a layout."""
        if self.dtype in ("token", "opaque"):
            return 0
        bits = _BITS.search(self.dtype)
        return math.prod(self.dims) * (int(bits.group()) if bits else 8) // 8


@dataclass(frozen=True)
class Instruction:
    """`name = shapes opcode(operands), attributes`."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # the leaves of the result
    operands: tuple[str, ...]
    literal: str  # the text between the parentheses
    attributes: str
    is_root: bool

    def called(self, *keys: str) -> tuple[str, ...]:
        """Return the computations that these attributes name."""
        return tuple(name for key, name in _CALLED.findall(self.attributes) if key in keys)


Computation = dict[str, Instruction]


@dataclass(frozen=True)
class Module:
    """The computations of a program by name."""

    computations: dict[str, Computation]
    entry: str

    @cached_property
    def runs(self) -> dict[str, int]:
        """How often each computation runs in one call of the program, including those inside fusions and loops.

        Every branch of a conditional counts. Raises ValueError for a loop of unknown length.
        """
        counts: dict[str, int] = defaultdict(int)

        def visit(name: str, times: int) -> None:
            counts[name] += times
            for instruction in self.computations[name].values():
                for callee, factor in self._callees(name, instruction):
                    visit(callee, times * factor)

        visit(self.entry, 1)
        return dict(counts)

    @cached_property
    def fused(self) -> frozenset[str]:
        """Computations inside a fusion, whose values never reach memory."""
        inside: set[str] = set()

        def enter(name: str) -> None:
            if name not in inside:
                inside.add(name)
                for instruction in self.computations[name].values():
                    for callee in instruction.called("calls"):
                        enter(callee)

        for computation in self.computations.values():
            for instruction in computation.values():
                if instruction.opcode == "fusion":
                    for callee in instruction.called("calls"):
                        enter(callee)
        return frozenset(inside)

    def _callees(self, where: str, instruction: Instruction) -> list[tuple[str, int]]:
        match instruction.opcode:
            case "while":
                trips = self._trips(where, instruction)
                return [(name, trips) for name in instruction.called("body", "condition")]
            case "fusion" | "async-start":
                return [(name, 1) for name in instruction.called("calls")]
            case "call" | "call-start":  # call-start: work for the sparse cores of a TPU7x
                return [(name, 1) for name in instruction.called("to_apply")]
            case "conditional":
                match = _BRANCHES.search(instruction.attributes)
                branches = _NAME.findall(match.group(1)) if match else []
                return [(n, 1) for n in (*branches, *instruction.called("true_computation", "false_computation"))]
        return []

    def _trips(self, where: str, loop: Instruction) -> int:
        """Return the trip count of a loop, from the compiler's annotation or the bound of a counter from 0."""
        if annotation := _TRIPS.search(loop.attributes):
            return int(annotation.group(1))
        condition = self.computations[loop.called("condition")[0]]
        test = next(instruction for instruction in condition.values() if instruction.is_root)
        bounds = [condition[name] for name in test.operands if name in condition]
        constants = [int(bound.literal) for bound in bounds if bound.opcode == "constant"]
        if test.opcode == "compare" and "direction=LT" in test.attributes and len(constants) == 1:
            return constants[0]
        raise ValueError(
            f"the compiled program has a loop {loop.name} in {where} with an unknown trip count ({test.opcode} "
            f"{test.attributes[:60]}); this version of jax is not supported by bertjax plan"
        )


def parse(text: str) -> Module:
    """Parse the text of `Compiled.as_text()`. Raises ValueError if there is no entry computation."""
    computations: dict[str, Computation] = {}
    entry: str = ""
    current: Computation | None = None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
            continue
        if current is not None and (match := _INSTRUCTION.match(line)):
            root, name, result, opcode, operands, attributes = match.groups()
            current[name] = Instruction(
                name, opcode, _shapes(result), tuple(_NAME.findall(operands)), operands, attributes, bool(root)
            )
    if not entry:
        raise ValueError(
            "the compiled program has no entry computation; this version of jax is not supported by bertjax plan"
        )
    return Module(computations, entry)


def _shapes(text: str) -> tuple[Shape, ...]:
    shapes = []
    for dtype, dims, layout in _SHAPE.findall(text):
        space = _SPACE.search(layout)
        sizes = tuple(int(size) for size in dims.split(",") if size)
        shapes.append(Shape(dtype, sizes, int(space.group(1)) if space else 0))
    return tuple(shapes)
