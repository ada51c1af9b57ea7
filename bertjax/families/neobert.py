"""NeoBERT (Le Breton et al. 2025): 28 narrow pre-norm layers, RMSNorm, interleaved RoPE, SwiGLU, an untied decoder.

Source of the numbers: chandar-lab/NeoBERT, `conf/model/neobert.yaml`. transformers has no class for it.
"""

from __future__ import annotations

from bertjax.config import ModelConfig
from bertjax.families.family import Family
from bertjax.input.layout import Template

NEOBERT = Family(
    name="neobert",
    title="NeoBERT",
    presets={
        "base": ModelConfig(
            family="neobert",
            num_hidden_layers=28,
            intermediate_size=2048,
            hidden_act="silu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=4096,
            type_vocab_size=0,
            position_embedding="rope",
            rope_interleaved=True,
            embedding_norm="none",
            norm="rms",
            norm_bias=False,
            norm_place="pre",
            layer_norm_eps=1e-5,
            attention_bias="none",
            mlp_bias="none",
            mlp="glu",
            mlm_tied=False,
            pooler="none",
            initializer="uniform",
        )
    },
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=None,
)
