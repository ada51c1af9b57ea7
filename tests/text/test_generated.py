"""The `generated` source: the same text everywhere, in any parts."""

import hashlib

import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import generated, generated_proteins
from bertjax.text.sources.registry import parse_source, read_documents, source_files

# Of 200 documents: another text would make reference curves of other runs.
SHA256 = "0dfd7e91405bfee3d5b003574d1a0f5cad6bc055f7a2927efa910a6b25897344"


def texts(written):
    return [document.text for file in source_files(parse_source(written)) for document in read_documents(file)]


def test_text_is_the_recorded_one():
    assert hashlib.sha256("\n\n".join(texts("generated:200")).encode()).hexdigest() == SHA256


def test_document_depends_only_on_its_number(monkeypatch):
    whole = texts("generated:25")
    monkeypatch.setattr(generated, "_UNIT_DOCUMENTS", 10)
    counts = ReadCounts()
    files = source_files(parse_source("generated:25"))
    assert len(files) == 3 and sum(file.size for file in files) == 25 * 400
    assert [document.text for file in files for document in read_documents(file, counts)] == whole
    assert counts.documents == 25 and texts("generated")[:25] == whole


def test_nouns_determine_their_words():
    """A noun's first adjective has half of its occurrences, and nouns of other topics have other adjectives."""
    of_noun: dict[str, list[str]] = {}
    for document in texts("generated:2000"):
        for sentence in document.split("\n"):
            words = sentence.split()
            assert words[0] == words[4] == "the" and words[7] == "." and len(words) == 8
            of_noun.setdefault(words[2], []).append(words[1])
    assert len(of_noun) == 6 * 4
    adjectives = {noun: sorted(set(said), key=said.count) for noun, said in of_noun.items()}
    assert len({word for words in adjectives.values() for word in words}) == 3 * len(of_noun)
    said = [word == adjectives[noun][-1] for noun, words in of_noun.items() for word in words]
    assert abs(sum(said) / len(said) - 0.5) < 0.02


@pytest.mark.parametrize("pattern", ["0", "many", "-3", "1e4"])
def test_bad_number_of_documents_is_refused(pattern):
    with pytest.raises(ValueError, match=f"source generated:{pattern}: '{pattern}' is not a number of documents"):
        source_files(parse_source(f"generated:{pattern}"))


def test_proteins_have_the_letters_of_their_families():
    """19 of 20 at conserved sites, and every contact in 19 of 20."""
    sites = generated_proteins.families()
    kept: dict[str, list[bool]] = {"conserved": [], "contact": []}
    for number, letters in enumerate(texts("generated_proteins:2000")):
        made = generated_proteins.member(number, sites)
        assert made.letters == letters
        family = sites[made.family]
        for letter, site in zip(letters, family[made.first :], strict=False):
            if site.kind == "conserved":
                kept["conserved"].append(letter == site.letters)
        for one, other in generated_proteins.contacts(family, made.first, len(letters)):
            first, second = family[made.first + one].letters, family[made.first + other].letters
            kept["contact"].append(second[first.index(letters[one]) % len(second)] == letters[other])
    chance = {"conserved": 1 / 20, "contact": 1 / 5}
    for kind, found in kept.items():
        assert sum(found) / len(found) == pytest.approx(0.95 + 0.05 * chance[kind], abs=0.01)
