"""The time of a TPU's program by its compiler's own schedule, without a TPU.

libtpu writes the instruction bundles of each fusion and kernel into the folder set by `planning_environment`. A core
issues one bundle per cycle. XLA's own `estimated_cycles` are two to five times the bundles for element-wise bfloat16
and are used only if there are no bundles. Work on a SparseCore, such as a scatter on v5p, has neither, so only its
bytes count.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bertjax.plan.hlo import Computation, Instruction, Module
from bertjax.plan.roofline import instruction_traffic
from bertjax.plan.topologies import Chip

# Cycles per second: each is the chip's peak over the operations that its matrix units do in a cycle.
CLOCKS = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:(\w\w):)?\s*:?\s*(>*) ?\{(.*)")  # label, depth in loops, contents
# The test's name, the test that it depends on, the trips.
_TRIPS = re.compile(r"%(\w+) = scmp\.\w+\.s32\.totalorder (?:\(%(\w+)\), )?%\w+, (\d+) /\* loop exit test \*/")
_PIPELINED = "/* iteration index, stage = 1 */"
_FILL = 2  # iterations of a pipelined loop that only copy: the first loads, the last stores
_FILE = re.compile(r"\d+-(.+)-0\d-final_bundles\.txt")
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = (1 << 63) - 1  # the compiler's value for instructions that its cost model does not cover
_SCRATCH = re.compile(r'"used_scoped_memory_configs":\[{[^]]*?"size":"(\d+)"')
_ASYNCHRONOUS = ("-start", "-done", "-update")
_EXCHANGE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def read_cycles(folder: Path) -> dict[str, int]:
    """Return the cycles of each instruction that has a file of bundles, by its name in the compiled program."""
    files = {match[1]: path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))}
    return {name: count_cycles(path.read_text(errors="replace")) for name, path in files.items() if name != "TLP"}


def count_cycles(text: str) -> int:
    """Count the bundles of a file; a loop's count once per iteration.

    A loop's trip count is the constant of its exit test; a loop that ends on a computed number counts once. A test that
    depends on the test of an inner loop belongs to the loop around it. A loop over the grid of a kernel or the windows
    of a fusion computes in all iterations but two, which jump over most of its bundles.
    """
    around: dict[int, tuple[int, ...]] = {0: ()}  # the numbers of the loops around the last bundle of each depth
    current: tuple[int, ...] = ()
    bundles: Counter[tuple[int, ...]] = Counter()
    trips: dict[int, int] = {}
    tested: dict[str, tuple[int, ...]] = {}
    pipelined: set[int] = set()
    count, headed = 0, 0  # the number of loops so far, and the loop whose header was read without its body
    for label, nesting, contents in _BUNDLE.findall(text):
        depth = len(nesting)
        if label == "LH" or (label == "LB" and not headed):
            count += 1
            around[depth] = (*around.get(depth - 1, ()), count)
        headed = count if label == "LH" else 0 if label == "LB" else headed
        # An empty bundle is written without its depth; bundles of a loop may follow its last branch.
        current = current if contents.startswith("}") else around.get(depth, current)
        bundles[current] += 1
        if current and _PIPELINED in contents:
            pipelined.add(current[-1])
        for test, inner, number in _TRIPS.findall(contents):
            tested[test] = tested[inner][:-1] if inner in tested else current
            if tested[test]:
                trips[tested[test][-1]] = int(number)
    total = 0
    for loops, number in bundles.items():
        for loop in loops:
            number *= max(trips.get(loop, 1) - _FILL * (loop in pipelined), 1)
        total += number
    return total


@dataclass(frozen=True)
class Scheduled:
    """Seconds of one step on one device by the schedule, without gradient exchange."""

    seconds: float
    modelled: float  # the part of `seconds` from the compiler's cost model instead of bundles


def schedule_time(module: Module, cycles: dict[str, int], chip: Chip) -> Scheduled | None:
    """Sum, over the instructions, the longer of their bundles and their traffic; None for a chip of unknown clock.

    An instruction without bundles gets an equal one's (equal fusions are compiled once). Asynchronous copies
    take no time here; their bytes are part of the step's bound.
    """
    if (clock := CLOCKS.get(chip.name)) is None:
        return None
    programs = [module.computations[name] for name in module.runs if name not in module.fused]
    known = {
        _signature(i, program): cycles[i.name] for program in programs for i in program.values() if i.name in cycles
    }
    seconds = modelled = 0.0
    for name, times in module.runs.items():
        if name in module.fused:
            continue
        program = module.computations[name]
        for instruction in program.values():
            if instruction.opcode.startswith(_EXCHANGE) or instruction.opcode.endswith(_ASYNCHRONOUS):
                continue
            count, estimated = cycles.get(instruction.name, known.get(_signature(instruction, program))), False
            if count is None and (match := _ESTIMATE.search(instruction.attributes)):
                estimate = int(match[1])
                count, estimated = (estimate, True) if estimate != _NO_ESTIMATE else (0, False)
            moving = instruction_traffic(instruction, program, module) / chip.memory_bandwidth
            spent = times * max((count or 0) / clock, moving)
            seconds += spent
            modelled += spent if estimated else 0.0
    return Scheduled(seconds, modelled)


def _signature(instruction: Instruction, program: Computation) -> tuple[object, ...]:
    """The key that equal instructions share: opcode, shapes, name without its number, and a kernel's scratch memory.

    Attention kernels with and without a window have equal shapes, but differ in their scratch memory in VMEM.
    """
    operands = tuple(program[name].shapes for name in instruction.operands if name in program)
    kernel = _SCRATCH.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    name = instruction.name.rstrip(".0123456789")
    return instruction.opcode, instruction.shapes, operands, name, kernel and kernel[1]
