"""Covering arrays: few combinations of options in which every two values meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def covering_rows(
    values: Mapping[str, Sequence[Any]],
    triples: Sequence[str] = (),
    is_excluded: Callable[[Mapping[str, Any]], bool] = lambda row: False,
) -> list[dict[str, Any]]:
    """Rows in which every two values of different keys meet, and every three values of the keys in `triples`.

    Greedy and without chance: each row begins with the first combination that no row has yet, and takes for every
    other key the value that brings most new combinations. Combinations that are excluded are in no row.
    """
    keys = list(values)
    groups = [*itertools.combinations(keys, 2), *itertools.combinations(triples, 3)]
    missing: dict[tuple[tuple[str, Any], ...], None] = {}
    for group in groups:
        for combination in itertools.product(*(values[key] for key in group)):
            pairs = tuple(zip(group, combination, strict=True))
            if not is_excluded(dict(pairs)):
                missing[pairs] = None
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for key in keys:
            if key in row:
                continue
            news = {}
            for shift in range(len(values[key])):
                value = values[key][(shift + len(rows)) % len(values[key])]
                trial = row | {key: value}
                if not is_excluded(trial):
                    news[value] = sum(
                        all(trial.get(k) == v for k, v in combination)
                        for combination in missing
                        if (key, value) in combination
                    )
            row[key] = max(news, key=news.__getitem__)
        rows.append({key: row[key] for key in keys})
        for combination in [c for c in missing if all(row[k] == v for k, v in c)]:
            del missing[combination]
    return rows
