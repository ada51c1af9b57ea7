"""The tables of an inspection, shared by the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.inspect.corpus_figures import RARE, Words
from bertjax.inspect.inspection import Inspection
from bertjax.inspect.near_duplicates import HASHES, SHINGLE, SIMILAR
from bertjax.inspect.overlap import Overlap
from bertjax.inspect.row_figures import Rows
from bertjax.report.page import Table


def tables(inspection: Inspection) -> tuple[Table, ...]:
    """All tables, in display order."""
    return (
        amounts_table(inspection),
        words_table(inspection),
        rows_table(inspection),
        duplicates_table(inspection),
        overlap_table(inspection),
    )


def amounts_table(inspection: Inspection) -> Table:
    """Amounts by split and source."""
    size = inspection.text_bytes
    text_note = "" if size is None else f" The source text has {size:,} bytes (UTF-8)."
    names = {amount.source for amount in inspection.amounts if amount.source}
    sources = "" if names else " The store does not record the source of each document."
    if len(names) == 1:
        sources = f" All text is from {next(iter(names))}."
    rows = []
    for amount in inspection.amounts:
        if amount.source and len(names) == 1:
            continue  # equal to the split
        name = f"  {amount.source}" if amount.source else amount.split.replace("_", "-")
        counts = (amount.documents, amount.sentences, amount.tokens, amount.spelled_bytes)
        rows.append((name, *(f"{count:,}" for count in counts), percent(amount.unknown, amount.tokens, 3)))
    return Table(
        "Contents",
        f"Bytes are counted after tokenization, without spaces.{text_note}{sources}",
        ("split", "documents", "sentences", "tokens", "bytes", "[UNK] rate"),
        tuple(rows),
    )


def words_table(inspection: Inspection) -> Table:
    """The vocabulary's coverage of the words."""
    words = inspection.words
    per_word = words.continuations / max(words.words, 1)

    rows = (
        ("words (punctuation marks too)", f"{words.words:,}", ""),
        ("words in more than one piece", f"{words.split:,}", f"{percent(words.split, words.words)} of words"),
        *_unknown(words),
        (
            "pieces that continue a word",
            f"{words.continuations:,}",
            f"{per_word:.3f} per word, {percent(words.continuations, words.tokens)} of tokens",
        ),
        *(
            (name, f"{number:,}", f"{percent(number, words.vocab_size)} of {words.vocab_size:,}")
            for name, number in (
                ("vocabulary entries that never occur", words.never),
                (f"entries that occur fewer than {RARE} times", words.rare),
            )
        ),
    )
    note = "Training split. [PAD], [CLS], [SEP] and [MASK] never occur in a store and are not counted as such."
    return Table("Words and the vocabulary", note, ("", "number", "share"), rows)


def _unknown(words: Words) -> tuple[tuple[str, str, str], ...]:
    """Rows on text outside the vocabulary, in the order of the tokenizer's rules."""
    share_text = f"{percent(words.unknown, words.words, 3)} of words"
    rows = [("words outside the vocabulary: [UNK]", f"{words.unknown:,}", share_text)]
    if words.unknown_are == "characters":
        rows = [("unknown characters, alone in their words: [UNK]", f"{words.unknown:,}", share_text)]
    if words.entities is not None:
        share = f"{percent(words.entities, words.tokens, 3)} of tokens"
        rows.insert(0, ("tokens of the entity map, literal or mapped", f"{words.entities:,}", share))
    if words.added is not None:
        share = f"{percent(words.added, words.tokens, 3)} of tokens"
        rows.insert(0, ("words of the vocabulary's extension", f"{words.added:,}", share))
    return tuple(rows)


def rows_table(inspection: Inspection) -> Table:
    """Padding, masking and pairs of the rows."""
    sampled = sorted({rows.sampled for kind in inspection.rows for rows in (kind.single, kind.packed) if rows})
    label_0 = inspection.rows[0].kind.pair_names[0]
    number = f"{sampled[0]:,}" if len(sampled) == 1 else f"{sampled[0]:,} to {sampled[-1]:,}"
    rows = []
    for figures in inspection.rows:
        kind = figures.kind
        name = f"{kind.data.sequence_length}" + (f" ({kind.name})" if kind.name else "")
        if figures.packed is None:
            rows.append(_row(name, kind.data.rows, figures.single))
        else:
            rows += [_row(name, "none", figures.single), _row("", "pairs", figures.packed)]
    return Table(
        "Rows",
        f"Measured on the first {number} rows of the first epoch, which are in random order and the same in every run; "
        "rows per epoch are exact. Padding is the share of the cells, masked the share of the real tokens.",
        ("length", "packing", "rows per epoch", "padding", "masked", label_0, "pairs per row"),
        tuple(rows),
    )


