"""Recipes: Python files with `config() -> Config`, and command-line overrides, which win over them.

The package's recipes are in `bertjax/recipes`, in the repository a link to configs/, and are loaded by name. A user's
own recipe is loaded by its path.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
import runpy  # noqa: TID251
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bertjax.config.plugins import collected, errors_located, file_plugin, trust
from bertjax.config.registry import Registry
from bertjax.config.run import Config
from bertjax.config.values import check_types, flatten, to_dict

T = TypeVar("T")
C = TypeVar("C", bound=Config)

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
_SECTION = re.compile(r"(?<=\n)([A-Z][a-z]+): ")  # the first line is the title, whatever it begins with


class UnknownVariantError(ValueError):
    """A recipe has no variant of that name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"variant {name!r} is unknown; this recipe has {', '.join(known)}{hint}")
        self.known = tuple(known)


def get_variant(variants: Mapping[str, T], name: str) -> T:
    """Return a recipe's variant by name. Raises UnknownVariantError, with the known names, for an unknown one."""
    if name not in variants:
        raise UnknownVariantError(name, list(variants))
    return variants[name]


@functools.cache
def recipes() -> Registry[Path | ModuleType]:
    """Recipes by name: quickstart, the other files of the package, then plug-ins."""
    names = sorted((path.stem for path in RECIPES.glob("*.py")), key=lambda name: (name != "quickstart", name))
    return Registry("recipes", {name: RECIPES / f"{name}.py" for name in names})


def recipe_names() -> tuple[str, ...]:
    """The names of the recipes of the package and of named plug-ins."""
    return recipes().at_hand()


def recipe_file(recipe: str | Path) -> tuple[Path, str | None]:
    """Return (the file of a recipe, the variant after the colon or None).

    `quickstart` and `roberta:large` are recipes of the package, `./my.py` and `my.py:small` files; nothing is both.
    Case, `-` and `_` do not matter in names of the package: `ModernBERT` is modernbert. Raises ValueError for an
    unknown name and for a missing file.
    """
    text = str(recipe)
    if not ("/" in text or text.startswith(".") or text.endswith(".py") or ".py:" in text):
        name, colon, variant = text.partition(":")
        full_names = {_folded(full): full for full in recipe_names()}
        name = full_names.get(_folded(name), name)
        if name not in recipes():
            raise ValueError(f"recipe {text!r} is unknown; {_nearest_name(name)}")
        member = recipes()[name]
        path = member if isinstance(member, Path) else Path(member.__file__ or name)
        return path, variant if colon else None
    file, colon, variant = text.partition(".py:")
    path = Path(f"{file}.py" if colon else file)
    if not path.is_file():
        raise ValueError(f"recipe {path}: {_why_no_file(path)}")
    return path, variant if colon else None


def names_recipe(word: str) -> bool:
    """Whether a command-line word is a recipe rather than an option or a value."""
    folded = _folded(word.partition(":")[0])
    return not word.startswith("-") and (".py" in word or folded in map(_folded, recipe_names()))


def _nearest_name(name: str) -> str:
    if Path(f"{name}.py").is_file():
        return f"for the file of that name, write ./{name}.py"
    near = _near_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(recipe_names())};"
    return f"{hint} to use your own recipe, give its file, as in ./my.py"


def _near_names(name: str) -> list[str]:
    """All recipes of a family if the name is their first word, as in bert_base; else the most similar name."""
    family = [full for full in recipe_names() if full.partition("_")[0] == name.lower()]
    full_names = {_folded(full): full for full in recipe_names()}
    return family or [full_names[match] for match in difflib.get_close_matches(_folded(name), full_names, 1)]


def _folded(name: str) -> str:
    """A recipe's name without case, `-` and `_`."""
    return name.lower().replace("-", "").replace("_", "")


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return "it is a folder; name a file in it"
    if path.stem in recipe_names():
        return f"no such file; the package has this recipe as {path.stem}"
    neighbours = sorted(str(p) for p in path.parent.glob("*.py") if p.is_file()) if path.parent.is_dir() else []
    near = difflib.get_close_matches(str(path), neighbours, 1)
    hint = f"did you mean {near[0]}?" if near else f"recipes next to it: {', '.join(neighbours) or 'none'}"
    return f"no such file; {hint}"


