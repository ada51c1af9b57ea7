"""Covering arrays: small sets of rows that contain every pair of option values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def covering_rows(
    values: Mapping[str, Sequence[Any]],
    triples: Sequence[str] = (),
    is_excluded: Callable[[Mapping[str, Any]], bool] = lambda row: False,
) -> list[dict[str, Any]]:
    """Rows that contain every pair of values of different keys, and every triple of values of the keys in `triples`.

    A deterministic greedy search: each row begins with the first missing combination, and takes for every other key
    the value that adds most missing combinations. No row contains an excluded combination.
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
            gains = {}
            for shift in range(len(values[key])):
                value = values[key][(shift + len(rows)) % len(values[key])]
                trial = row | {key: value}
                if not is_excluded(trial):
                    gains[value] = sum(
                        all(trial.get(k) == v for k, v in combination)
                        for combination in missing
                        if (key, value) in combination
                    )
            row[key] = max(gains, key=gains.__getitem__)
        rows.append({key: row[key] for key in keys})
        for combination in [c for c in missing if all(row[k] == v for k, v in c)]:
            del missing[combination]
    return rows
