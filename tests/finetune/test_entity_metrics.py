"""Entities and their F1 equal seqeval's, and those of CoNLL's script written here a second time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.metrics.entities import Entity, entities, entity_figures

TAGS = st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["X", "Y-Z"])))
SENTENCES = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12), min_size=1, max_size=6)


def conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """`conlleval.pl`'s start and end of a chunk, tag by tag (Tjong Kim Sang and Buchholz, 2000)."""
    chunks, start, before, before_type = set(), 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        kind, type_ = tag[0], tag[2:]
        ends = (before in "BI" and kind in "BSO") or before in "ES"
        ends |= before != "O" and before_type != type_
        starts = kind in "BS" or (before in "ESO" and kind in "EI")
        starts |= kind != "O" and before_type != type_
        if ends:
            chunks.add((before_type, start, place))
        if starts:
            start = place
        before, before_type = kind, type_
    return chunks


def sides(sentences: list[list[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    """(predicted, labels)."""
    return [[one for one, _ in sentence] for sentence in sentences], [[one for _, one in part] for part in sentences]


@settings(max_examples=150)
@given(SENTENCES)
def test_figures_are_those_of_conll(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, labels = sides(sentences)
    found, wanted = (
        {(number, *chunk) for number, tags in enumerate(side) for chunk in conlleval(tags)}
        for side in (predicted, labels)
    )
    figures = entity_figures(predicted, labels)
    whole = figures[""]
    assert (whole.predicted, whole.labelled, whole.right) == (len(found), len(wanted), len(found & wanted))
    for name, figure in figures.items():
        if name:
            assert figure.right == len({chunk for chunk in found & wanted if chunk[1] == name})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # its means over types, where there are none
@settings(max_examples=150, deadline=None)
@given(SENTENCES)
def test_figures_are_those_of_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval")
    predicted, labels = sides(sentences)
    figures = entity_figures(predicted, labels)
    theirs = seqeval.classification_report(labels, predicted, output_dict=True, zero_division=0)
    for name, wanted in theirs.items():
        if name not in ("macro avg", "weighted avg"):
            ours = figures["" if name == "micro avg" else name]
            found = [ours.precision, ours.recall, ours.f1, ours.labelled]
            assert found == pytest.approx([wanted[key] for key in ("precision", "recall", "f1-score", "support")])


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-A I-A B-A I-B O I-B"),
        ("IOB2", "B-A I-A B-A B-B O B-B"),
        ("IOBES", "B-A E-A S-A S-B O S-B"),
    ],
)
def test_every_scheme_says_the_same(scheme: str, tags: str) -> None:
    wanted = [Entity("A", 0, 2), Entity("A", 2, 3), Entity("B", 3, 4), Entity("B", 5, 6)]
    assert entities(tags.split()) == wanted, scheme


def test_a_type_counts() -> None:
    figures = entity_figures([["B-A", "I-A", "O", "B-B"]], [["B-A", "I-A", "O", "B-C"]])
    assert figures[""].f1 == 0.5 and figures["A"].f1 == 1
    assert figures["B"].precision == figures["C"].recall == figures["B"].f1 == 0


def test_what_is_no_tag_or_does_not_fit_is_refused() -> None:
    for tag in ("PER", "X-PER", "B-", "", "BI-A"):
        with pytest.raises(ValueError, match="of token 2: a tag is O, or one of B, I, E, S and -TYPE"):
            entities(["O", tag])
    with pytest.raises(ValueError, match="1 tagged sentences and 2 labelled ones"):
        entity_figures([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="sentence 2: 1 tags and 2 labels"):
        entity_figures([["O"], ["O"]], [["O"], ["O", "O"]])
