"""The documentation is correct: commands parse, links and files exist, and each fact names its test."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bertjax.__main__ import VERBS, load_verb, make_parser
from bertjax.config import Config, FinetuneConfig, load_recipe, override
from bertjax.training.stages import make_stages

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = {
    f"{room}README.md": (REPOSITORY / room / "README.md").read_text(encoding="utf-8")
    for room in ("", "configs/", "launch/", "bertjax/", "bertjax/finetune/")
}
SITE = REPOSITORY / ".github" / "site"
TUTORIALS = {
    path.name: path.read_text(encoding="utf-8") for path in sorted((SITE / "pages" / "tutorials").glob("*.md"))
}
FURTHER = [(REPOSITORY / "bertjax" / name).read_text(encoding="utf-8") for name in ("SEQUENCES.md", "RELIABILITY.md")]
ALL = "\n".join((*PAGES.values(), *TUTORIALS.values(), *FURTHER))
RECIPES = {
    path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for path in sorted((REPOSITORY / "configs").glob("*.py"))
}
FENCES = re.findall(r"^```\w*\n(.*?)^```", ALL, re.M | re.S)
OUTSIDE = re.sub(r"^```\w*\n.*?^```", "", ALL, flags=re.M | re.S)
PARSERS = {name: make_parser(name) for name in VERBS}
NO_KEYS = {"--long", *(name for verb in PARSERS.values() for name in verb._option_string_actions)}


def commands() -> list[str]:
    """Every complete `bertjax` command, in code blocks, tables and docstrings of recipes."""
    lines = "\n".join(FENCES).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(bertjax [^`]*)`", OUTSIDE)
    recipes = "\n".join(RECIPES.values()).replace("\\\n", " ")
    inline += re.findall(r"`(bertjax [^`]* --[^`]*)`", recipes)
    own_lines = re.findall(r"^(?:Command:)? *(bertjax .*)", recipes, re.M)
    inline += [line for line in own_lines if line.split()[1] in VERBS]
    found = [line.partition("  #")[0].rpartition(" | ")[2].removeprefix("$ ") for line in lines] + inline
    return sorted({" ".join(c.split()) for c in found if c.startswith("bertjax ")})


def options() -> list[str]:
    """Every setting in the text as `--key value`; of several values separated by |, the first."""
    found = [" ".join(text.split()) for text in re.findall(r"`(--[^`]*)`", OUTSIDE)]
    return sorted({re.sub(r"\|\S+", "", o) for o in found if o.split()[0] not in NO_KEYS and " " in o})


ABBREVIATED = [c for c in commands() if "…" in c]
# A verb without arguments is only a name.
NAMES = re.compile(r"bertjax (run )?[\w-]+")
COMMANDS = [c for c in commands() if not ("…" in c or c.endswith(" --help") or NAMES.fullmatch(c))]


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_command_parses(command: str) -> None:
    _, verb, *arguments = with_numbers(shlex.split(command))
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    parsed, keys = PARSERS[verb].parse_words(words, takes_keys=load_verb(verb).takes_keys)
    assert load_verb(verb).takes_dashes or "--" not in arguments
    assert load_verb(verb).takes_keys or not keys
    config = FinetuneConfig() if verb == "finetune" else recipe_of(parsed)
    if keys:
        config = override(config, keys, "bertjax")
    assert_holds(config, keys)
    if verb == "pretrain":
        assert make_stages(config)[-1].stop == config.training.steps


def with_numbers(words: list[str]) -> list[str]:
    """Replace words of one capital letter with a number."""
    return ["1" if re.fullmatch("[A-Z]", word) else word for word in words]


def assert_holds(config: Config, words: list[str]) -> None:
    """Check that a config has the values of a command's `--key value...` or `--key=value`."""
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            key, _, value = word.removeprefix("--").partition("=")
            given[key] = [value] if value else []
        else:
            given[key].append(word)
    for key, values in given.items():
        *above, last = key.replace("-", "_").split(".")
        found: Any = config
        for name in [*above, last.removeprefix("no_")]:
            found = found[int(name)] if name.isdecimal() else getattr(found, name)
        if isinstance(found, bool):
            assert values == [str(found)] if values else found != last.startswith("no_"), key
            continue
        parts = found if isinstance(found, tuple) else (found,)
        assert parts == tuple(type(part)(word) for part, word in zip(parts, values, strict=True)), key


def recipe_of(parsed: argparse.Namespace) -> Config:
    """The recipe in a command, or the default config."""
    values = [one for value in vars(parsed).values() for one in (value if isinstance(value, list) else [value])]
    mentioned = next(filter(is_recipe, map(str, values)), None)
    return load_recipe(REPOSITORY / mentioned if ".py" in mentioned else mentioned) if mentioned else Config()


def is_recipe(word: str) -> bool:
    """Whether a word names a recipe, e.g. `bert_base`, `domain:legal` or `configs/bert_base.py`."""
    return word.partition(":")[0].removeprefix("configs/").removesuffix(".py") in RECIPES


