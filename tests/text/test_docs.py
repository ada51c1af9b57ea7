"""The `docs` source: prose from docstrings, in reproducible units."""

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap

import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import docs
from bertjax.text.sources.docs import prose
from bertjax.text.sources.registry import digest, parse_source, read_documents, source_files

pytestmark = pytest.mark.run

DOCSTRING = """Return the ``sum`` of the :class:`~package.Array` elements *along* an axis [1]_.

    It may be wrapped over
    several lines.  See the `manual <https://example.com>`_ for the rest of it. It computes y = x + 1.

    .. note:: The order of the elements is not defined.

    .. versionadded:: 1.2
       This is not for the reader of prose.

    >>> total([1, 2])
    This is the output of a doctest.

    For example::

        This is a literal block of text that is left out.

    A list follows the colon:

    * The first item of the list is a sentence
      that goes on here.
    * second item

    ```python
    This is the fenced code in the middle.
    ```

    Args:
      axis: This is the description of a parameter.

        It goes on in another paragraph of the list.
    Returns: This is the description of the result,
      that goes on in another line.
    :param x: This is the description of a field
        that goes on in another line.
    @param y: This is the description of an old field.

    ===== ==========================
    name  This is the row of a table.
    ===== ==========================

    | name | This is the row of another table. |

    Parameters
    ----------
    x : array
        This is the description of an array.

    Notes
    -----
    The notes are prose, and they are kept by all of the rules.

    Examples
    --------
    This is a sentence that is among the examples.
    """

PROSE = [
    "Return the sum of the Array elements along an axis.",
    "It may be wrapped over several lines. See the manual for the rest of it.",
    "The order of the elements is not defined.",
    "The first item of the list is a sentence that goes on here.",
    "The notes are prose, and they are kept by all of the rules.",
]


def test_prose_is_whole_sentences_without_code():
    assert list(prose(DOCSTRING)) == PROSE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Args:",
        "total(axis, dtype) -> Array",
        "TODO: this is what we have to do with it.",
        "this has no beginning, as it is in lower case.",
        "This has no end, as it is without a period",
        "Too few words.",
        "Licensed under the terms of the License, in the file that is here.",
        "See https://example.com/a for all of the rest of it.",
        "Die Sonne scheint heute sehr hell über den hohen Bergen.",
    ],
)
def test_non_prose_is_left_out(text):
    assert list(prose(text)) == []


MODULE = '''
"""The module of the tests is described in this sentence. It has another sentence after that.

The third one is here to make it long."""
import missing_module
raise RuntimeError("nothing may be imported")

def function():
    """Return what a function of the module can return. A function like this one is never called by the tests."""
    def inner():
        """This is inside of a function and not part of the documentation."""

if missing_module:
    class Outer:
        """A class has a document of its own. It is made of the class and of its methods. They come in their order."""
        def method(self):
            """Do what a method of the class is there for. It is not called by any of the tests that there are."""
        class Short:
            """This one is too short for a document."""
else:
    def function():
        """Return what a function of the module can return. A function like this one is never called by the tests."""
'''


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A site-packages folder and a standard library of a few modules."""
    site, standard = tmp_path / "site", tmp_path / "stdlib"
    for path, text in {
        site / "alpha/__init__.py": MODULE,
        site / "alpha/tests/extra.py": MODULE.replace("module", "test"),
        site / "alpha/test_it.py": MODULE.replace("module", "test"),
        site / "alpha/bad.py": '"""Text."""\nprint "for an old Python"',
        site / "alpha/data.txt": "nothing",
        site / "beta.py": MODULE.replace("module", "single file"),
        site / "bertjax/__init__.py": MODULE,
        site / "alpha-1.0.dist-info/METADATA": "Name: alpha",
        standard / "os.py": MODULE.replace("module", "standard library"),
        standard / "site-packages/alpha.py": MODULE,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = {"purelib": str(site), "platlib": str(site), "stdlib": str(standard)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    return tmp_path, paths


def test_document_is_a_module_or_a_class(environment):
    files = source_files(parse_source("docs"))
    assert [(file.kind, file.path) for file in files] == [("docs", "alpha"), ("docs", "beta"), ("docs", "stdlib")]
    counts = ReadCounts()
    assert [document.text.split("\n") for document in read_documents(files[0], counts)] == [
        [
            "The module of the tests is described in this sentence. It has another sentence after that.",
            "The third one is here to make it long.",
            # Once, though two functions have this docstring; docstrings of inner functions are left out.
            "Return what a function of the module can return. A function like this one is never called by the tests.",
        ],
        [
            "A class has a document of its own. It is made of the class and of its methods. They come in their order.",
            "Do what a method of the class is there for. It is not called by any of the tests that there are.",
        ],
    ]  # nothing from the class whose prose is too short, from the tests, or from bad.py
    assert (counts.documents, counts.unreadable_modules) == (2, 1)


def test_packages_can_be_named(environment):
    assert [file.path for file in source_files(parse_source("docs:stdlib, beta,beta"))] == ["beta", "stdlib"]
    with pytest.raises(ValueError, match=r"docs:alpa: no package 'alpa' in this environment; did you mean alpha\?"):
        source_files(parse_source("docs:alpa"))


def test_units_ignore_folders_and_file_order(environment, monkeypatch):
    def everything():
        files = source_files(parse_source("docs"))
        return [(file.path, digest(file), [document.text for document in read_documents(file)]) for file in files]

    monkeypatch.setattr(docs, "UNIT_BYTES", 1)
    first = everything()
    assert [name for name, _, _ in first] == ["alpha[0]", "alpha[1]", "beta", "stdlib"]
    root, paths = environment
    walk, listdir = os.walk, os.listdir

    def backwards(top):
        for at, folders, files in walk(top):
            folders.reverse()
            yield at, folders, files[::-1]

    shutil.copytree(root / "site", root / "elsewhere")
    paths.update(purelib=str(root / "elsewhere"), platlib=str(root / "elsewhere"))
    monkeypatch.setattr(os, "walk", backwards)
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
    assert everything() == first


def test_installed_package_reads_as_prose():
    program = textwrap.dedent(
        """
        import hashlib, sys
        from bertjax.text.sources.registry import parse_source, read_documents, source_files
        texts = [d.text for f in source_files(parse_source("docs:optax,absl")) for d in read_documents(f)]
        assert "optax" not in sys.modules and "absl" not in sys.modules and "jax" not in sys.modules
        print(len(texts), sum(map(len, texts)), hashlib.sha256("\\n".join(texts).encode()).hexdigest())
        """
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(runs) == 1
    documents, characters = map(int, runs.pop().split()[:2])
    assert documents > 30 and characters > 300 * documents
    for file in source_files(parse_source("docs:optax")):
        for document in read_documents(file):
            assert not [markup for markup in (">>>", "://", "``", ":param", "\t") if markup in document.text]
            assert all(paragraph.strip(")\"'")[-1] in ".!?" for paragraph in document.text.split("\n"))
