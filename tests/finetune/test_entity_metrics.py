"""Entity metrics match seqeval's default mode, its strict mode for well-formed tags, and conlleval for O, B, I."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.metrics.entities import Entity, entities, entity_figures


def make_sentences(kinds: str) -> st.SearchStrategy:
    """Draw sentences of (predicted, label) tags: `O`, or one of `kinds` with a type."""
    tags = st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from(kinds), st.sampled_from(["X", "Y-Z"])))
    return st.lists(st.lists(st.tuples(tags, tags), min_size=1, max_size=12), min_size=1, max_size=6)


SENTENCES = make_sentences("BIES")


def whole_entity(type_: str, length: int) -> list[str]:
    """List the tags of an entity in IOBES."""
    kinds = "S" if length == 1 else f"B{'I' * (length - 2)}E"
    return [f"{kind}-{type_}" for kind in kinds]


def drop_unfinished_entity(tags: list[str]) -> list[str]:
    """Replace an unfinished entity at the end of a sentence by O."""
    last = next((n for n in range(len(tags) - 1, -1, -1) if tags[n][0] not in "BI"), -1)
    return [*tags[: last + 1], *["O"] * (len(tags) - last - 1)]


def conlleval(tags: list[str], singles: bool) -> set[tuple[str, int, int]]:
    """Find chunks like conlleval.pl (Tjong Kim Sang and Buchholz, 2000) with `endOfChunk` and `startOfChunk`.

    `singles` adds rules of seqeval's default mode that the script lacks: for S, and for tags after E.
    """
    ends = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}
    starts = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}
    if singles:
        ends |= {"EB", "ES", "BS", "IS", *(f"S{kind}" for kind in "BIESO")}
        starts |= {"EB", *(f"S{kind}" for kind in "BIES"), *(f"{kind}S" for kind in "BIEO")}
    chunks, start, inside, before, before_type = set(), 0, False, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        kind, type_ = tag[0], tag[2:]
        if inside and (before + kind in ends or (before != "O" and before_type != type_)):
            chunks.add((before_type, start, place))
            inside = False
        if before + kind in starts or (kind != "O" and before_type != type_):
            start, inside = place, True
        before, before_type = kind, type_
    return chunks


def sides(sentences: list[list[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    """Split pairs of tags into (predicted, labels)."""
    return [[one for one, _ in sentence] for sentence in sentences], [[one for _, one in part] for part in sentences]


def require_conlleval_figures(sentences: list[list[tuple[str, str]]], singles: bool) -> None:
    """Require that our figures match conlleval's chunks."""
    predicted, labels = sides(sentences)
    predicted_chunks, label_chunks = (
        {(number, *chunk) for number, tags in enumerate(side) for chunk in conlleval(tags, singles)}
        for side in (predicted, labels)
    )
    whole = entity_figures(predicted, labels)
    assert (whole.predicted, whole.labelled, whole.right) == (
        len(predicted_chunks),
        len(label_chunks),
        len(predicted_chunks & label_chunks),
    )


@settings(max_examples=60)
@given(make_sentences("BI"))
def test_entity_figures_match_conll(sentences: list[list[tuple[str, str]]]) -> None:
    require_conlleval_figures(sentences, singles=False)


@settings(max_examples=60)
@given(SENTENCES)
def test_entity_figures_match_conll_with_end_and_single(sentences: list[list[tuple[str, str]]]) -> None:
    require_conlleval_figures(sentences, singles=True)


@pytest.mark.parametrize(
    ("tags", "script"),
    [("S-A S-A", {("A", 0, 2)}), ("B-A E-A B-A E-A", {("A", 0, 4)}), ("B-A S-A", {("A", 0, 2)})],
)
def test_conlleval_differs_on_end_and_single(tags: str, script: set[tuple[str, int, int]]) -> None:
    assert conlleval(tags.split(), singles=False) == script
    ours = {tuple(entity) for entity in entities(tags.split())}
    assert len(ours) == 2 and ours == conlleval(tags.split(), singles=True)


WHOLE = st.lists(
    st.tuples(st.sampled_from(["X", "Y-Z", ""]), st.integers(1, 4)).map(
        lambda chunk: whole_entity(*chunk) if chunk[0] else ["O"] * chunk[1]
    ),
    min_size=1,
    max_size=5,
).map(lambda chunks: [tag for chunk in chunks for tag in chunk])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=4))
def test_entity_figures_match_seqeval_strict(pairs: list[tuple[list, list]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval")
    scheme = pytest.importorskip("seqeval.scheme").IOBES
    predicted, labels = zip(*((ours[: len(gold)], gold[: len(ours)]) for ours, gold in pairs), strict=True)
    predicted, labels = ([drop_unfinished_entity(tags) for tags in side] for side in (predicted, labels))
    theirs = [
        score(labels, predicted, mode="strict", scheme=scheme, zero_division=0)
        for score in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)
    ]
    ours = entity_figures(predicted, labels)
    assert [ours.precision, ours.recall, ours.f1] == pytest.approx(theirs)


def test_strict_mode_drops_partial_entities() -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval")
    scheme = pytest.importorskip("seqeval.scheme").IOBES
    gold, predicted = [["B-A", "E-A", "O"]], [["I-A", "E-A", "O"]]
    assert entity_figures(predicted, gold).f1 == seqeval.f1_score(gold, predicted) == 1
    assert seqeval.f1_score(gold, predicted, mode="strict", scheme=scheme) == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from its means over types if there are none
@settings(max_examples=60, deadline=None)
@given(SENTENCES)
def test_entity_figures_match_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval")
    predicted, labels = sides(sentences)
    ours = entity_figures(predicted, labels)
    theirs = seqeval.classification_report(labels, predicted, output_dict=True, zero_division=0)["micro avg"]
    figures = [ours.precision, ours.recall, ours.f1, ours.labelled]
    assert figures == pytest.approx([theirs[key] for key in ("precision", "recall", "f1-score", "support")])


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-A I-A B-A I-B O I-B"),
        ("IOB2", "B-A I-A B-A B-B O B-B"),
        ("IOBES", "B-A E-A S-A S-B O S-B"),
    ],
)
def test_entities_are_equal_in_every_scheme(scheme: str, tags: str) -> None:
    expected = [Entity("A", 0, 2), Entity("A", 2, 3), Entity("B", 3, 4), Entity("B", 5, 6)]
    assert entities(tags.split()) == expected, scheme


def test_bad_tags_are_rejected() -> None:
    for tag in ("PER", "X-PER", "B-", "", "BI-A"):
        with pytest.raises(ValueError, match="of token 2: a tag is O, or one of B, I, E, S and -TYPE"):
            entities(["O", tag])
