"""Read JSON that may be damaged or hostile, with bounded size and depth, and check each value's declared type.

Supported types are `int`, `float`, `str`, `bool`, `None`, `Any`, `list[T]`, `dict[str, T]`, `Literal`, unions, a
`TypedDict` whose keys may be `NotRequired`, and `Annotated[int, Between(1, 9)]`. Keys of a mapping that its TypedDict
lacks are allowed, and their values are not checked.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Callable
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

MOST_DEPTH = 64  # of nested lists and mappings, so that functions may descend recursively
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
    """Bounds on a number, on the length of a list, or on the length of a string."""

    least: float
    most: float = math.inf


Count = Annotated[int, Between(0, 2**48)]  # of bytes or elements; sums and products fit into int64
Sha256 = Annotated[str, Between(64, 64)]  # in hex


class Mismatch(NamedTuple):
    """A value of the wrong type: the keys and positions that lead to it, and the expected type in words."""

    steps: tuple[str | int, ...]
    value: Any
    expected: str

    def inside(self, step: str | int) -> Mismatch:
        """Prepend the key or position at which an outer mapping or list holds the value."""
        return self._replace(steps=(step, *self.steps))

    @property
    def path(self) -> str:
        """The position of the value in the document, such as `files[0].bytes`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN]}" for step in self.steps)
        return "".join(steps).removeprefix(".")


def read_json(
    path: AnyPath, shape: type[T] | Any = dict[str, Any], *, remedy: str = "", most_bytes: int = MOST_WHOLE
) -> T:
    """Read a JSON file. Raises ValueError like `parse_json`, and OSError if the file cannot be read."""
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

    Raises ValueError if it is not JSON, is larger than `most_bytes`, is nested deeper than `MOST_DEPTH`, has a lone
    surrogate, or has a value of the wrong type, whose path the message names.
    """
    if (size := len(content)) > most_bytes:
        raise ValueError(_with_remedy(f"{origin}: {size:,} bytes of JSON, more than {most_bytes:,}", remedy))
    try:
        value = json.loads(content)
    except RecursionError:
        raise _too_deep(origin, remedy) from None
    except ValueError as error:  # also from int(), for a number with too many digits
        raise ValueError(_with_remedy(f"{origin}: not JSON ({error})", remedy)) from None
    if _is_deep(value):
        raise _too_deep(origin, remedy)
    if _has_lone_surrogate(content, value):
        raise ValueError(_with_remedy(f"{origin}: a string has a lone surrogate, which is not valid Unicode", remedy))
    return checked(value, shape, origin, remedy=remedy)


def checked(value: Any, shape: type[T] | Any, origin: str, *, remedy: str = "") -> T:
    """Return the value if it is of type `shape`. Raises ValueError naming the path of the first part that is not."""
    if (mismatch := _check(shape)(value)) is None:
        return cast("T", value)
    if mismatch.value is _MISSING:
        raise ValueError(_with_remedy(f"{origin}: {mismatch.path} is missing and must be {mismatch.expected}", remedy))
    subject = f"{mismatch.path} is" if mismatch.path else "it holds"
    raise ValueError(_with_remedy(f"{origin}: {subject} {_excerpt(mismatch.value)}, not {mismatch.expected}", remedy))


def _with_remedy(message: str, remedy: str) -> str:
    return f"{message}; {remedy}" if remedy else message


def _excerpt(value: Any) -> str:
    """Shorten a value in JSON for a message."""
    if isinstance(value, dict | list):
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _too_deep(origin: str, remedy: str) -> ValueError:
    return ValueError(_with_remedy(f"{origin}: JSON nested deeper than {MOST_DEPTH} lists and mappings", remedy))


def _has_lone_surrogate(content: bytes | str, value: Any) -> bool:
    """Whether a string has a lone surrogate, such as U+D800, which no encoding can write."""
    if isinstance(content, bytes) and b"\\u" not in content and b"\xed" not in content:
        return False  # ten times faster than the pattern
    if not (_SURROGATE.search(content) if isinstance(content, str) else _SURROGATE_BYTES.search(content)):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_deep(value: Any) -> bool:
    """Whether lists and mappings are nested deeper than `MOST_DEPTH`, level by level."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


@functools.cache
def _check(kind: Any) -> Callable[[Any], Mismatch | None]:
    """Build the check for a type: it returns the first part of a value that has the wrong type."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return functools.partial(_check_keys, kind)
    if origin is Annotated:
        return functools.partial(_check_bounds, _check(inner[0]), inner[1], _name(kind))
    if origin is list:
        return functools.partial(_check_elements, _check(inner[0]))
    if origin is dict:
        return functools.partial(_check_values, _check(inner[1]))
    fits, expected = _leaf_test(kind, origin, inner), _name(kind)
    return lambda value: None if fits(value) else Mismatch((), value, expected)


def _check_keys(kind: Any, value: Any) -> Mismatch | None:
    if not isinstance(value, dict):
        return Mismatch((), value, _name(dict))
    for key, check, is_required, expected in _fields(kind):
        if key in value:
            if mismatch := check(value[key]):
                return mismatch.inside(key)
        elif is_required:
            return Mismatch((key,), _MISSING, expected)
    return None


@functools.cache
def _fields(kind: Any) -> list[tuple[str, Callable[[Any], Mismatch | None], bool, str]]:
    """List (name, check, whether it is required, type in words) for each key of a TypedDict."""
    fields = []
    for key, hint in get_type_hints(kind, include_extras=True).items():
        is_required = get_origin(hint) is not NotRequired
        hint = hint if is_required else get_args(hint)[0]
        fields.append((key, _check(hint), is_required, _name(hint)))
    return fields


def _check_bounds(
    check: Callable[[Any], Mismatch | None], between: Between, expected: str, value: Any
) -> Mismatch | None:
    if mismatch := check(value):
        return mismatch
    size = value if isinstance(value, (int, float)) else len(value) if isinstance(value, (str, list)) else 0
    return None if between.least <= size <= between.most else Mismatch((), value, expected)


def _check_elements(check: Callable[[Any], Mismatch | None], value: Any) -> Mismatch | None:
    if not isinstance(value, list):
        return Mismatch((), value, _name(list))
    return next((mismatch.inside(number) for number, part in enumerate(value) if (mismatch := check(part))), None)


def _check_values(check: Callable[[Any], Mismatch | None], value: Any) -> Mismatch | None:
    if not isinstance(value, dict):
        return Mismatch((), value, _name(dict))
    return next((mismatch.inside(key) for key, part in value.items() if (mismatch := check(part))), None)


def _leaf_test(kind: Any, origin: Any, inner: tuple[Any, ...]) -> Callable[[Any], bool]:
    """Build the test for a type without parts: int counts as float, bool does not count as int."""
    if kind is Any:
        return lambda value: True
    if origin in (Union, UnionType):
        options = [_check(option) for option in inner]
        return lambda value: any(check(value) is None for check in options)
    if origin is Literal:
        return lambda value: any(type(value) is type(option) and value == option for option in inner)
    if kind is float:
        return lambda value: type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max
    exact = type(None) if kind is None else kind
    return lambda value: type(value) is exact


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
