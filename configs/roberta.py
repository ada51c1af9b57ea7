"""RoBERTa, XLM-R and CamemBERT: BERT's layers, MLM as the only objective, rows of running text, large batches.

Reproduces: "RoBERTa" (arXiv 1907.11692), as fairseq trains it: rows of whole sentences across the ends of documents, a
    mask count whose mean is exactly 15 %, special tokens masked too, random tokens from all but the special ones, Adam
    with decay of all parameters, no clipping. Variants: base, large; xlm-base, xlm-large (arXiv 1911.02116, the
    published 250,002 entries, texts by their size to the power 0.3); xlm-xl, xlm-xxl (arXiv 2105.00572, pre-norm);
    camembert (arXiv 1911.03894, whole-word masking). Not verified in a source: batch and steps of the last five, and
    the rates of the last three.
Text: RoBERTa 160 GB (books, Wikipedia, news, web pages, stories); XLM-R 2.5 TB of 100 languages; CamemBERT 138 GB of
    French. Name yours with --data.sources, one pattern for each language of XLM-R.
Expected: RoBERTa base, development sets: MNLI 87.6, QNLI 92.8, SST-2 94.8; large: 90.2, 94.7, 96.4.
Cost: base 124,697,433 parameters, 1.3e21 FLOP; large 355,412,057, 4.2e21 FLOP (the paper's first
    100,000 of 500,000 steps took about a day on 1,024 V100).
Command: bertjax pretrain roberta --data.vocab vocab.json
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.camembert import CAMEMBERT
from bertjax.families.roberta import ROBERTA
from bertjax.families.xlm_roberta import XLM_ROBERTA
from bertjax.families.xlm_roberta_xl import XLM_ROBERTA_XL

ROWS = DataConfig(
    sources=("text:corpus/**/*.txt.zst",),
    tokenizer="byte_bpe",
    vocab_size=50_265,
    lowercase=False,
    strip_accents=False,
    prefix_space=False,
    sequence_length=512,
    rows="full_sentences",
    mask_count="random_round",
    mask_special=True,
    random_ids="ordinary",
    max_predictions=77,
)
UNIGRAM = replace(ROWS, tokenizer="unigram", prefix_space=True)
MANY_LANGUAGES = replace(UNIGRAM, vocab_size=250_002, rows="doc_sentences", temperature=0.3, vocab_temperature=0.3)
XL = replace(MANY_LANGUAGES, vocab_size=250_880)
FRENCH = replace(UNIGRAM, vocab_size=32_005, masking="words")
VARIANTS = {  # model, data, peak rate, warm-up, steps, rows in a batch
    "base": (ROBERTA.presets["base"], ROWS, 6e-4, 24_000, 500_000, 8_192),
    "large": (ROBERTA.presets["large"], ROWS, 4e-4, 30_000, 500_000, 8_192),
    "xlm-base": (XLM_ROBERTA.presets["base"], MANY_LANGUAGES, 6e-4, 24_000, 1_500_000, 8_192),
    "xlm-large": (XLM_ROBERTA.presets["large"], MANY_LANGUAGES, 4e-4, 30_000, 1_500_000, 8_192),
    "xlm-xl": (XLM_ROBERTA_XL.presets["base"], XL, 1e-4, 10_000, 500_000, 2_048),
    "xlm-xxl": (XLM_ROBERTA_XL.presets["xxl"], XL, 1e-4, 10_000, 500_000, 2_048),
    "camembert": (CAMEMBERT.presets["base"], FRENCH, 7e-4, 10_000, 100_000, 8_192),
}


def config(variant: str = "base") -> Config:
    """fairseq's optimizer over rows of running text."""
    model, data, rate, warmup, steps, rows = get_variant(VARIANTS, variant)
    return Config(
        name=f"roberta_{variant.replace('-', '_')}",
        model=model,
        execution=ExecutionConfig(dtype="bfloat16"),
        data=data,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=rate,
            warmup_steps=warmup,
            schedule="linear_after_warmup",
            beta2=0.98,
            decay_all=True,
            clip_norm=0.0,
        ),
        training=TrainingConfig(steps=steps, global_batch_size=rows, objectives=("mlm",), checkpoint_every=1_000),
    )
