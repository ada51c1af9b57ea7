"""Recipes: Python files with `config() -> Config`, and the command line's overrides, which win over them."""

from __future__ import annotations

import difflib
import inspect
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bertjax.config.run import Config
from bertjax.config.values import check_types

T = TypeVar("T")


def variant_of(variants: Mapping[str, T], name: str) -> T:
    """What a recipe has under the name of a variant. Raises ValueError for another name, with the list."""
    if name not in variants:
        raise ValueError(f"variant {name!r} is unknown; this recipe has {', '.join(variants)}")
    return variants[name]


def load_recipe(recipe: str | Path) -> Config:
    """Return the `Config` that a recipe makes: a file, or `FILE.py:VARIANT` for one of a file that has several.

    Raises ValueError if the file is missing or has no `config`, if its code raises an exception (named with file and
    line), if `config()` returns something else, and for a value of the wrong type.
    """
    file, colon, variant = str(recipe).partition(".py:")
    path = Path(f"{file}.py" if colon else file)
    if not path.is_file():
        known = sorted(str(p) for p in path.parent.glob("*.py") if p.is_file()) if path.parent.is_dir() else []
        near = difflib.get_close_matches(str(path), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"recipes beside it: {', '.join(known) or 'none'}"
        raise ValueError(f"recipe {path}: no such file; {hint}")
    # A recipe may build on one beside it.
    sys.path.insert(0, str(path.parent))
    before = set(sys.modules)
    try:
        with _errors_placed(path):
            make = runpy.run_path(str(path)).get("config")
    finally:
        sys.path.remove(str(path.parent))
        # Another folder may have a recipe of the same name.
        for name in [n for n, m in sys.modules.items() if n not in before and _is_in(path.parent, m)]:
            del sys.modules[name]
    if not callable(make):
        raise ValueError(f"recipe {path}: it defines no function `config`; write `def config() -> Config: ...`")
    if colon and not inspect.signature(make).parameters:
        raise ValueError(f"recipe {path}: it has no variants; leave out {variant!r}")
    with _errors_placed(path):
        made = make(variant) if colon else make()
    if not isinstance(made, Config):
        raise ValueError(f"recipe {path}: config() returned {type(made).__name__}, not bertjax.config.Config")
    check_types(made, f"recipe {path}: ")
    return made


@contextmanager
def _errors_placed(recipe: Path) -> Iterator[None]:
    """While entered, an exception of a recipe's code becomes a ValueError that names the file and line."""
    try:
        yield
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise ValueError(f"recipe {error.filename or recipe}{line}: it is not valid Python: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if Path(frame.filename).resolve().parent == recipe.parent.resolve()]
        place = f"{ours[-1].filename}, line {ours[-1].lineno}" if ours else str(recipe)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"recipe {place}: {kind}{error}") from error


def _is_in(folder: Path, module: Any) -> bool:
    return Path(getattr(module, "__file__", None) or "/").resolve().parent == folder.resolve()


def override(config: Config, arguments: Sequence[str], prog: str) -> Config:
    """Apply command-line overrides (`--optimizer.learning-rate 1e-4`) to a config.

    An unknown key or a value of the wrong type ends the program with exit code 2 and names the nearest key.
    """
    import tyro

    return tyro.cli(
        type(config),
        default=config,
        args=list(arguments),
        prog=prog,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        description="",
    )
