"""The `generated` source: the same text everywhere, in any parts."""

import hashlib

import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import generated, generated_proteins
from bertjax.text.sources.registry import parse_source, read_documents, source_files

# Of 200 documents. Another text would invalidate the reference curves.
SHA256 = "0dfd7e91405bfee3d5b003574d1a0f5cad6bc055f7a2927efa910a6b25897344"


def texts(written):
    return [document.text for file in source_files(parse_source(written)) for document in read_documents(file)]


def test_text_has_the_recorded_digest():
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
    """A noun's most frequent adjective has half of its occurrences, and different nouns have different adjectives."""
    adjectives_of_noun: dict[str, list[str]] = {}
    for document in texts("generated:2000"):
        for sentence in document.split("\n"):
            words = sentence.split()
            assert words[0] == words[4] == "the" and words[7] == "." and len(words) == 8
            adjectives_of_noun.setdefault(words[2], []).append(words[1])
    assert len(adjectives_of_noun) == 6 * 4
    adjectives = {noun: sorted(set(words), key=words.count) for noun, words in adjectives_of_noun.items()}
    assert len({word for words in adjectives.values() for word in words}) == 3 * len(adjectives_of_noun)
    is_first = [word == adjectives[noun][-1] for noun, words in adjectives_of_noun.items() for word in words]
    assert abs(sum(is_first) / len(is_first) - 0.5) < 0.02


@pytest.mark.parametrize("pattern", ["0", "many", "-3", "1e4"])
def test_bad_number_of_documents_is_refused(pattern):
    with pytest.raises(ValueError, match=f"source generated:{pattern}: '{pattern}' is not a number of documents"):
        source_files(parse_source(f"generated:{pattern}"))


def test_proteins_have_the_letters_of_their_families():
    """Conserved sites have the family's letter, and contacts hold, in 19 of 20 members."""
    sites = generated_proteins.families()
    matches: dict[str, list[bool]] = {"conserved": [], "contact": []}
    for number, letters in enumerate(texts("generated_proteins:2000")):
        protein = generated_proteins.member(number, sites)
        assert protein.letters == letters
        family = sites[protein.family]
        for letter, site in zip(letters, family[protein.first :], strict=False):
            if site.kind == "conserved":
                matches["conserved"].append(letter == site.letters)
        for one, other in generated_proteins.contacts(family, protein.first, len(letters)):
            first, second = family[protein.first + one].letters, family[protein.first + other].letters
            matches["contact"].append(second[first.index(letters[one]) % len(second)] == letters[other])
    chance = {"conserved": 1 / 20, "contact": 1 / 5}
    for kind, is_match in matches.items():
        assert sum(is_match) / len(is_match) == pytest.approx(0.95 + 0.05 * chance[kind], abs=0.01)
