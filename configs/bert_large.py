"""BERT-Large as in the paper, and with whole-word masking as published in 2019.

Reproduces: section 3 and appendix A.2 of the paper: 24 layers, hidden size 1024, 16 heads; otherwise as bert_base.py,
    also for the text. Variants: uncased, cased, wwm, wwm-cased.
Expected: a held-out perplexity of 3.23 (paper, table 6), a loss of 1.17; GLUE test average 82.1, SQuAD 1.1 F1 90.9.
    With whole-word masking: SQuAD 1.1 F1 92.8, MNLI 87.1 (uncased), 92.9 and 86.5 (cased).
Cost: 335,141,888 parameters; 8.2e19 FLOP: 4 days on the paper's 64 TPU v2 chips. If memory is short: --mesh.fsdp 4,
    --execution.remat dots, --training.grad-accum-steps 8.
Time: 4 days on the paper's 64 TPU v2 chips
Command: bertjax pretrain bert_large:wwm --data.vocab vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, get_variant
from bertjax.recipes.bert_base import config as bert_base

VARIANTS = {  # casing, whole-word masking
    "uncased": ("uncased", False),
    "cased": ("cased", False),
    "wwm": ("uncased", True),
    "wwm-cased": ("cased", True),
}


def config(variant: str = "uncased") -> Config:
    """BERT-Base's recipe with the larger network."""
    casing, whole_words = get_variant(VARIANTS, variant)
    base = bert_base(casing)
    model = replace(base.model, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    data = replace(base.data, masking="words" if whole_words else "tokens")
    return replace(base, name=f"bert_large_{variant.replace('-', '_')}", model=model, data=data)