def test_documented_options_parse() -> None:
    """Options with different keys are parsed together, to save time."""
    groups: list[dict[str, list[str]]] = []
    for option in options():
        words = with_numbers(shlex.split(option))
        keys = {word.partition("=")[0] for word in words if word.startswith("--")}
        group = next((one for one in groups if not keys & one.keys()), None)
        if group is None:
            groups.append(group := {})
        group |= dict.fromkeys(keys, words)
    for group in groups:
        words = [word for option in {tuple(option): None for option in group.values()} for word in option]
        assert_holds(override(FinetuneConfig(), words, "bertjax"), words)


def test_documentation_has_commands_and_options() -> None:
    assert len(commands()) > 40 and len(options()) > 20


def test_chinese_readme_has_the_same_commands_and_figures() -> None:
    pages = [(REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    fences, tables = zip(
        *((re.findall(r"^```\n(.*?)^```", page, re.M | re.S), page.partition("<!-- made by")[2]) for page in pages),
        strict=True,
    )
    assert fences[0] == fences[1] and len(fences[0]) > 6
    assert tables[0].partition("<!-- end")[0] == tables[1].partition("<!-- end")[0], "tests/benchmarks writes both"
    assert not [link for link in re.findall(r"\]\((?!https:)([\w./]+)", pages[1]) if not (REPOSITORY / link).exists()]


def table_rows(page: str, heading: str) -> list[str]:
    """The rows of the first table below a heading, without the table's header."""
    section = f"\n{PAGES[page]}".partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table, f"{page} has no table below {heading!r}"
    return table[0].splitlines()[2:]


FACTS = re.findall(r"^\|(.*)\| `(tests/\S+?)::(\w+)` \|$", PAGES["bertjax/README.md"], re.M)


@pytest.mark.parametrize(("fact", "path", "name"), FACTS, ids=[name for _, _, name in FACTS])
def test_fact_names_an_existing_test(fact: str, path: str, name: str) -> None:
    """The test exists, is never skipped and asserts something."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert name in functions, f"{path} has no {name}: {fact}"
    assert not any("skip" in ast.unparse(decorator) for decorator in functions[name].decorator_list), fact
    assert asserts(functions[name], functions), f"{path}::{name} asserts nothing: {fact}"


def asserts(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> bool:
    """Whether a function or one that it calls in its file has an assertion, an expected error or a check."""
    names = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    if any(name == "pytest.raises" or re.search(r"(^|\.)_?assert_|(^|\.)check_", name) for name in names):
        return True
    others = {name: node for name, node in functions.items() if node is not function}
    return any(asserts(others[name], others) for name in names & {*others})


def test_every_fact_names_a_test() -> None:
    rows = table_rows("bertjax/README.md", "## Where descriptions of BERT differ, and what bertjax does")
    assert len(FACTS) == len(rows) >= 10


def test_readme_lists_every_verb() -> None:
    section = PAGES["README.md"].partition("\n## All verbs\n")[2].partition(":")[0]
    assert sorted(re.findall(r"`([\w-]+)`", section)) == sorted(VERBS)


def test_table_of_recipes_is_complete() -> None:
    rows = table_rows("configs/README.md", "# Recipes and data")
    mentioned = [re.match(r"\| `(configs/\w+\.py)` \|", row) for row in rows]
    existing = [path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "configs").glob("*.py")]
    assert sorted(found[1] for found in mentioned if found) == sorted(existing)


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_a_page_exist(page: str) -> None:
    mentioned = set(re.findall(r"(?<![\w/-])((?:bertjax|configs|launch|tests)/[\w/]+\.(?:py|sh))\b", PAGES[page]))
    missing = [path for path in mentioned if "NAME" not in path and not (REPOSITORY / path).is_file()]
    assert not missing
    assert mentioned or page == "bertjax/finetune/README.md"


def anchors(page: Path) -> set[str]:
    """The link targets of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_link_targets_exist(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", PAGES[page])
    assert links or page == "configs/README.md"
    for path, anchor in links:
        target = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert target.is_file(), f"{page} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page} links to {path}#{anchor}"


def test_pages_of_the_site_exist_and_name_existing_files() -> None:
    assert len(TUTORIALS) == 4
    mentioned = re.findall(r"([\w/.]+\.md)$", (SITE / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert not [page for page in mentioned if not ((SITE / "pages" / page).is_file() or (REPOSITORY / page).is_file())]
    for module, name in re.findall(r"^::: ([\w.]+)\.(\w+)$", (SITE / "pages" / "reference.md").read_text(), re.M):
        source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(class|def) {name}\b", source, re.M), f"reference.md: {module} has no {name}"
    for name, page in TUTORIALS.items():
        for link in re.findall(r"\]\(\.\./([^)#]+)", page):
            assert (REPOSITORY / link).is_file(), f"{name} links to {link}"


def test_reading_path_is_numbered() -> None:
    section = PAGES["bertjax/README.md"].partition("\n## From the token store to updated weights\n")[2]
    path = re.findall(r"^(\d+)\. `(bertjax/[\w/]+\.py)`", section.partition("\n## ")[0], re.M)
    assert [int(number) for number, _ in path] == list(range(1, len(path) + 1))
    assert len({name for _, name in path}) == len(path) > 10
