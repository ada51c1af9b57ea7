"""What the paper took away from BERT-Base to see what it was good for (section 5.1 and appendix C.2).

Reproduces: no-nsp: no next-sentence prediction. MASK-SAME-RND: what the chosen tokens become, in percent: [MASK], what
    they were, a random token (BERT itself is 80-10-10). Otherwise bert_base.py, whose notes on the text hold here too.
Expected: MNLI 84.4 for BERT-Base, 83.9 without NSP; by masking 84.2 (80-10-10), 84.3 (100-0-0), 84.1 (80-0-20), 84.4
    (80-20-0), 83.7 (0-20-80), 83.6 (0-0-100).
Cost: that of bert_base.py, each.
Command: bertjax pretrain configs/ablations.py:100-0-0 --data.vocab vocab.txt
"""

from dataclasses import replace

from bert_base import config as bert_base

from bertjax.config import Config, variant_of

BOTH = ("mlm", "nsp")
VARIANTS = {  # objectives; of the chosen tokens: kept as they are, replaced by a random token
    "80-10-10": (BOTH, 0.1, 0.1),
    "100-0-0": (BOTH, 0.0, 0.0),
    "80-0-20": (BOTH, 0.0, 0.2),
    "80-20-0": (BOTH, 0.2, 0.0),
    "0-20-80": (BOTH, 0.2, 0.8),
    "0-0-100": (BOTH, 0.0, 1.0),
    "no-nsp": (("mlm",), 0.1, 0.1),
}


def config(variant: str = "no-nsp") -> Config:
    """BERT-Base with one thing changed."""
    objectives, keep, random = variant_of(VARIANTS, variant)
    base = bert_base()
    return replace(
        base,
        name=f"bert_base_{variant.replace('-', '_')}",
        data=replace(base.data, keep_share=keep, random_share=random),
        training=replace(base.training, objectives=objectives),
    )
