"""The packaged novels: all are read, README.md lists each, and their text never changes."""

import hashlib
import re
from pathlib import Path

import pytest

from bertjax.text.sources import novels
from bertjax.text.sources.registry import digest, parse_source, read_documents, source_files

TEXT = "8db36a6a92ea5d7d"  # a change makes new stores, and breaks the promise that every run is the same


def test_novels_are_the_same_text_in_every_installation():
    files = source_files(parse_source("novels:"))
    chapters = [[document.text for document in read_documents(file)] for file in files]
    assert all(len(one) >= 12 and min(map(len, one)) > 2_000 for one in chapters)
    text = "\n".join(chapter for one in chapters for chapter in one)
    assert 2_800_000 < len(text) < 2_900_000 and "Sherlock Holmes" in text and "White Rabbit" in text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == TEXT
    assert len({digest(file) for file in files}) == len(files)


def test_novels_are_chosen_by_name():
    hound, alice = "hound", "alice"
    assert [file.path for file in source_files(parse_source(f"novels:{hound}, {alice},{hound}"))] == [alice, hound]
    assert [file.path for file in source_files(parse_source("novels"))] == [
        file.path for file in source_files(parse_source("novels:"))
    ]
    with pytest.raises(ValueError, match=r"novels:alise: no novel 'alise' in the package; did you mean alice\?"):
        source_files(parse_source("novels:alise"))


def test_readme_lists_author_and_year_of_every_novel():
    page = Path(novels.__file__).with_name("README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\.txt\.xz` \| .+ \| .+ \| (\d{4}) \|$", page, re.M)
    assert {name for name, _ in rows} == {file.path for file in source_files(parse_source("novels:"))}
    assert all(int(year) < 1929 for _, year in rows)
