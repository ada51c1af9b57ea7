"""A corpus: its units are the same for every run, and have every file once, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config import DataConfig
from bertjax.text import corpus
from bertjax.text.corpus import Corpus, HashedFile, Unit
from bertjax.text.sources.source import Source, SourceFile


class SizedFile(SourceFile):
    """A file that does not exist."""

    @property
    def size(self):
        return int(self.path.split(".")[0])


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=40), min_size=1, max_size=3), st.integers(1, 2000))
def test_units_hold_every_file_once_in_order(sizes, unit_bytes):
    files = tuple(tuple(SizedFile("text", f"{size}.txt.xz") for size in group) for group in sizes)
    hashed = tuple(tuple(HashedFile(file, "", ()) for file in group) for group in files)
    whole = Corpus(tuple(Source("text", "*") for _ in files), hashed)
    default, corpus.UNIT_BYTES = corpus.UNIT_BYTES, unit_bytes
    try:
        units = whole.units
    finally:
        corpus.UNIT_BYTES = default
    assert [unit.number for unit in units] == list(range(len(units)))
    for place, group in enumerate(files):
        assert tuple(file for unit in units if unit.source == place for file in unit.files) == group
    target = max(unit_bytes, whole.text_bytes // corpus.MAX_UNITS)
    full = [unit for unit in units if 4 * unit.size >= target]
    assert len(units) - len(full) <= len(files)
    assert all(4 * (unit.size - unit.files[-1].size) < target for unit in units)


def test_text_in_many_files_becomes_few_units(tmp_path):
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text("x" * 1000)
    assert [
        type(unit) for unit in Corpus.of(DataConfig(sources=(f"text:{tmp_path}/*",), root=str(tmp_path))).units
    ] == [Unit]


def test_too_many_files_are_refused_before_reading(tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("text")
    monkeypatch.setattr(corpus, "MOST_FILES", 3)
    with pytest.raises(ValueError, match=r"data\.sources: 4 files, but a store can list only 3; join them"):
        Corpus.of(DataConfig(sources=(f"text:{tmp_path}/*.txt",), root=str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


def test_changes_since_names_new_missing_and_changed_files(tmp_path):
    def make_corpus(*kinds):
        sources = tuple(f"{kind}:{tmp_path}/*.txt" for kind in kinds)
        return Corpus.of(DataConfig(sources=sources, root=str(tmp_path / "data")))

    for name in "abcdefg":
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    earlier = make_corpus("text").description()
    assert make_corpus("text").changes_since(earlier) == []
    (tmp_path / "a.txt").rename(tmp_path / "aa.txt")
    assert make_corpus("text").changes_since(earlier) == [], "the contents are the same, in the same order"
    (tmp_path / "b.txt").write_text("another")
    for name in "hijk":
        (tmp_path / f"{name}.txt").write_text("more")
    (phrase,) = make_corpus("text").changes_since(earlier)
    assert phrase.endswith(": 5 new (aa.txt, h.txt, i.txt, …), 1 missing (a.txt), 1 changed (b.txt)")
    assert make_corpus("text", "lines").changes_since(earlier) == ["data.sources had 1 sources and has 2"]
