"""Read several token stores with the same tokenizer as one store, in which each is a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.text.store.blocks import BlockFile
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.text.store.manifest import SPLITS, json_sha256
from bertjax.tokenization.tokenizer import Tokenizer

_LISTS = ("reading", "divided", "skipped", "division", "notes")  # of provenance, as notes on each store
_SUMS = ("text_bytes", "unknown_tokens")


class JoinedStore(TokenStore):
    """The documents of several stores in order; the n-th store is source n."""

    def __init__(self, stores: Sequence[TokenStore]) -> None:
        """Raises ValueError for stores with different tokenizers, and for one that is named twice."""
        require_joinable([store.manifest for store in stores], [str(store.path) for store in stores])
        first = self._first = stores[0]
        self._stores = tuple(stores)
        self.path = first.path
        self.name = ", ".join(store.name for store in stores)
        self.location = ""  # no single place that another host could open
        self.vocab_size, self.special = first.vocab_size, first.special
        self.fingerprint = json_sha256([store.fingerprint for store in stores])
        self.manifest = {
            **first.manifest,
            "fingerprint": self.fingerprint,
            "splits": {split: _sum([store.manifest["splits"][split] for store in stores]) for split in SPLITS},
            "provenance": _provenance(stores),
        }
        self._splits = {split: SplitView.joined([store.split(split) for store in stores]) for split in SPLITS}

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the ids of all stores."""
        return self._first.tokenizer()

    @property
    def is_bounded(self) -> bool:
        """Whether one of the stores is a copy that may hold only some of its bytes at a time."""
        return any(store.is_bounded for store in self._stores)

    def files(self) -> Iterator[BlockFile]:
        """All array files of all stores."""
        for store in self._stores:
            yield from store.files()


def require_joinable(manifests: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Raise ValueError for manifests of stores that cannot be read as one."""
    seen: dict[str, str] = {}
    for manifest, name in zip(manifests, names, strict=True):
        if manifest["tokenizer"] != manifests[0]["tokenizer"]:
            raise ValueError(
                f"data.store: {name} has another vocabulary or other text rules than {names[0]}; prepare it with the "
                "vocabulary of the first (data.vocab)"
            )
        if (other := seen.setdefault(manifest["fingerprint"], name)) != name or names.count(name) > 1:
            raise ValueError(
                f"data.store: {name} has the same text as {other}; leave it out, and raise the weight of the other"
            )


def _sum(splits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(split[key] for split in splits) for key in ("documents", "sentences", "tokens")} | {
        "shards": [shard for split in splits for shard in split["shards"]]
    }


def _division_notes(each: Sequence[dict[str, Any]]) -> list[str]:
    """Warn, a line each, of differences that let a document be held out in one store and trained on in another."""
    risk = "a document that is in both may be held out in one and trained on in the other"
    notes = []
    if len(shares := sorted({provenance["held_out"] for provenance in each if "held_out" in provenance})) > 1:
        listed = " and ".join(f"{share:.2g}" for share in shares)
        notes.append(
            f"stores hold out shares of {listed} of their documents: {risk}, and held-out figures are then too good; "
            f"prepare them with the same --data.held-out, here --data.held-out {shares[-1]}"
        )
    if len(lengths := sorted({provenance.get("longest_document", 0) for provenance in each})) > 1:
        listed = " and ".join(f"after {length:,} characters" if length else "not at all" for length in lengths)
        notes.append(
            f"stores divide long documents {listed}: {risk}; prepare them with --data.split-documents never, or as "
            "sources of one store"
        )
    if len({provenance.get("groups") for provenance in each}) > 1:
        notes.append(f"stores have different groups: {risk}; prepare them with the same --data.groups")
    return notes


def _provenance(stores: Sequence[TokenStore]) -> dict[str, Any]:
    """Describe where the stores' text came from, each as one source."""
    each = [store.manifest["provenance"] for store in stores]
    lists = {key: [item for provenance in each for item in provenance.get(key, [])] for key in _LISTS}
    lists["notes"] = [*_division_notes(each), *lists["notes"]]
    sums = {key: sum(provenance.get(key, 0) for provenance in each) for key in _SUMS}
    return {
        "sources": [{"kind": "store", "files": [[store.path.name, store.fingerprint]]} for store in stores],
        "shard_sources": {
            split: [n for n, store in enumerate(stores) for _ in store.manifest["splits"][split]["shards"]]
            for split in SPLITS
        },
        **{key: value for key, value in lists.items() if value},
        **sums,
    }
