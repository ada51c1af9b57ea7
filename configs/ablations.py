"""The ablations of the paper: BERT-Base with one thing removed or changed (section 5.1 and appendix C.2).

Reproduces: no-nsp: no next-sentence prediction. ltr-no-nsp: in addition attention to the left only, and the next token
    predicted at every position (its figures are logged under mlm). MASK-SAME-RND: the percentages of chosen tokens that
    become [MASK], stay unchanged or become a random token (BERT itself: 80-10-10). sinusoidal, not in the paper: fixed
    sinusoidal positions, as in some descriptions of BERT. Otherwise as bert_base.py, also for the text.
Expected: MNLI 84.4 for BERT-Base, 83.9 without NSP, 82.1 left to right; by masking 84.2 (80-10-10), 84.3 (100-0-0),
    84.1 (80-0-20), 84.4 (80-20-0), 83.7 (0-20-80), 83.6 (0-0-100).
Cost: that of bert_base.py for each; ltr-no-nsp a fifth more, because it predicts at every position.
Command: bertjax pretrain ablations:100-0-0 --data.vocab vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, get_variant
from bertjax.recipes.bert_base import config as bert_base

WITHOUT_NSP = {"objectives": ("mlm",)}
VARIANTS = {  # differences from BERT-Base, by part of the config
    "80-10-10": {},
    "100-0-0": {"data": {"keep_share": 0.0, "random_share": 0.0}},
    "80-0-20": {"data": {"keep_share": 0.0, "random_share": 0.2}},
    "80-20-0": {"data": {"keep_share": 0.2, "random_share": 0.0}},
    "0-20-80": {"data": {"keep_share": 0.2, "random_share": 0.8}},
    "0-0-100": {"data": {"keep_share": 0.0, "random_share": 1.0}},
    "no-nsp": {"training": WITHOUT_NSP},
    "ltr-no-nsp": {"training": WITHOUT_NSP, "model": {"causal": True}, "data": {"predict": "next"}},
    "sinusoidal": {"model": {"position_embedding": "sinusoidal"}},
}


def config(variant: str = "no-nsp") -> Config:
    """BERT-Base with one change."""
    base = bert_base()
    changed = {part: replace(getattr(base, part), **values) for part, values in get_variant(VARIANTS, variant).items()}
    return replace(base, name=f"bert_base_{variant.replace('-', '_')}", **changed)
