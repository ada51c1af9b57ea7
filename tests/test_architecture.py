"""The rules of the house, checked on every source file: who may import whom, what no file may do, how it is written.

Each rule is a function from a parsed file to complaints of the form `file:line: what is wrong; what to do`; the second
half of this file shows every rule a file that breaks it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "bertjax"

FLOORS = {
    "config": 0,
    "storage": 1,
    "tokenization": 2,
    "text": 3,
    "input": 4,
    "parallel": 5,
    "runtime": 5,
    "families": 6,
    "model": 7,
    "training": 8,
    "run": 9,
    "report": 10,
    "finetune": 11,
    "convert": 12,
    "inspect": 12,
    "interpret": 12,
    "embed": 12,
    "plan": 12,
    "search": 13,
    "loaded": 14,
    "pipeline": 14,
    "run/pretrain": 15,  # the entry of a run stands above all that it uses
    "cli": 16,
    "__init__": 17,  # what `import bertjax` gives; it imports what it names only when that is used
    "__main__": 17,
}
FIRST_FLOOR_WITH_JAX = 5
POSSESSIVE_GROUP = re.compile(r"""\)(?:[+*?]|\{[\d,]+\})\+(?=["'()\[\\]|\||\$)|\(\?>""")
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
TENSORFLOW = {"tensorflow", "tensorflow_datasets"}
CODE_IN_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RESTRICTED_UNPICKLER = PurePosixPath("bertjax/convert/huggingface/torch_reader.py")
DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc"}
NOT_OURS = {"data", "runs", "build"}
# Pieces, so that this file passes its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:" + "|".join(("work", "home", "root", "Users")) + r")/\w")

Complaints = Iterator[str]


@dataclass(frozen=True)
class Source:
    """A Python file: its path within the repository and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def room(self) -> str:
        """`text` for bertjax/text/store.py, `config` for bertjax/config.py, `run/pretrain` for a file with a floor."""
        file = "/".join(self.path.parts[1:3]).removesuffix(".py")
        return file if file in FLOORS else self.path.parts[1].removesuffix(".py")

    def at(self, node: ast.AST | int, complaint: str) -> str:
        return f"{self.path}:{node if isinstance(node, int) else node.lineno}: {complaint}"


def imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every import wherever it stands, as the dotted names it may mean: `from a import b` is a and a.b."""
    package = source.path.parts[:-1]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node, base
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def imports_only_from_below(source: Source) -> Complaints:
    floor = FLOORS.get(source.room)
    if floor is None:
        yield source.at(1, f"room {source.room!r} has no floor; give it one in FLOORS in {Path(__file__).name}")
        return
    for node, name in imports(source):
        package, *parts = name.split(".")
        if package != PACKAGE or not parts:
            continue
        room = "/".join(parts[:2]) if "/".join(parts[:2]) in FLOORS else parts[0]
        other = FLOORS.get(room)
        if other is not None and other >= floor and room not in (source.room, "__init__"):
            yield source.at(
                node,
                f"floor {floor} ({source.room}) imports {PACKAGE}.{'.'.join(parts)} of floor {other}; "
                "move what both need to a lower floor, or pass it in as an argument",
            )


def floors_told(text: str) -> dict[str, int]:
    """The rooms in a page's table of floors, with theirs."""
    rows = re.findall(r"^\| (\d+) \| (`bertjax/[^|]*) \|", text, re.M)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`bertjax/([\w/]+?)(?:/|\.py)`", rooms)}


def no_jax_below(source: Source) -> Complaints:
    if FLOORS.get(source.room, 0) >= FIRST_FLOOR_WITH_JAX:
        return
    for node, name in imports(source):
        if name.split(".")[0] in JAX:
            yield source.at(node, f"imports {name} below floor {FIRST_FLOOR_WITH_JAX}; use NumPy, or do it further up")


def tensorflow_only_inside_functions(source: Source) -> Complaints:
    allowed = {
        inner
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
        for inner in ast.walk(node)
    }
    for node, name in imports(source):
        if node not in allowed and name.split(".")[0] in TENSORFLOW:
            yield source.at(node, f"imports {name} when the module loads; import it inside the function that needs it")


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def data_never_runs_code(source: Source) -> Complaints:
    for node, name in imports(source):
        if name.split(".")[0] in CODE_IN_DATA and source.path != RESTRICTED_UNPICKLER:
            yield source.at(node, f"imports {name}, whose files can run code; use JSON, NumPy or safetensors")
        if name.split(".")[0] == "runpy" and source.room != "config":
            yield source.at(node, "imports runpy; only config.py runs files, and only recipes")
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in ("eval", "exec", "__import__", "builtins.eval", "builtins.exec"):
            yield source.at(node, f"calls {called}; parse the text, or use importlib with a fixed name")
        if called == "torch.load":
            yield source.at(node, "calls torch.load, which unpickles; read safetensors instead")
        if called.endswith(".load") and given.get("allow_pickle", "False") != "False":
            yield source.at(node, f"calls {called} with allow_pickle; store plain arrays")
        if given.get("shell", "False") != "False" or called in ("os.system", "os.popen"):
            yield source.at(node, f"calls {called} through a shell; use subprocess.run with a list")


def public_things_are_documented_and_typed(source: Source) -> Complaints:
    if ast.get_docstring(source.tree) is None and source.text.strip():
        yield source.at(1, "the module has no docstring; say in a line what it owns")
    yield from _documented_and_typed(source, source.tree.body, "")


def _documented_and_typed(source: Source, body: list[ast.stmt], owner: str) -> Complaints:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name, dunder = f"{owner}{node.name}", node.name.startswith("__") and node.name.endswith("__")
        if node.name.startswith("_") and not dunder:
            continue
        if not dunder and ast.get_docstring(node) is None and not _takes_over(node):
            yield source.at(node, f"public {name} has no docstring; say in a line what it is for")
        if isinstance(node, ast.ClassDef):
            yield from _documented_and_typed(source, node.body, f"{name}.")
        elif untyped := _untyped(node, method=bool(owner)):
            yield source.at(node, f"public {name} leaves {', '.join(untyped)} without a type; annotate it")


def _takes_over(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether it is an overload, a setter or an override, which the thing it belongs to documents."""
    return any(
        ast.unparse(d).split(".")[-1] in ("overload", "setter", "deleter", "override") for d in node.decorator_list
    )


def _untyped(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> list[str]:
    a = node.args
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    arguments = [*a.posonlyargs, *a.args][1 if method and not static else 0 :] + a.kwonlyargs
    arguments += [extra for extra in (a.vararg, a.kwarg) if extra is not None]
    untyped = [argument.arg for argument in arguments if argument.annotation is None]
    return untyped if node.returns is not None else [*untyped, "its result"]


def name_says_what_it_owns(source: Source) -> Complaints:
    for part in source.path.parts:
        if part.removesuffix(".py") in DRAWERS:
            yield source.at(1, f"{part} is a drawer; name the module after what it owns")


def no_path_of_a_machine(source: Source) -> Complaints:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield source.at(number, f"path of one machine ({found.group()}...); make it relative or configurable")


def no_possessive_group(source: Source) -> Complaints:
    """Python 3.11 before 3.11.5 matches a group with `++` or `*+` wrongly if there is backtracking inside."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if POSSESSIVE_GROUP.search(line):
            yield f"{source.path}:{number}: a possessive or atomic group; make it greedy, and its parts possessive"


PACKAGE_RULES: list[Callable[[Source], Complaints]] = [
    imports_only_from_below,
    no_jax_below,
    tensorflow_only_inside_functions,
    data_never_runs_code,
    public_things_are_documented_and_typed,
    no_possessive_group,
]
PYTHON_RULES = [name_says_what_it_owns]
TEXT_RULES = [no_path_of_a_machine]


def repository_files() -> list[Path]:
    """Tracked and new files that git does not ignore; where there is no git, what does not lie in `NOT_OURS`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        places = (place for place in REPOSITORY.iterdir() if place.name not in NOT_OURS and place.name[0] != ".")
        return sorted(path for place in places for path in (place, *place.rglob("*")) if path.is_file())
    return sorted(path for name in listed.split("\0") if name and (path := REPOSITORY / name).is_file())


@cache
def sources(kind: str) -> list[Source]:
    """The files a rule of this kind is about: `package`, `python` or `text`."""
    found = []
    for path in repository_files():
        relative = PurePosixPath(path.relative_to(REPOSITORY).as_posix())
        if kind != "text" and path.suffix != ".py":
            continue
        if kind == "package" and relative.parts[0] != PACKAGE:
            continue
        try:
            found.append(Source(relative, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            assert path.suffix != ".py", f"{relative} is not UTF-8"
    return found


RULES = [
    (rule, kind)
    for kind, rules in (("package", PACKAGE_RULES), ("python", PYTHON_RULES), ("text", TEXT_RULES))
    for rule in rules
]


@pytest.mark.parametrize(("rule", "kind"), RULES, ids=lambda value: getattr(value, "__name__", value))
def test_rule_holds(rule, kind):
    complaints = [complaint for source in sources(kind) for complaint in rule(source)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_every_folder_of_the_package_is_a_package():
    folders = {source.path.parent for source in sources("package")}
    lost = [
        f"{folder}: has no __init__.py, so that it is not installed; add one"
        for folder in sorted(folders)
        if not (REPOSITORY / folder / "__init__.py").is_file()
    ]
    assert not lost, "\n" + "\n".join(lost)


def test_what_is_installed_says_that_it_has_types(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="needs setuptools, which builds the wheel")
    monkeypatch.chdir(REPOSITORY)
    distribution = setuptools.Distribution()
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    found = {f"{folder}/{name}" for _, folder, _, names in build.data_files for name in names}
    assert any(path.endswith("bertjax/py.typed") for path in found), found


def test_the_readme_lists_every_floor():
    assert floors_told((REPOSITORY / PACKAGE / "README.md").read_text(encoding="utf-8")) == FLOORS


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff(arguments):
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ruff is not installed; pip install 'bertjax[test]'")
    done = subprocess.run([*ruff, *arguments, "."], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"\nruff {' '.join(arguments)}:\n{done.stdout}{done.stderr}"


# Every rule, shown what it forbids and what it lets pass. A line that must be complained of ends in `# BAD`.
TYPED = '"""M."""\n'
SNIPPETS = [
    (imports_only_from_below, "bertjax/text/store.py", "from bertjax.input import plan  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "import bertjax.training.step as step  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "from bertjax import model  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "from ..model import bert  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "from .. import model  # BAD"),
    (imports_only_from_below, "bertjax/text/store.py", "def f():\n    import bertjax.model  # BAD"),
    (imports_only_from_below, "bertjax/config.py", "from bertjax.text import store  # BAD"),
    (imports_only_from_below, "bertjax/convert/tf1.py", "from bertjax.interpret import norms  # BAD"),
    (imports_only_from_below, "bertjax/model/network.py", "from bertjax.__main__ import main  # BAD"),
    (imports_only_from_below, "bertjax/attic/old.py", "x = 1  # BAD"),
    (imports_only_from_below, "bertjax/input/plan.py", "import bertjax\nfrom bertjax import __version__, text, config"),
    (imports_only_from_below, "bertjax/input/plan.py", "from . import masking\nfrom bertjax.input.masking import mask"),
    (imports_only_from_below, "bertjax/__main__.py", "from bertjax.convert import huggingface"),
    (no_jax_below, "bertjax/input/plan.py", "import jax.numpy as jnp  # BAD"),
    (no_jax_below, "bertjax/config.py", "def f():\n    from flax import nnx  # BAD"),
    (no_jax_below, "bertjax/text/store.py", "import orbax.checkpoint as ocp  # BAD"),
    (no_jax_below, "bertjax/parallel/mesh.py", "import jax, optax"),
    (no_jax_below, "bertjax/text/store.py", "import numpy\nfrom . import jax_free"),
    (tensorflow_only_inside_functions, "bertjax/input/feed.py", "import tensorflow as tf  # BAD"),
    (tensorflow_only_inside_functions, "bertjax/convert/tf1.py", "class A:\n    from tensorflow import io  # BAD"),
    (tensorflow_only_inside_functions, "bertjax/text/a.py", "if x:\n    import tensorflow_datasets  # BAD"),
    (tensorflow_only_inside_functions, "bertjax/input/feed.py", "def f():\n    import tensorflow as tf"),
    (tensorflow_only_inside_functions, "bertjax/input/a.py", "if TYPE_CHECKING:\n    import tensorflow as tf"),
    (data_never_runs_code, "bertjax/text/a.py", "import pickle  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "from pickle import load  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "import runpy  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "torch.load(path)  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "np.load(path, allow_pickle=True)  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "eval(text)  # BAD\nexec(text)  # BAD"),
    (data_never_runs_code, "bertjax/text/a.py", "subprocess.run(line, shell=True)  # BAD\nos.system(line)  # BAD"),
    (data_never_runs_code, "bertjax/config.py", "import runpy\nmodel.eval()\nnp.load(p, allow_pickle=False)"),
    (public_things_are_documented_and_typed, "bertjax/a.py", "x = 1  # BAD"),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + "def f() -> None: ...  # BAD"),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + "class A: ...  # BAD"),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + 'def f(a) -> None:  # BAD\n    """F."""'),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + 'def f(*, a) -> None:  # BAD\n    """F."""'),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + 'def f(*a, **b) -> None:  # BAD\n    """F."""'),
    (public_things_are_documented_and_typed, "bertjax/a.py", TYPED + 'def f(a: int):  # BAD\n    """F."""'),
    (
        public_things_are_documented_and_typed,
        "bertjax/a.py",
        TYPED + 'class A:\n    """A."""\n    def __init__(self, a): ...  # BAD\n    def f(self) -> None: ...  # BAD',
    ),
    (
        public_things_are_documented_and_typed,
        "bertjax/a.py",
        TYPED + 'class A:\n    """A."""\n    def __len__(self) -> int: ...\n    def _f(self, a): ...\n'
        '    @staticmethod\n    def g(a: int) -> None:\n        """G."""\ndef _h(a): ...',
    ),
    (no_possessive_group, "bertjax/a.py", "re.compile('(?:a|b c?)" + "++')  # BAD\nre.compile('(?" + ">a)')  # BAD"),
    (no_possessive_group, "bertjax/a.py", "re.compile('(?:[ab]++|c)*')\nx = f(a)+ +b"),
    (name_says_what_it_owns, "bertjax/text/utils.py", "x = 1  # BAD"),
    (name_says_what_it_owns, "bertjax/common/store.py", "x = 1  # BAD"),
    (name_says_what_it_owns, "bertjax/text/common_words.py", "x = 1"),
    (no_path_of_a_machine, "README.md", "see " + "/wor" + "k/shared/data  # BAD\nand '/ho" + "me/me/text'  # BAD"),
    (no_path_of_a_machine, "README.md", "https://example.org/ro" + "ot/x and ./wo" + "rk/x and runs/ho" + "me/x"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), SNIPPETS)
def test_rule_sees(rule, path, text):
    bad = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# BAD")]
    complaints = sorted(set(rule(Source(PurePosixPath(path), text))))
    assert sorted({int(complaint.split(":")[1]) for complaint in complaints}) == bad
    assert all(complaint.startswith(f"{path}:") and ";" in complaint for complaint in complaints)


def test_every_rule_has_been_shown_both():
    for rule, _ in RULES:
        shown = ["# BAD" in text for seen, _, text in SNIPPETS if seen is rule]
        assert set(shown) == {True, False}, rule.__name__
