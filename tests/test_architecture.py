"""Import rules, from the table of floors in bertjax/README.md, and further rules that ruff does not have.

A rule is a function from a file to complaints of the form `file:line: problem; remedy`. Each is also tested with
snippets that break it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "bertjax"
FIRST_FLOOR_WITH_JAX = 5
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
OUTPUT_FOLDERS = {"data", "runs", "build"}
# Split, so that this file itself passes.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:" + "|".join(("work", "home", "root", "Users")) + r")/\w")
POSSESSIVE_GROUP = re.compile(r"""\)(?:[+*?]|\{[\d,]+\})\+(?=["'()\[\\]|\||\$)|\(\?>""")
PICKLE_ALLOWED = re.compile(r"allow_pickle=(?!False)\w+")

Complaints = Iterator[str]


def read_floors() -> dict[str, int]:
    """Room, or file with its own floor -> floor."""
    readme = (REPOSITORY / PACKAGE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (`bertjax/[^|]*) \|", readme, re.M)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`bertjax/([\w/]+?)(?:/|\.py)`", rooms)}


FLOORS = read_floors()


@dataclass(frozen=True)
class Source:
    """A file of the repository."""

    path: PurePosixPath
    text: str

    @cached_property
    def room(self) -> str:
        """`text` for bertjax/text/store.py, `loaded` for bertjax/loaded.py, `run/pretrain` for a file with a floor."""
        return room_of("/".join(self.path.parts[1:]).removesuffix(".py").split("/"))

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path}:{line}: {complaint}"


def room_of(parts: list[str]) -> str:
    """The room of a module, given as the names below `bertjax`."""
    return "/".join(parts[:2]) if "/".join(parts[:2]) in FLOORS else parts[0]


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """All imports, also inside functions, as possible dotted names: `from a import b` yields a and a.b."""
    package = source.path.parts[:-1]
    for node in ast.walk(ast.parse(source.text, str(source.path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def imports_only_from_below(source: Source) -> Complaints:
    floor = FLOORS.get(source.room)
    if floor is None:
        yield source.at(1, f"room {source.room!r} has no floor; give it one in {PACKAGE}/README.md")
        return
    for line, name in imports(source):
        package, *parts = name.split(".")
        if package == PACKAGE and parts and (room := room_of(parts)) not in (source.room, "__init__"):
            other = FLOORS.get(room)
            if other is not None and other >= floor:
                where = f"floor {floor} ({source.room}) imports {name} of floor {other}"
                yield source.at(line, f"{where}; move shared code to a lower floor, or pass it as an argument")


def no_jax_below(source: Source) -> Complaints:
    if FLOORS.get(source.room, 0) < FIRST_FLOOR_WITH_JAX:
        for line, name in imports(source):
            if name.split(".")[0] in JAX:
                yield source.at(line, f"imports {name} below floor {FIRST_FLOOR_WITH_JAX}; use NumPy")


def no_pickled_arrays(source: Source) -> Complaints:
    yield from _lines(source, PICKLE_ALLOWED, "pickled arrays can run code; store plain ones")


def no_possessive_group(source: Source) -> Complaints:
    """Python before 3.11.5 matches possessive groups wrongly if they backtrack inside."""
    yield from _lines(source, POSSESSIVE_GROUP, "a possessive or atomic group; make it greedy")


def no_path_of_a_machine(source: Source) -> Complaints:
    yield from _lines(source, MACHINE_PATH, "a path of one machine; make it relative or configurable")


def no_vague_name(source: Source) -> Complaints:
    if source.path.stem in ("utils", "util", "helpers", "common", "misc"):
        yield source.at(1, "a name that fits any content; name the module after its content")


def _lines(source: Source, pattern: re.Pattern[str], complaint: str) -> Complaints:
    for number, line in enumerate(source.text.splitlines(), 1):
        if pattern.search(line):
            yield source.at(number, complaint)


PACKAGE_RULES = (imports_only_from_below, no_jax_below, no_pickled_arrays, no_possessive_group, no_vague_name)
RULES = (*PACKAGE_RULES, no_path_of_a_machine)


@cache
def sources() -> list[Source]:
    """The text files that git does not ignore; without git, those outside `OUTPUT_FOLDERS`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout.split("\0")
        paths = [REPOSITORY / name for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        roots = (path for path in REPOSITORY.iterdir() if path.name not in OUTPUT_FOLDERS and path.name[0] != ".")
        paths = [path for root in roots for path in (root, *root.rglob("*"))]
    texts = []
    for path in sorted(path for path in paths if path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        texts.append(Source(PurePosixPath(path.relative_to(REPOSITORY).as_posix()), text))
    return texts


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_follows_the_rule(rule):
    package = [source for source in sources() if source.path.parts[0] == PACKAGE and source.path.suffix == ".py"]
    complaints = [line for source in (package if rule in PACKAGE_RULES else sources()) for line in rule(source)]
    assert len(package) > 100
    assert not complaints, "\n" + "\n".join(complaints)


def test_py_typed_is_installed(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="needs setuptools, which builds the wheel")
    monkeypatch.chdir(REPOSITORY)
    distribution = setuptools.Distribution()
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    installed = {f"{folder}/{name}" for _, folder, _, names in build.data_files for name in names}
    assert any(path.endswith("bertjax/py.typed") for path in installed), installed


# Lines that break the rule end in `# BAD`.
SNIPPETS = [
    (imports_only_from_below, "bertjax/text/store.py", "from bertjax.input import plan  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "import bertjax.training.step as step  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "from bertjax import model  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "from ..model import bert  # BAD\nfrom .. import model  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "def f():\n    import bertjax.model  # BAD"),
    (imports_only_from_below, "bertjax/run/loop.py", "from bertjax.run.pretrain import pretrain  # BAD"),
    (imports_only_from_below, "bertjax/model/network.py", "from bertjax.__main__ import main  # BAD"),
    (imports_only_from_below, "bertjax/attic/old.py", "x = 1  # BAD"),
    (imports_only_from_below, "bertjax/input/plan.py", "import bertjax\nfrom bertjax import __version__, text, config"),
    (imports_only_from_below, "bertjax/input/plan.py", "from . import masking\nfrom bertjax.input.masking import mask"),
    (imports_only_from_below, "bertjax/__main__.py", "from bertjax.convert import huggingface"),
    (no_jax_below, "bertjax/input/plan.py", "import jax.numpy as jnp  # BAD\nimport numpy"),
    (no_jax_below, "bertjax/config/run.py", "def f():\n    from flax import nnx  # BAD\nfrom . import jax_free"),
    (no_jax_below, "bertjax/parallel/mesh.py", "import jax, optax"),
    (no_pickled_arrays, "bertjax/a.py", "np.load(path, allow_pickle=True)  # BAD\nnp.load(p, allow_pickle=False)"),
    (no_possessive_group, "bertjax/a.py", "re.compile('(?:a|b c?)" + "++')  # BAD\nre.compile('(?" + ">a)')  # BAD"),
    (no_possessive_group, "bertjax/a.py", "re.compile('(?:[ab]++|c)*')\nx = f(a)+ +b"),
    (no_vague_name, "bertjax/text/utils.py", "x = 1  # BAD"),
    (no_vague_name, "bertjax/text/units.py", "x = 1"),
    (no_path_of_a_machine, "README.md", "see " + "/wor" + "k/shared/data  # BAD\nand '/ho" + "me/me/text'  # BAD"),
    (no_path_of_a_machine, "README.md", "https://example.org/ro" + "ot/x and ./wo" + "rk/x and runs/ho" + "me/x"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), SNIPPETS)
def test_rule_finds_violations(rule, path, text):
    bad = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# BAD")]
    assert sorted({int(complaint.split(":")[1]) for complaint in rule(Source(PurePosixPath(path), text))}) == bad
