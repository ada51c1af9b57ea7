"""BERT for a language that has none yet, with a SentencePiece vocabulary trained on its text.

Reproduces: no single model; the method of models for one language (CamemBERT, Martin et al. 2020): BERT-Base, pieces of
    a unigram model, whole-word masking, case and accents kept. A full row has several sentence pairs. Variants:
    unigram, bpe (both SentencePiece), byte-bpe (no character is unknown), wordpiece; mini: unigram pieces and a small
    network for one small machine.
Text: yours, as --data.sources; the language's Wikipedia is a start: 'wikipedia:xxwiki-latest-pages-articles.xml.bz2'.
Expected: depends on the language and the text; `report.html` shows the held-out loss beside the best loss without
    context.
Cost: at most 1.3e10 tokens, 7.8e18 FLOP: compiled for 8 H100 at least 1.7 hours, 16 % of their peak
    (`launch/plans.md`); mini 1.2e8 tokens, 2.8e15 FLOP.
Time: 1.7 hours or more on 8 H100
Command: bertjax pretrain new_language --data.sources 'wikipedia:eowiki-latest-pages-articles.xml.bz2'
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.recipes.bert_base import config as bert_base
from bertjax.recipes.bert_mini import config as bert_mini

ROWS = DataConfig(
    vocab_size=32_000,
    lowercase=False,
    strip_accents=False,
    sequence_length=512,
    max_predictions=77,
    packing="pairs",
    masking="words",
)
VARIANTS = {
    "unigram": replace(ROWS, tokenizer="unigram"),
    "bpe": replace(ROWS, tokenizer="bpe"),
    "byte-bpe": replace(ROWS, tokenizer="byte_bpe"),
    "wordpiece": ROWS,
    "mini": replace(ROWS, tokenizer="unigram", vocab_size=8_000, sequence_length=128, max_predictions=20),
}


def config(variant: str = "unigram") -> Config:
    """One stage; the vocabulary is trained on the text unless --data.vocab names one."""
    data = get_variant(VARIANTS, variant)
    if variant == "mini":
        small = bert_mini()
        return replace(
            small, name="new_language_mini", model=replace(small.model, vocab_size=data.vocab_size), data=data
        )
    base = bert_base()
    return replace(
        base,
        name=f"new_language_{variant}",
        model=replace(base.model, vocab_size=data.vocab_size),
        data=data,
        optimizer=OptimizerConfig(learning_rate=2e-4, warmup_steps=10_000),
        training=TrainingConfig(steps=100_000, global_batch_size=256),
        stages=(),
    )