def _row(name: str, packing: str, rows: Rows) -> tuple[str, ...]:
    shares = (f"{share:.1%}" for share in (rows.padding, rows.mask_rate))
    pairs = ("-", "-") if rows.label_0 is None else (f"{rows.label_0:.1%}", f"{rows.pairs_per_row:.2f}")
    return name, packing, f"{rows.per_epoch:,}", *shares, *pairs


def masking_note(inspection: Inspection) -> str:
    """A note on the masking of the readable rows."""
    data = min((figures.kind.data for figures in inspection.rows), key=lambda data: data.sequence_length)
    segmented = f" segmented by {data.segmenter} (data.segmenter)" if data.segmenter != "none" else ""
    return f"Masks cover {data.masking} (data.masking){segmented}. `bertjax inspect RECIPE` shows the rows of a recipe."


def duplicates_table(inspection: Inspection) -> Table:
    """Exact and near duplicates."""
    exact, near, tokens = inspection.duplicates, inspection.near, inspection.words.tokens
    note = (
        f"Training split. Near: an estimated Jaccard similarity of {SIMILAR} or more between the sets of runs of "
        f"{SHINGLE} tokens (MinHash, {HASHES} hashes), among documents of {SHINGLE} tokens or more that are not exact "
        "copies of an earlier one; linked documents form a group. Copies: documents that deduplication would remove."
    )
    for share, what in ((exact.share, "Exact copies"), (near.share, "Near-duplicates")):
        if share < 1:
            note += f" {what} were searched in a sample of {share:.3g} of the documents."
    rows = tuple(
        (
            name,
            f"{documents:,}",
            f"{groups:,}",
            f"{copies:,}",
            percent(copies, documents, 2),
            percent(copied, tokens, 2),
        )
        for name, documents, groups, copies, copied in (
            ("exact", exact.documents, exact.groups, len(exact.copies), exact.copied_tokens),
            ("near", near.documents, near.groups, near.copies, near.copied_tokens),
        )
    )
    return Table("Duplicates", note, ("", "compared", "groups", "copies", "of documents", "of all tokens"), rows)


def overlap_table(inspection: Inspection) -> Table:
    """Overlap of the evaluation texts with the training text."""
    note = (
        "Runs of tokens of each text that occur in the training split. GPT-3's measure (Brown et al. 2020) flags a "
        "text with any run of 13, PaLM's (Chowdhery et al. 2022) one with 70% of its runs of 8. Their tokens are "
        "words, these are word pieces. Shorter texts cannot be measured."
    )
    for overlap in inspection.overlaps:
        if overlap.texts.share < 1:
            note += f" Of {overlap.texts.name}, a sample of {overlap.texts.share:.3g} was searched for."
    return Table(
        "Evaluation text in the training text",
        note,
        ("texts", "measure", "long enough", "flagged", "of these", "runs seen"),
        tuple(row for overlap in inspection.overlaps for row in _overlap(overlap)),
    )


def _overlap(overlap: Overlap) -> list[tuple[str, ...]]:
    names = [f"{overlap.texts.name} ({overlap.texts.texts:,})"] + [""] * (len(overlap.by_measure) - 1)
    return [
        (
            name,
            f"{result.measure.name}, {result.measure.n} tokens",
            f"{result.texts:,}",
            f"{result.flagged:,}",
            percent(result.flagged, result.texts),
            percent(result.seen, result.runs, 2),
        )
        for name, result in zip(names, overlap.by_measure, strict=True)
    ]


def percent(part: float, whole: float, digits: int = 1) -> str:
    """A share as a percentage, or a dash if the whole is 0."""
    return f"{part / whole:.{digits}%}" if whole else "-"


def frequent_tokens(inspection: Inspection) -> Sequence[tuple[str, float]]:
    """The most frequent tokens with their shares of the training split."""
    return [(token, count / inspection.words.tokens) for token, count in inspection.words.most_frequent]
