"""A model's vectors in the interface of mteb, the benchmark of text embeddings (`pip install mteb`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class MtebEncoder:
    """What `mteb.evaluate` takes as a model: mteb's `EncoderProtocol` (2.x) around a function from texts to vectors.

    `prompts` are put before texts by their type, "query" or "document"; similarity is the cosine.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], np.ndarray],
        name: str,
        max_tokens: int,
        width: int,
        prompts: Mapping[str, str],
    ) -> None:
        """`encode` returns float32 [texts, `width`]; `name` is that of the model in mteb's results, ORGANISATION/NAME.

        Raises ValueError for a prompt of another type.
        """
        if unknown := [kind for kind in prompts if kind not in ("query", "document")]:
            raise ValueError(f"prompts={dict(prompts)}: {unknown[0]!r} is no type of text; use query and document")
        self._encode, self._prompts = encode, prompts
        self._metadata = {"name": name, "max_tokens": float(max_tokens), "embed_dim": width}

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: str | None = None, **task: Any) -> np.ndarray:
        """The vectors of mteb's batches, each with its texts under "text": float32 [texts, D].

        `task` is what mteb says of the task; batches on a device are chosen by bertjax.
        """
        prompt = self._prompts.get(str(getattr(prompt_type, "value", prompt_type)), "")
        return self._encode([prompt + text for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosine of each vector with each of the others: [n, m]."""
        from mteb.similarity_functions import cos_sim  # pyright: ignore[reportMissingImports]

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosine of each vector with its other: [n]."""
        from mteb.similarity_functions import pairwise_cos_sim  # pyright: ignore[reportMissingImports]

        return pairwise_cos_sim(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> Any:
        """Name and sizes for mteb's results. Needs mteb."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction  # pyright: ignore[reportMissingImports]

        return ModelMeta.create_empty(self._metadata | {"similarity_fn_name": ScoringFunction.COSINE})
