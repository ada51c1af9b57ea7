"""ALBERT, versions 1 and 2: all layers share parameters, narrow embedding tables, n-gram masks, sentence order.

Reproduces: "ALBERT" (arXiv 1909.11942) as google-research/albert trains it: n-grams of one to three words with shares
    6/11, 3/11 and 2/11, at most 20 predictions, sentence order prediction, LAMB without bias correction.
    Variants: base, large, xlarge, xxlarge, and with -v2 the second versions: no dropout, 3,000,000 steps (base
    10,000,000) on more data. Not verified in a source: that xxlarge of version 1 has no dropout.
Text: as in bert_base.py. --data.vocab takes a SentencePiece model of 30,000 pieces; without it one is trained.
Expected: base-v2: MNLI 84.6, SST-2 92.9, SQuAD 1.1 F1 90.2, SQuAD 2.0 F1 82.1; xxlarge-v2: 90.6, 96.8, 94.6, 89.8.
Cost: base 11,813,810 parameters, xxlarge 223,158,450; the arithmetic is that of a BERT of the same width and depth:
    1.5e20 FLOP for base, 3.9e21 for xxlarge in 125,000 steps.
Command: bertjax pretrain albert:base-v2 --data.vocab spiece.model
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.albert import ALBERT

STEPS = {"base-v2": 10_000_000, "large-v2": 3_000_000, "xlarge-v2": 3_000_000, "xxlarge-v2": 3_000_000}


def config(variant: str = "base") -> Config:
    """One preset of the family with its published rows and update rule."""
    model = get_variant(ALBERT.presets, variant)
    return Config(
        name=f"albert_{variant.replace('-', '_')}",
        model=model,
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("wikipedia:enwiki-latest-pages-articles.xml.bz2", "text:books/**/*.txt"),
            tokenizer="unigram",
            vocab_size=30_000,
            sequence_length=512,
            max_predictions=20,
            masking="ngrams",
            ngram_shares=(6 / 11, 3 / 11, 2 / 11),
        ),
        optimizer=OptimizerConfig(name="lamb_uncorrected", learning_rate=1.76e-3, warmup_steps=3_125),
        training=TrainingConfig(
            steps=STEPS.get(variant, 125_000),
            global_batch_size=4_096,
            objectives=("mlm", "sop"),
            checkpoint_every=1_000,
        ),
    )
