"""The 24 miniatures of "Well-Read Students Learn Better" (2019): 2 to 12 layers, hidden size 128 to 768, uncased.

Reproduces: the published sizes, pretrained as bert_base.py, whose notes on the text hold here too. A variant is
    LAYERSxHIDDEN: 2x128 is BERT-Tiny, 4x256 Mini, 4x512 Small, 8x512 Medium. In all of them a head has 64 dimensions,
    and the feed-forward layer is four times as wide as the hidden one.
Expected: GLUE scores of 64.2 (Tiny), 65.8 (Mini), 71.2 (Small), 73.5 (Medium).
Cost: 4.4 to 109 million parameters; 2.9e17 FLOP for Tiny.
Command: bertjax pretrain miniatures:4x256 --data.vocab vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, get_variant
from bertjax.recipes.bert_base import config as bert_base

SIZES = {f"{layers}x{hidden}": (layers, hidden) for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)}


def config(variant: str = "2x128") -> Config:
    """BERT-Base's recipe with a smaller network."""
    layers, hidden = get_variant(SIZES, variant)
    base = bert_base()
    model = replace(
        base.model,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    return replace(base, name=f"bert_{variant}", model=model)