def load_recipe(recipe: str | Path) -> Config:
    """Return the `Config` of a recipe: a name from the package or a file, either with `:VARIANT`.

    Raises ValueError if the recipe is unknown, if the file has no `config`, if its code raises an exception (named with
    file and line), if `config()` returns something else, and for a value of the wrong type.
    """
    path, variant = recipe_file(recipe)
    plugin = file_plugin(path)
    with collected(plugin):
        make = _config_function(path)
        if variant is not None and not inspect.signature(make).parameters:
            raise ValueError(f"recipe {path}: it has no variants; leave out {variant!r}")
        with _errors_located(path):
            config = make() if variant is None else make(variant)
    if not isinstance(config, Config):
        raise ValueError(f"recipe {path}: config() returned {type(config).__name__}, not bertjax.config.Config")
    check_types(config, f"recipe {path}: ")
    if plugin.members:  # the recipe is a plug-in too, without which the run cannot be opened
        trust(plugin)
        config = replace(config, plugins=(*config.plugins, str(plugin)))
    return config


def variant_names(recipe: str | Path) -> tuple[str, ...]:
    """The names of a recipe's variants, the default first; empty if it makes only one config."""
    path = recipe_file(recipe)[0]
    with collected(file_plugin(path)):
        make = _config_function(path)
    parameters = list(inspect.signature(make).parameters.values())
    if not parameters:
        return ()
    try:
        make("")
    except UnknownVariantError as error:
        return tuple(sorted(error.known, key=lambda name: name != parameters[0].default))
    return ()


def _config_function(path: Path) -> Callable[..., Any]:
    """Run a recipe file and return its function `config`."""
    # A recipe may import others from its folder.
    sys.path.insert(0, str(path.parent))
    before = set(sys.modules)
    try:
        with _errors_located(path):
            make = runpy.run_path(str(path)).get("config")
    finally:
        sys.path.remove(str(path.parent))
        # Another folder may have a recipe of the same name.
        for name in [n for n, m in sys.modules.items() if n not in before and _is_in(path.parent, m)]:
            del sys.modules[name]
    if not callable(make):
        raise ValueError(f"recipe {path}: it defines no function `config`; write `def config() -> Config: ...`")
    return make


@contextmanager
def _errors_located(recipe: Path) -> Iterator[None]:
    """Turn an exception in a recipe's code into a ValueError with file and line."""
    try:
        with errors_located("recipe", recipe, UnknownVariantError):
            yield
    except UnknownVariantError as error:
        raise ValueError(f"recipe {recipe if recipe.parent != RECIPES else recipe.stem}: {error}") from error


def _is_in(folder: Path, module: Any) -> bool:
    return Path(getattr(module, "__file__", None) or "/").resolve().parent == folder.resolve()


@dataclass(frozen=True)
class Description:
    """The docstring of a recipe: its title, and its sections, such as Reproduces and Cost."""

    title: str
    sections: Mapping[str, str]


def describe_recipe(recipe: str | Path) -> Description:
    """Read the docstring of a recipe, without running it. Raises ValueError as `recipe_file`, or for invalid Python."""
    path, _ = recipe_file(recipe)
    with _errors_located(path):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), str(path))) or ""
    title, *parts = _SECTION.split(text)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return Description(" ".join(title.split()), {name: " ".join(body.split()) for name, body in sections})


def override(config: C, arguments: Sequence[str], prog: str) -> C:
    """Apply command-line overrides (`--optimizer.learning-rate 1e-4`) to a config.

    An unknown key or a value of the wrong type ends the program with exit code 2 and names the nearest key.
    """
    _refuse_misplaced_keys(config, arguments, prog)
    import tyro

    return tyro.cli(
        type(config),
        default=config,
        args=list(arguments),
        prog=prog,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        description="",
    )


def _refuse_misplaced_keys(config: Config, arguments: Sequence[str], prog: str) -> None:
    """End the program with exit code 2 for a key without its section or in another one, and name the whole key.

    As in `--steps 100` and `--training.learning-rate 1e-4`.
    """
    keys = ["help", *flatten(to_dict(config))]
    for word in arguments:
        name = word[2:].partition("=")[0].replace("-", "_")
        if not word.startswith("--") or not name or name in keys or name.startswith("stages."):
            continue
        own = name.rpartition(".")[2]
        matches = [key for key in keys if key.endswith(f".{own}")]
        if "." not in name:
            matches = matches or [key for key in keys if key.endswith(f"_{own}")]
        if matches:
            matches.sort(key=lambda key: not key.startswith("training."))
            options = " or ".join(f"--{key.replace('_', '-')}" for key in matches)
            print(f"{prog}: {word} is unknown; did you mean {options}?", file=sys.stderr)
            sys.exit(2)
