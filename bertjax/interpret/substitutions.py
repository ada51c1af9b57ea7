"""Score variants of a sequence: the change in its likelihood by a substitution such as A23V.

The score is the sum over the substituted places of log p(new token) - log p(old token), given the original sequence
(Meier et al. 2021, "Language models enable zero-shot prediction of the effects of mutations on protein function"). The
masked marginal hides all substituted places together; the wild-type marginal hides nothing, so that one pass scores
every variant of a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from bertjax.finetune.data.tables import TABLE_SUFFIXES, Selection, read_rows, table_suffix
from bertjax.interpret.fill_mask import mlm_model
from bertjax.interpret.masked_tokens import log_distributions
from bertjax.interpret.pseudo_likelihood import require_scored
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress, no_progress

Marginal = Literal["masked", "wild-type"]

_SUBSTITUTION = re.compile(r"(\S)([1-9]\d{0,8})(\S)")
_SEPARATOR = ":"  # of the substitutions of a variant
_COLUMNS = ("variant", "sequence")


class Substitution(NamedTuple):
    """One letter in place of another; places count from 1."""

    old: str
    place: int
    new: str


class Variant(NamedTuple):
    """A sequence and its substitutions."""

    sequence: str
    substitutions: tuple[Substitution, ...]

    @property
    def written(self) -> str:
        """The notation that `parse_variant` reads."""
        return _SEPARATOR.join(f"{old}{place}{new}" for old, place, new in self.substitutions)


def parse_variant(written: str, sequence: str, prefix: str = "") -> Variant:
    """Parse A23V, or A23V:G30D for two substitutions at once.

    Raises ValueError, beginning with `prefix`, for another form, a place outside the sequence, another letter there,
    and two substitutions of one place.
    """
    parts = [_SUBSTITUTION.fullmatch(part) for part in written.split(_SEPARATOR)]
    substitutions = tuple(Substitution(part[1], int(part[2]), part[3]) for part in parts if part is not None)
    if len(substitutions) != len(parts):
        raise ValueError(f"{prefix}variant {written!r}: write A23V, or A23V:G30D for two substitutions at once")
    for old, place, _ in substitutions:
        if place > len(sequence):
            raise ValueError(
                f"{prefix}variant {written!r}: the sequence has {len(sequence)} letters; correct the place"
            )
        if sequence[place - 1] != old:
            raise ValueError(
                f"{prefix}variant {written!r}: letter {place} of the sequence is {sequence[place - 1]!r}, not {old!r}; "
                "places count from 1; check the sequence"
            )
    if len({change.place for change in substitutions}) < len(substitutions):
        raise ValueError(f"{prefix}variant {written!r}: two substitutions of one place; leave one of them out")
    return Variant(sequence, substitutions)


def read_variants(path: Path, sequence: str = "") -> list[Variant]:
    """Read the variants of a table with the columns variant and, unless `sequence` holds for all, sequence.

    Raises ValueError naming file and line for a value that is missing or that `parse_variant` refuses.
    """
    variants = []
    columns = _COLUMNS[:1] if sequence else _COLUMNS
    for location, values in read_rows(path, Selection(columns), print):
        for name in columns:
            if not isinstance(values[name], str) or not values[name].strip():
                raise ValueError(f"{location}: {name} is {values[name]!r}; it must be text")
        variants.append(
            parse_variant(values["variant"].strip(), sequence or values["sequence"].strip(), f"{location}: ")
        )
    return variants


def is_table(written: str) -> bool:
    """Whether a variant on the command line is the name of a table."""
    return table_suffix(Path(written)) in TABLE_SUFFIXES


def score_variants(
    model: TrainedModel, variants: Sequence[Variant], marginal: Marginal = "masked", progress: Progress = no_progress
) -> list[float]:
    """Score each variant, in nats: below 0, the model finds it less likely than the original.

    Raises ValueError for an unknown marginal, a vocabulary whose tokens are not single letters, a letter that it lacks,
    a sequence longer than the rows of training, and as `mlm_model` does.
    """
    if marginal not in get_args(Marginal):
        raise ValueError(f"marginal={marginal!r} is unknown; choose from {', '.join(get_args(Marginal))}")
    model = mlm_model(model)
    sequences = [*dict.fromkeys(variant.sequence for variant in variants)]
    rows = dict(zip(sequences, letter_rows(model, sequences), strict=True))
    ids = {letter: _letter_id(model, letter) for letter in {change.new for v in variants for change in v.substitutions}}

    # Variants that hide the same places of a sequence share its rows.
    questions: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for number, variant in enumerate(variants):
        hidden = tuple(sorted(change.place for change in variant.substitutions)) if marginal == "masked" else ()
        questions.setdefault((variant.sequence, hidden), []).append(number)
    order = sorted(questions, key=lambda question: len(question[0]))
    places = {
        question: sorted({change.place for number in questions[question] for change in variants[number].substitutions})
        for question in order
    }

    def hidden_rows() -> Iterator[tuple[TokenRow, list[int]]]:
        for sequence, hidden in order:
            ids = rows[sequence].ids.copy()
            ids[[*hidden]] = model.tokenizer.mask_id
            yield replace(rows[sequence], ids=ids), places[sequence, hidden]

    scores = [0.0] * len(variants)
    answers = zip(order, log_distributions(model, hidden_rows()), strict=True)
    for done, (question, distributions) in enumerate(answers, 1):
        at_place = dict(zip(places[question], distributions, strict=True))
        row = rows[question[0]]
        for number in questions[question]:
            gains = (
                at_place[change.place][[ids[change.new], row.ids[change.place]]]
                for change in variants[number].substitutions
            )
            scores[number] = float(sum(new - old for new, old in gains))
        progress("scoring variants", done, len(order))
    return scores


def letter_rows(model: TrainedModel, sequences: Sequence[str]) -> list[TokenRow]:
    """Make the rows of sequences, one token per letter.

    Raises ValueError for a vocabulary whose tokens are not single letters, and as `require_scored` does.
    """
    rows = require_scored(model, sequences)
    for sequence, row in zip(sequences, rows, strict=True):
        if len(row) != len(sequence) + 2:
            raise ValueError(
                f"{model.directory}: {sequence[:20]!r}... has {len(sequence)} letters and {len(row) - 2} tokens; "
                "places need a vocabulary of single letters, and a sequence without white space"
            )
    return rows


def _letter_id(model: TrainedModel, letter: str) -> int:
    """The id of a letter. Raises ValueError for one that the vocabulary lacks."""
    (ids,) = model.tokenizer.encode_sentences([letter])
    if len(ids) != 1 or ids[0] == model.tokenizer.unk_id:
        raise ValueError(f"{model.directory}: its vocabulary has no token {letter!r}; correct the variant")
    return int(ids[0])
