"""BERT (Devlin et al. 2018), and whatever differs from it in text, vocabulary or masking alone."""

from __future__ import annotations

from bertjax.config import ModelConfig
from bertjax.model.families.family import Family

BERT = Family(
    name="bert",
    presets={
        "base": ModelConfig(),
        "large": ModelConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    },
    heads=("pooler", "mlm_head", "nsp_head"),
)
