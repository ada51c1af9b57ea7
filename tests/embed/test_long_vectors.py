"""Vectors of texts with 8,192 tokens match transformers in any batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from family_models import TEXTS, family_model

from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.embed.encoder import Encoding, TextEncoder
from bertjax.families.registry import FAMILIES

pytestmark = pytest.mark.long
LENGTH = 8192
PATTERN = ("window", "global_every", "attention_block", "random_blocks")


@pytest.mark.parametrize("family", ["modernbert", "longformer", "bigbird"])
def test_long_vectors_match_transformers(family: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    base = FAMILIES[family].presets["base"]
    pattern = {name: getattr(base, name) for name in PATTERN}
    pattern |= {"random_blocks_seed": -1} if base.attention_block else {}  # transformers' blocks in evaluation
    model = family_model(tmp_path / "run", family, max_position_embeddings=LENGTH, **pattern)
    model = replace(model, config=replace(model.config, data=replace(model.config.data, sequence_length=LENGTH)))
    words = " ".join(TEXTS[:-3]).split()
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, count)) for count in (9000, 1500, 700, 660, 500, 20)]
    encoder = TextEncoder(model, Encoding(), jax.devices()[:1])
    vectors = [embedding.vectors for embedding in encoder.encode(texts)]
    folder = export_huggingface(model, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    lengths = []
    for text, vector in zip(texts, vectors, strict=True):
        inputs = tokenizer(text, truncation=True, return_tensors="pt")
        lengths.append(inputs["input_ids"].shape[1])
        with torch.no_grad():
            theirs = network(**inputs).last_hidden_state[0].mean(0).numpy()
        assert np.linalg.norm(vector - theirs) <= 1e-5 * np.linalg.norm(theirs)
    assert lengths[0] == LENGTH and lengths[1] > 1024
