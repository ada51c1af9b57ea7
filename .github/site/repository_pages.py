"""MkDocs hook: the pages of the repository, under the paths that they have there, so that their links hold.

From README.md on, every Markdown file that a page links to becomes a page, and every other file an asset. The tables of
settings are read from the fields of the config's dataclasses and their comments, which `--help` shows too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)
_LINK = re.compile(r'\]\((?!https?:|#|mailto:)([^)#\s]+)|(?:src|srcset)="(?!https?:)([^"]+)"')
_HIDDEN = ".github/"  # upload-pages-artifact leaves hidden folders out


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository and what they link to."""
    waiting, known = [REPOSITORY / "README.md"], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        name = path.relative_to(REPOSITORY).as_posix()
        if path.suffix != ".md":
            files.append(File.generated(config, name.removeprefix(_HIDDEN), abs_src_path=str(path)))
            continue
        text = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace(_HIDDEN, "")))
        links = [one or two for one, two in _LINK.findall(_FENCE.sub("", text))]
        targets = [(path.parent / link).resolve() for link in links]
        waiting += [target for target in targets if target.is_file()]
        # A folder of the repository has no page.
        assert all(target.exists() for target in targets), f"{name}: {[*filter(lambda t: not t.exists(), targets)]}"
    return files


def list_settings() -> Iterator[str]:
    """A table of the fields of each section of `Config`, as Markdown."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "bertjax" / "config").glob("*.py"))]
    classes = {
        node.name: (node, source.split("\n"))
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    sections = {
        ast.unparse(field.annotation): ast.unparse(field.target)
        for field in classes["Config"][0].body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) in classes
    }
    for name, section in {"Config": "", **sections}.items():
        node, lines = classes[name]
        yield f"## {section or 'The run'}\n\n{ast.get_docstring(node)}\n"
        yield "| setting | default | meaning |\n|---|---|---|"
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or ast.unparse(field.annotation) in classes:
                continue
            key = f"{section}.{ast.unparse(field.target)}".removeprefix(".").replace("_", "-")
            above = field.lineno - 2
            while lines[above].strip().startswith("#"):
                above -= 1
            comments = [line.strip().removeprefix("#") for line in lines[above + 1 : field.lineno - 1]]
            comments.append(lines[field.end_lineno - 1].partition("  # ")[2])
            value = field.value
            if isinstance(value, ast.Call):  # how the field may change when a run resumes, or its bounds
                value = value.args[0] if value.args else None
            default = "" if value is None else f"`{ast.unparse(value)}`"
            meaning = " ".join(" ".join(comments).split())
            yield f"| `--{key}` | {default} | {meaning} |".replace("||", "\\|\\|")
        yield ""


def list_functions() -> Iterator[str]:
    """The functions that `import bertjax` gives, as Markdown.

    mkdocstrings documents `bertjax.finetune`, `search` and `embed` as the packages of those names.
    """
    source = (REPOSITORY / "bertjax" / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            signature = f"bertjax.{node.name}({ast.unparse(node.args)})"
            if len(signature) > 88:
                signature = signature.replace("(", "(\n    ", 1).replace(", ", ",\n    ").removesuffix(")") + "\n)"
            returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
            yield f"## {node.name}\n\n```python\n{signature}{returns}\n```\n\n{ast.get_docstring(node)}\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A list that follows a paragraph directly, as GitHub renders it, needs an empty line for MkDocs."""
    lines: list[str] = []
    in_fence = False
    for line in markdown.split("\n"):
        in_fence ^= line.startswith("```")
        is_item = re.match(r"(?:[-*]|\d+\.) ", line)
        if is_item and not in_fence and lines and lines[-1].strip() and not re.match(r"(?:[-*]|\d+\.) |  ", lines[-1]):
            lines.append("")
        lines.append(line)
    text = "\n".join(lines).replace("<!-- settings -->", "\n".join(list_settings()))
    return text.replace("<!-- functions -->", "\n".join(list_functions()))
