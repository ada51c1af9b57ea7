"""Adapter for mteb, the benchmark of text embeddings (`pip install mteb`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class MtebEncoder:
    """Model for `mteb.evaluate`: mteb's `EncoderProtocol` (2.x) around a function from texts to vectors.

    `prompts` are prepended to texts by their type, "query" or "document"; similarity is the cosine.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], np.ndarray],
        name: str,
        max_tokens: int,
        width: int,
        prompts: Mapping[str, str],
    ) -> None:
        """Wrap `encode`, which returns float32 [texts, `width`]. mteb's results use `name`, ORGANISATION/NAME.

        Raises ValueError for prompts of unknown types.
        """
        if unknown := [kind for kind in prompts if kind not in ("query", "document")]:
            raise ValueError(f"prompts={dict(prompts)}: {unknown[0]!r} is not a type of text; use query and document")
        self._encode, self._prompts = encode, prompts
        self._metadata = {"name": name, "max_tokens": float(max_tokens), "embed_dim": width}

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: str | None = None, **task: Any) -> np.ndarray:
        """Encode mteb's batches, each with its texts under "text": float32 [texts, D].

        `task` holds mteb's description of the task, which is ignored; bertjax makes its own batches.
        """
        prompt = self._prompts.get(str(getattr(prompt_type, "value", prompt_type)), "")
        return self._encode([prompt + text for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the cosine of each vector with each of the others: [n, m]."""
        from mteb.similarity_functions import cos_sim  # pyright: ignore[reportMissingImports]

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the cosines of pairs of vectors: [n]."""
        from mteb.similarity_functions import pairwise_cos_sim  # pyright: ignore[reportMissingImports]

        return pairwise_cos_sim(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> Any:
        """Name and sizes for mteb's results. Needs mteb."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction  # pyright: ignore[reportMissingImports]

        return ModelMeta.create_empty(self._metadata | {"similarity_fn_name": ScoringFunction.COSINE})
