"""Read JSON that may be damaged or hostile, with bounded size and depth, and check each value's declared type.

Types are written as in Python: `int`, `float`, `str`, `bool`, `None`, `Any`, `list[T]`,
`dict[str, T]`, `Literal`, unions, a `TypedDict` whose keys may be `NotRequired`, and `Annotated[int, Between(1, 9)]`.
A mapping may have keys that its TypedDict lacks; their values are not checked.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from bertjax.storage.files import MOST_WHOLE, read_whole
from bertjax.storage.remote import AnyPath

T = TypeVar("T")

MOST_DEPTH = 64  # of nested lists and mappings; functions that descend may recurse
# Possible surrogates; `json.loads` accepts lone ones, as escapes and as UTF-8.
_SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")
_SURROGATE_BYTES = re.compile(rb"\\u[dD]|\xed[\xa0-\xbf]")
_SHOWN = 80  # characters of a value in a message
_MISSING = object()
_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "a mapping",
}


@dataclass(frozen=True)
class Between:
    """Bounds of a number, of the elements of a list, or of the characters of a string."""

    least: float
    most: float = math.inf


Count = Annotated[int, Between(0, 2**48)]  # of bytes or elements: sums and products fit into int64
Sha256 = Annotated[str, Between(64, 64)]  # in hex


class Misfit(NamedTuple):
    """A value of the wrong type: its path in the document, and what it should be."""

    path: str
    value: Any
    expected: str


def read_json(
    path: AnyPath, shape: type[T] | Any = dict[str, Any], *, remedy: str = "", most_bytes: int = MOST_WHOLE
) -> T:
    """Read the document of a file. Raises ValueError like `parse_json`, and OSError if the file cannot be read."""
    return parse_json(read_whole(path, most_bytes), str(path), shape, remedy=remedy, most_bytes=most_bytes)


def parse_json(
    content: bytes | str,
    origin: str,
    shape: type[T] | Any = dict[str, Any],
    *,
    remedy: str = "",
    most_bytes: int = MOST_WHOLE,
) -> T:
    """Parse a document of type `shape`; messages begin with `origin` and end with `remedy`.

    Raises ValueError if it is not JSON, is larger than `most_bytes`, is nested deeper than `MOST_DEPTH` or has a lone
    surrogate, and naming the path of the first value of the wrong type.
    """
    if (size := len(content)) > most_bytes:
        raise ValueError(_with_remedy(f"{origin}: {size:,} bytes of JSON, and at most {most_bytes:,} are read", remedy))
    try:
        value = json.loads(content)
    except RecursionError:
        raise _too_deep(origin, remedy) from None
    except ValueError as error:  # also from int(), for a number of too many digits
        raise ValueError(_with_remedy(f"{origin}: not JSON ({error})", remedy)) from None
    if _is_deep(value):
        raise _too_deep(origin, remedy)
    if _has_lone_surrogate(content, value):
        raise ValueError(_with_remedy(f"{origin}: a string has a lone surrogate, which is not valid Unicode", remedy))
    return checked(value, shape, origin, remedy=remedy)


def checked(value: Any, shape: type[T] | Any, origin: str, *, remedy: str = "") -> T:
    """Return the value if it is of type `shape`. Raises ValueError naming the path of the first part that is not."""
    misfit = next(_misfits(value, shape, ""), None)
    if misfit is None:
        return cast("T", value)
    if misfit.value is _MISSING:
        raise ValueError(_with_remedy(f"{origin}: no {misfit.path}, which is {misfit.expected}", remedy))
    at = f"{misfit.path} is" if misfit.path else "it holds"
    raise ValueError(_with_remedy(f"{origin}: {at} {_excerpt(misfit.value)}, not {misfit.expected}", remedy))


def _with_remedy(message: str, remedy: str) -> str:
    return f"{message}; {remedy}" if remedy else message


def _excerpt(value: Any) -> str:
    """The beginning of a value in JSON."""
    if isinstance(value, dict | list):
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _too_deep(origin: str, remedy: str) -> ValueError:
    return ValueError(_with_remedy(f"{origin}: JSON nested deeper than {MOST_DEPTH} lists and mappings", remedy))


def _has_lone_surrogate(content: bytes | str, value: Any) -> bool:
    """Whether a string has a lone surrogate, such as U+D800, which no encoding can write."""
    if not (_SURROGATE.search(content) if isinstance(content, str) else _SURROGATE_BYTES.search(content)):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_deep(value: Any) -> bool:
    """Whether lists and mappings are nested deeper than `MOST_DEPTH`, level by level."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _misfits(value: Any, kind: Any, path: str) -> Iterator[Misfit]:
    """Yield the parts of a value that are of the wrong type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin is Annotated:
        base, between = inner
        misfits = list(_misfits(value, base, path))
        size = value if isinstance(value, int | float) else len(value) if isinstance(value, str | list) else 0
        if not misfits and not between.least <= size <= between.most:
            misfits = [Misfit(path, value, _name(kind))]
        yield from misfits
    elif is_typeddict(kind):
        yield from _misfits_of_keys(value, kind, path)
    elif origin is list and isinstance(value, list):
        for number, part in enumerate(value):
            yield from _misfits(part, inner[0], f"{path}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, part in value.items():
            yield from _misfits(part, inner[1], _within(path, key))
    elif not _fits(value, kind, origin, inner, path):
        yield Misfit(path, value, _name(kind))


def _misfits_of_keys(value: Any, kind: Any, path: str) -> Iterator[Misfit]:
    if not isinstance(value, dict):
        yield Misfit(path, value, _name(dict))
        return
    for key, hint in _hints(kind).items():
        may_lack = get_origin(hint) is NotRequired
        hint = get_args(hint)[0] if may_lack else hint
        if key in value:
            yield from _misfits(value[key], hint, _within(path, key))
        elif not may_lack:
            yield Misfit(_within(path, key), _MISSING, _name(hint))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, kind: Any, origin: Any, inner: tuple[Any, ...], path: str) -> bool:
    """Whether a value is of a type without parts: int counts as float, bool does not count as int."""
    if origin in (Union, UnionType):
        return any(next(_misfits(value, option, path), None) is None for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if kind is float:
        return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max
    return type(value) is (type(None) if kind is None else kind)


def _within(path: str, key: str) -> str:
    return f"{path}.{key[:_SHOWN]}" if path else key[:_SHOWN]


def _name(kind: Any) -> str:
    """Describe a type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        (base, between) = inner
        unit = {str: " of {} characters", list: " of {} elements"}.get(get_origin(base) or base, " in {}")
        least, most = between.least, between.most
        span = f"{least:,}" if least == most else f"{least:,} or more" if most == math.inf else f"{least:,} to {most:,}"
        return _name(base) + unit.format(span)
    if origin in (Union, UnionType):
        return " or ".join(map(_name, inner))
    if origin is Literal:
        return " or ".join(map(json.dumps, inner))
    return _NAMES.get(origin or (dict if is_typeddict(kind) else kind), str(kind))
