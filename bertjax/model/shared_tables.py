"""Word tables that are learned as a difference from the generator's (DeBERTa v3, section 3.3), merged into one."""

from __future__ import annotations

from typing import Any

DIFFERENCE = "word_difference"  # next to `word`, the generator's table, in the parameters of the embeddings


def own_words(tables: dict[str, Any]) -> Any:
    """The word table that a model reads, from the parameters of its embeddings."""
    return tables["word"] + tables[DIFFERENCE] if DIFFERENCE in tables else tables["word"]


def with_own_words(params: dict[str, Any]) -> dict[str, Any]:
    """Merge the difference into the word table. This keeps the model's outputs, but not its generator's."""
    tables = params["encoder"]["embeddings"]
    if DIFFERENCE not in tables:
        return params
    own = {name: part for name, part in tables.items() if name != DIFFERENCE} | {"word": own_words(tables)}
    return params | {"encoder": params["encoder"] | {"embeddings": own}}
