"""Two-level sampling: an epoch reads one record of each group, as UniRef's clusters are read for protein models."""

from __future__ import annotations

import numpy as np

from bertjax.input.plan import Reading
from bertjax.input.randomness import derive_key, hash64


def one_of_each_group(groups: np.ndarray, seed: int, epoch: int) -> Reading:
    """Draw a document of each group, all members alike, by the seed, the epoch and the document: in order of documents.

    `groups` uint64 [documents].
    """
    drawn = hash64(derive_key(seed, "member", epoch), np.arange(len(groups)))
    order = np.lexsort((drawn, groups))
    is_first = np.append(True, groups[order][1:] != groups[order][:-1])
    documents = np.sort(order[is_first])
    return Reading(documents, np.zeros_like(documents))
