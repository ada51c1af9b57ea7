"""The `docs` source: English prose from the docstrings of installed Python packages and the standard library.

Modules are parsed with `ast`, never imported. The same versions give the same bytes on any filesystem. A unit of work
is a package, or a part of a large one; paragraphs are deduplicated within a unit, so that units do not depend on each
other or on the number of processes.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from bertjax.config.suggestions import suggestion
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sentences import split_sentences
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

# Extraction of prose: whole sentences, without code, tables, parameter lists and markup.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# sections that list parameters or show code, in the styles of numpydoc, Google and Keras
_LISTS = (
    r"(?:other |keyword |call |optional |key)?(?:parameters?|params?|arg(?:ument)?s?|kwargs|options|inputs?|outputs?)"
    r"|returns?|yields?|receives|raises?|throws|warns|attributes?|properties|members|fields|methods|functions|classes"
    r"|examples?(?: usage)?|example code|usages?|references?|see also|citations?|input shapes?|output shapes?|todos?"
    r"|history|authors?|license|contents|exports?|flags|demo|doctests?|routine listings|signature|type parameters"
)
_LIST_HEADING = re.compile(_LISTS, re.IGNORECASE)
_LIST_LABEL = re.compile(rf"\**(?:{_LISTS})(?: \([^)]*\))?\**::?(?:\s.*)?|#+ (?:{_LISTS}):?", re.IGNORECASE)
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.])\1{2,}")
_FENCE = re.compile(r"```|~~~")
_FIELD = re.compile(r":[\w-]+(?: [^:]*)?:(?:\s|$)|@\w+[ :]")
_DIRECTIVE = re.compile(r"\.\.(?: +(?:([\w:+-]+?)::(.*)|.*)|$)")
_PROSE_DIRECTIVES = _words("note warning tip important caution attention hint admonition topic")
_ITEM = re.compile(r"[-*+•] +|\(?\w{1,3}[.)] +")
_TABLE = re.compile(r"^ *[|+]|\S {3,}\S|=+ +=+|-+ +-+")

_MARKUP = (
    (re.compile(r"!?\[([^\]\[]*)\]\([^()\s]*\)"), r"\1"),  # [text](address)
    (re.compile(r"`([^`<]+?)\s*<[^<>`]*>`_{0,2}"), r"\1"),  # `text <address>`_
    (re.compile(r":(?:[\w+.-]+:)?[\w+.-]+:`~[^`]*\.([^`.]+)`"), r"\1"),  # :role:`~package.text`
    (re.compile(r":(?:[\w+.-]+:)?[\w+.-]+:`([^`]+)`"), r"\1"),  # :role:`text`
    (re.compile(r"``([^`]+)``|`([^`]+)`_{0,2}"), r"\1\2"),
    (re.compile(r"(?<![\w*])(\*\*?)(?=\S)([^*]*[^*\s])\1(?![\w*])"), r"\2"),  # *emphasis*, **strong**
    (re.compile(r" ?(?:\[[\w#*-]{1,12}\]_|\[\d+\](?!\w))"), ""),  # [1]_
    (re.compile(r"(?<=\w)_(?=[\s.,;:)])"), ""),  # reference_
    (re.compile(r"\\([ *`_|])"), r"\1"),
    (re.compile(r"\s+"), " "),
)
_CODE = re.compile(
    r"://|www\.|[={}<>\\|^~$@#%`*&]|\)\(|\w/\w+/|__|--|\.\.|\.\w+\(|\bTODO|\bFIXME|Copyright|Licensed|\w_\w+_\w+_"
)
_COMMON = _words(
    """
    a an the of to in is are be by for from with on as at it its this that these those which and or not if when will
    can has have was were you we your used must may only all any each into than then there
    """
)
_SENTENCE = re.compile(r"[A-Z\"'(].*[.!?][\"')\]]*")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_SHORTEST, _LONGEST = 20, 600  # characters of a sentence


def find(source: Source) -> list[SourceFile]:
    """Find the units of the packages in the pattern, import names separated by commas.

    An empty pattern means all installed packages and the standard library (`stdlib`). Raises ValueError for a package
    that is not installed, with the nearest name.
    """
    installed = _installed()
    names = [name.strip() for name in source.pattern.split(",") if name.strip()] or sorted(installed)
    files = []
    for name in sorted(set(names)):
        if name not in installed:
            hint = suggestion(name, installed, "use names as they are imported")
            raise ValueError(f"source docs:{source.pattern}: no package {name!r} in this environment; {hint}")
        parts = _parts(_modules(installed[name]))
        files += [
            SourceFile(source.kind, f"{name}[{n}]" if len(parts) > 1 else name, part) for n, part in enumerate(parts)
        ]
    return files


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the documents of a unit, one per module and class."""
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
    """Map the import name of everything in site-packages, except bertjax, to its file or folder."""
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
            warnings.simplefilter("ignore")  # about invalid escape sequences
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        counts.unreadable_modules += 1  # written for another version of Python, or a template
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


def prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring's English prose, as whole sentences without markup."""
    lines = inspect.cleandoc(docstring).split("\n")
    for block in _blocks(_without_list_sections(list(_without_literals(lines)))):
        text = " ".join(block)
        if "." not in text or any(map(_TABLE.search, block)):
            continue
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
        if sentences := [sentence for sentence in split_sentences(text) if _is_prose(sentence)]:
            yield " ".join(sentences)


def _is_prose(sentence: str) -> bool:
    if not _SHORTEST <= len(sentence) <= _LONGEST or not _SENTENCE.fullmatch(sentence) or _CODE.search(sentence):
        return False
    words = _WORD.findall(sentence)
    common = sum(word in _COMMON for word in map(str.lower, words))
    pieces = sentence.split()
    names = sum("_" in piece or "." in piece[:-1] for piece in pieces)
    letters = sum(map(len, words))
    return (
        len(words) >= 4
        and common * 10 >= len(words)
        and names * 6 <= len(pieces)
        and letters * 5 >= 4 * (len(sentence) - len(pieces))
    )


def _without_literals(lines: list[str]) -> Iterator[str]:
    """Leave out fenced code, doctests, literal blocks, directives, fields and labelled lists."""
    hidden: int | None = None  # lines indented by more than this belong to an omitted block
    fenced = to_blank = False
    for line in lines:
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if _FENCE.match(bare):
            fenced = not fenced
        elif fenced or (bare and (to_blank or (hidden is not None and indent > hidden))):
            continue
        elif not bare:
            to_blank = False
            yield ""
        elif bare.startswith(">>>"):
            to_blank = True
        elif match := _DIRECTIVE.match(bare):
            is_prose = match[1] in _PROSE_DIRECTIVES
            hidden = None if is_prose else indent
            yield " " * indent + match[2].strip() if is_prose else ""
        elif _FIELD.match(bare) or _LIST_LABEL.fullmatch(bare):
            hidden = indent
            to_blank = not bare.endswith(":")  # its text continues to the end of the paragraph
        elif bare.endswith("::"):
            hidden = indent
            yield line[:-1]
        else:
            hidden = None
            yield line


def _without_list_sections(lines: list[str]) -> Iterator[str]:
    """Leave out underlined headings, and sections that list parameters or show code."""
    listing = underline = False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if underline:
            underline = False
        elif line and _UNDERLINE.fullmatch(following.strip()) and not _UNDERLINE.fullmatch(line.strip()):
            listing, underline = _LIST_HEADING.fullmatch(line.strip()) is not None, True
            yield ""
        elif not listing:
            yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group lines into paragraphs, separated by blank lines, list items and changes of indentation."""
    block: list[str] = []
    depth = 0
    for line in lines:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        item = _ITEM.match(bare)
        if block and (not bare or item or indent != depth):
            yield block
            block = []
        if item:
            bare, indent = bare[item.end() :], indent + item.end()
        if bare:
            block.append(bare)
            depth = indent
    if block:
        yield block


KIND = SourceKind("docs", read, example="numpy,jax", default_pattern="", find=find, is_english=True)
