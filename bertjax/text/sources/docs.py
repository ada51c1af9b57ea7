"""The `docs` source: English prose from the docstrings of the installed Python packages and the standard library.

Modules are parsed with `ast`, never imported. The same versions give the same bytes on any filesystem. A unit of work
is a package, or a part of a large one; paragraphs are deduplicated within a unit, so that units do not depend on each
other or on the number of processes.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.docs_prose import prose
from bertjax.text.sources.source import Paragraphs, Source, SourceFile, SourceKind

UNIT_BYTES = 3_000_000  # of source code; about half a second of work
STANDARD_LIBRARY = "stdlib"

# tests, copies of other packages, generated interfaces
_SKIPPED_FOLDER = re.compile(
    r"__pycache__|_?tests?|_?testing|idlelib|lib2to3|turtledemo|site-packages|dist-packages"
    r"|_?vendor(?:ed)?|externs?|externals|third_party|_bundled|_api|_tf_keras"
)
_SKIPPED_FILE = re.compile(r"test_.*|.*_tests?|.*_pb2|.*_pb2_grpc|conftest")
_LEAST_SENTENCES, _LEAST_CHARACTERS = 3, 200  # of a document


def units(packages: str = "") -> list[tuple[str, tuple[str, ...]]]:
    """(name, module files) of every unit of packages, which are import names separated by commas.

    No names mean all installed packages and the standard library (`stdlib`). Raises ValueError for a package that is
    not installed, with the nearest name.
    """
    installed = _installed()
    names = [name.strip() for name in packages.split(",") if name.strip()] or sorted(installed)
    found_units = []
    for name in sorted(set(names)):
        if name not in installed:
            near = difflib.get_close_matches(name, installed, 1)
            hint = f"did you mean {near[0]}?" if near else "use names as they are imported"
            raise ValueError(f"source docs:{packages}: no package {name!r} in this environment; {hint}")
        parts = _parts(_modules(installed[name]))
        found_units += [(f"{name}[{n}]" if len(parts) > 1 else name, part) for n, part in enumerate(parts)]
    return found_units


def find(source: Source) -> list[SourceFile]:
    """Find the units of the packages. Raises ValueError like `units`."""
    return [SourceFile(source.kind, name, members) for name, members in units(source.pattern)]


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the documents of a unit, one for each module and class."""
    seen: set[str] = set()
    for path in file.members:
        for docstrings in _documents(path, counts):
            paragraphs = []
            for paragraph in (paragraph for docstring in docstrings for paragraph in prose(docstring)):
                if paragraph not in seen:
                    seen.add(paragraph)
                    paragraphs.append(paragraph)
            text = " ".join(paragraphs)
            if len(text) >= _LEAST_CHARACTERS and text.count(". ") + 1 >= _LEAST_SENTENCES:
                yield from paragraphs
                yield None


def _installed() -> dict[str, str]:
    """Import name -> file or folder, of everything in site-packages except this package."""
    paths = sysconfig.get_paths()
    packages = {STANDARD_LIBRARY: paths["stdlib"]}
    for root in dict.fromkeys((paths["purelib"], paths["platlib"])):
        for entry in os.listdir(root):
            name = entry.removesuffix(".py")
            path = os.path.join(root, entry)
            if name.isidentifier() and (name != entry or os.path.isdir(path)) and not name.startswith("__"):
                packages.setdefault(name, path)
    packages.pop("bertjax", None)
    return packages


def _modules(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    modules = []
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not _SKIPPED_FOLDER.fullmatch(name)]
        for name in files:
            stem, suffix = os.path.splitext(name)
            if suffix == ".py" and not _SKIPPED_FILE.fullmatch(stem):
                modules.append(os.path.join(folder, name))
    return sorted(modules, key=lambda module: module.split(os.sep))


def _parts(modules: list[str]) -> list[tuple[str, ...]]:
    """Group successive modules to about `UNIT_BYTES` each."""
    parts: list[list[str]] = []
    size = UNIT_BYTES
    for module in modules:
        if size >= UNIT_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(module)
        size += os.path.getsize(module)
    return [tuple(part) for part in parts]


def _documents(path: str, counts: ReadCounts) -> Iterator[list[str]]:
    """Yield the docstrings of a module and its functions, then those of each class and its methods."""
    with open(path, "rb") as stream:
        code = stream.read()
    if b'"""' not in code and b"'''" not in code:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escape sequences
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        counts.unreadable_modules += 1  # for another version of Python, or a template
        return
    classes: list[ast.Module | ast.ClassDef] = [tree]
    for node in classes:
        docstrings = []
        for inner in _definitions(node):
            if isinstance(inner, ast.ClassDef):
                classes.append(inner)
            else:
                docstrings.append(ast.get_docstring(inner, clean=False))
        own = ast.get_docstring(node, clean=False)
        yield [docstring for docstring in (own, *docstrings) if docstring]


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the functions and classes of a body, also under `if` and `try`, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _definitions(child)


KIND = SourceKind("docs", read, example="numpy,jax", default_pattern="", find=find, is_english=True)
