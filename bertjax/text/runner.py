"""What prepares units of text: processes of this machine (`pool`), or a cluster (`beam`); the results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from bertjax.text.corpus import Unit

Result = TypeVar("Result")


class Runner(Protocol):
    """Applies a function to units, wherever that is."""

    def __call__(
        self, function: Callable[[Unit], Result], units: Sequence[Unit], what: str
    ) -> Iterator[tuple[Unit, Result]]:
        """Yield (unit, function(unit)) once for every unit, in any order.

        `function` must be a module's or a partial of one, and may be called more than once for a unit; its results are
        JSON values. `what` names the work in messages. Raises ValueError as `function` does, RuntimeError naming files
        or folders for what goes wrong otherwise.
        """
        ...
