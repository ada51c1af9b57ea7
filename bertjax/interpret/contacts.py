"""Contacts of residues predicted from attention, by a logistic regression as ESM fits it.

A pair's features are the symmetrised attention between its letters in each head of each layer, less the average
product correction (APC). The regression has an L1 penalty (Rao et al. 2020, "Transformer protein language models are
unsupervised structure learners"). It is fitted on few sequences with known contacts, and on pairs at least six letters
apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.finetune.data.tables import Selection, read_rows
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.substitutions import letter_rows
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress, no_progress

APART = 6  # minimum distance of a pair in letters
_PENALTY = 0.15  # factor of the L1 norm, which is added to the sum of the log losses
_RANGES = (6, 12, 24)  # minimum distances in letters; CASP calls the last one long
_COLUMNS = ("sequence", "contacts")
_PAIR = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,8})")


class KnownContacts(NamedTuple):
    """A sequence and the pairs of its letters that touch, as places from 0: int64 [n, 2], the earlier one first."""

    sequence: str
    pairs: np.ndarray


class Regression(NamedTuple):
    """The probability of a contact is the logistic function of features @ weights + bias."""

    weights: np.ndarray  # float64 [layers * heads]
    bias: float

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The probabilities of pairs with these features, [..., layers * heads]: float64 [...]."""
        from scipy.special import expit

        return expit(features @ self.weights + self.bias)


class Precision(NamedTuple):
    """How often the likeliest pairs of a sequence touch, as means over sequences with contacts in a range."""

    apart: int  # minimum distance of a pair in letters
    sequences: int
    top: float  # for as many pairs as a sequence has letters
    as_known: float  # for as many pairs as it has contacts
    base: float  # for random pairs


def read_contacts(path: Path) -> list[KnownContacts]:
    """Read a table with the columns sequence and contacts, such as `3-17 5-30`; places count from 1.

    Raises ValueError naming file and line for another form, and for a place outside the sequence.
    """
    known = []
    for where, values in read_rows(path, Selection(_COLUMNS), print):
        for name in _COLUMNS:
            if not isinstance(values[name], str):
                raise ValueError(f"{where}: {name} is {values[name]!r}; it must be text")
        sequence = values["sequence"].strip()
        matches = [_PAIR.fullmatch(pair) for pair in values["contacts"].split()]
        if not all(matches):
            raise ValueError(f"{where}: contacts {values['contacts'][:80]!r}: write pairs of places, as in 3-17 5-30")
        pairs = np.array([sorted(map(int, match.groups())) for match in matches if match], np.int64).reshape(-1, 2)
        if len(pairs) and (pairs.max() > len(sequence) or (pairs[:, 0] == pairs[:, 1]).any()):
            raise ValueError(
                f"{where}: contacts {values['contacts'][:80]!r}: the sequence has {len(sequence)} letters, and a "
                "contact joins two different ones; correct the places"
            )
        known.append(KnownContacts(sequence, pairs - 1))
    return known


def contact_features(
    model: TrainedModel, sequences: Sequence[str], progress: Progress = no_progress
) -> Iterator[np.ndarray]:
    """The features of each pair of letters of each sequence: float32 [n, n, layers * heads].

    Raises ValueError as `letter_rows` and `look_inside` do.
    """
    rows = letter_rows(model, sequences)
    for done, inside in enumerate(look_inside(model, rows), 1):
        maps = inside.attention[:, :, 1:-1, 1:-1]
        maps = maps + maps.swapaxes(-1, -2)
        one, other, total = maps.sum(-1, keepdims=True), maps.sum(-2, keepdims=True), maps.sum((-1, -2), keepdims=True)
        corrected = maps - one * other / total
        yield corrected.reshape(-1, *corrected.shape[2:]).transpose(1, 2, 0)
        progress("attention of sequences", done, len(rows))


def fit_contacts(model: TrainedModel, known: Sequence[KnownContacts], progress: Progress = no_progress) -> Regression:
    """Fit the regression on the pairs of some sequences.

    Raises ValueError as `contact_features` does, and if none or all of the pairs touch.
    """
    features, labels = [], []
    for one, maps in zip(known, contact_features(model, [one.sequence for one in known], progress), strict=True):
        first, second = np.triu_indices(len(one.sequence), APART)
        features.append(maps[first, second])
        labels.append(_touching(one)[first, second])
    touching = np.concatenate([np.zeros(0, bool), *labels])
    if touching.all() or not touching.any():
        raise ValueError(
            f"contacts: {touching.sum():,} of {len(touching):,} pairs of letters that are {APART} or more apart touch; "
            "give sequences with known contacts"
        )
    return fit_regression(np.concatenate(features).astype(np.float64), touching)


def fit_regression(features: np.ndarray, labels: np.ndarray, penalty: float = _PENALTY) -> Regression:
    """Minimise the sum of the log losses and `penalty` times the L1 norm of the weights, the bias left out.

    `features` float64 [n, k], `labels` bool [n].
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    size = features.shape[1]

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        above, below, bias = parameters[:size], parameters[size:-1], parameters[-1]  # weights are their difference
        scores = features @ (above - below) + bias
        wrong = expit(scores) - labels
        slope = features.T @ wrong
        value = np.logaddexp(0, scores).sum() - scores[labels].sum() + penalty * parameters[:-1].sum()
        return value, np.concatenate([slope + penalty, penalty - slope, [wrong.sum()]])

    bounds = [(0, None)] * (2 * size) + [(None, None)]
    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-12, "gtol": 1e-6}
    found = minimize(loss, np.zeros(2 * size + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return Regression(found[:size] - found[size:-1], float(found[-1]))


def predict_contacts(
    model: TrainedModel, regression: Regression, sequences: Sequence[str], progress: Progress = no_progress
) -> Iterator[np.ndarray]:
    """The probability of a contact of each pair of letters of each sequence: float64 [n, n], symmetric."""
    return (regression.predict(maps) for maps in contact_features(model, sequences, progress))


def likeliest_pairs(probabilities: np.ndarray, count: int, apart: int = APART) -> np.ndarray:
    """The likeliest pairs of a sequence, at least `apart` letters apart: places from 0, int64 [n, 2]."""
    pairs = np.stack(np.triu_indices(len(probabilities), apart), 1)
    order = np.argsort(-probabilities[pairs[:, 0], pairs[:, 1]], kind="stable")
    return pairs[order[:count]]


def measure_contacts(known: Sequence[KnownContacts], probabilities: Sequence[np.ndarray]) -> list[Precision]:
    """The precision of predicted contacts in each range that has contacts."""
    precisions = []
    for apart in _RANGES:
        rows = []
        for one, predicted in zip(known, probabilities, strict=True):
            touching = _touching(one)
            first, second = np.triu_indices(len(one.sequence), apart)
            if not (count := int(touching[first, second].sum())):
                continue
            ranked = likeliest_pairs(predicted, len(one.sequence), apart)
            hits = touching[ranked[:, 0], ranked[:, 1]]
            rows.append((hits.mean(), hits[:count].mean(), count / len(first)))
        if rows:
            precisions.append(Precision(apart, len(rows), *map(float, np.mean(rows, axis=0))))
    return precisions


def _touching(one: KnownContacts) -> np.ndarray:
    """Known contacts as a matrix: bool [n, n], the upper triangle."""
    touching = np.zeros((len(one.sequence),) * 2, bool)
    touching[one.pairs[:, 0], one.pairs[:, 1]] = True
    return touching
