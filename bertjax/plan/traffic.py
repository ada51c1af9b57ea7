"""How many bytes a compiled step reads from and writes to the device's main memory, counted over its instructions.

The compiler's own count (`cost_analysis`) takes the body of a loop once. Here each instruction counts as often as it
runs, what a TPU keeps in its on-chip memory is left out, and a slice of an array counts as the slice.
"""

from __future__ import annotations

from bertjax.plan.hlo import Computation, Instruction, Module

_MOVES_NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "iota",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "add-dependency",
}
_BOOKKEEPING = ("AllocateBuffer", "ConcatBitcast", "Sharding", "AsyncCollective", "BarrierStart", "BarrierDone")
_PICKS = ("dynamic-slice", "slice", "gather")
_PASSES = ("bitcast", "copy", "convert")  # inside a fusion only the elements that are needed are computed


def memory_traffic(module: Module) -> int:
    """Bytes read and written in one step by one device."""
    return sum(
        times * _moved(instruction, module.computations[name], module)
        for name, times in module.runs.items()
        if name not in module.fused
        for instruction in module.computations[name].values()
    )


def _moved(instruction: Instruction, computation: Computation, module: Module) -> int:
    opcode, operands = instruction.opcode, [computation[name] for name in instruction.operands if name in computation]
    if opcode in _MOVES_NOTHING or opcode.endswith("-start"):
        return 0
    if opcode == "call-done":
        return 0  # the called computation counts itself
    if opcode.endswith("-done"):  # of a copy between memories: what arrives
        return sum(shape.bytes for shape in instruction.shapes)
    if opcode == "custom-call" and any(word in instruction.attributes for word in _BOOKKEEPING):
        return 0
    if opcode == "fusion":
        inner = module.computations[instruction.called("calls")[0]]
        parameters = sorted((i for i in inner.values() if i.opcode == "parameter"), key=lambda i: int(i.literal))
        read = sum(
            min(_size(operand), _read(parameter, inner, module))
            for operand, parameter in zip(operands, parameters, strict=False)
        )
        return read + _written(instruction, inner)
    if opcode in _PICKS:
        return 2 * _size(instruction)
    if opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    return _size(instruction) + sum(_size(operand) for operand in operands)


def _size(instruction: Instruction) -> int:
    """Bytes of a result in main memory."""
    return sum(shape.bytes for shape in instruction.shapes if shape.space == 0)


def _whole(instruction: Instruction) -> int:
    return sum(shape.bytes for shape in instruction.shapes)


def _read(parameter: Instruction, inner: Computation, module: Module) -> int:
    """Bytes that a fusion reads of one of its operands: all, unless it only picks slices, or overwrites one."""
    total = 0
    for user in inner.values():
        if parameter.name not in user.operands:
            continue
        place = user.operands.index(parameter.name)
        if user.opcode in _PICKS and place == 0:
            total += _whole(user)
        elif user.opcode == "dynamic-update-slice" and place == 0:
            continue
        elif _passes(user, place, module):
            if user.is_root:
                return _whole(parameter)
            total += _read(user, inner, module)
        elif user.opcode == "fusion":
            nested = module.computations[user.called("calls")[0]]
            deeper = next(i for i in nested.values() if i.opcode == "parameter" and int(i.literal) == place)
            total += _read(deeper, nested, module)
        else:
            return _whole(parameter)
    return total


def _passes(user: Instruction, place: int, module: Module) -> bool:
    """Whether a part of its result takes no more than the same part of the operand in that place."""
    if user.opcode != "fusion":
        return user.opcode in _PASSES
    nested = module.computations[user.called("calls")[0]]
    (made,) = [instruction for instruction in nested.values() if instruction.is_root]
    while made.opcode in _PASSES:
        made = nested[made.operands[0]]
    return made.opcode == "parameter" and int(made.literal) == place


def _written(fusion: Instruction, inner: Computation) -> int:
    """Bytes that a fusion writes: its results, of which one made by overwriting a slice counts as the slice."""
    (root,) = [instruction for instruction in inner.values() if instruction.is_root]
    made = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(made) != len(fusion.shapes):
        return _size(fusion)
    written = 0
    for shape, instruction in zip(fusion.shapes, made, strict=True):
        while instruction.opcode == "bitcast" and instruction.operands[0] in inner:
            instruction = inner[instruction.operands[0]]
        if shape.space:
            continue
        is_update = instruction.opcode == "dynamic-update-slice"
        written += _whole(inner[instruction.operands[1]]) if is_update else shape.bytes
    return written
