"""MacBERT for Chinese: n-grams of words replaced by similar words, never by [MASK], and sentence order.

Reproduces: "Revisiting Pre-trained Models for Chinese Natural Language Processing" (arXiv 2004.13922) and the README of
    ymcui/MacBERT: n-grams of one to four words (40, 30, 20, 10 %), of the chosen words 80 % similar ones from the table
    of --data.similar-words (a random one of as many tokens where it has none), 10 % random, 10 % kept; sentence order.
    Variants: base, large. Not verified in a source: LAMB, 1e-4, 1,000,000 steps of 384 rows of 512 tokens. Not the
    original: jieba finds the words (LTP there); the 15 % are of the tokens (of the words there); a similar word has as
    many tokens as the word (not stated there); one of the table's words is drawn (the nearest there).
Text: as in multilingual.py:chinese. The published models start from Chinese BERT and see 5.4 billion words.
    `bertjax neighbors VECTORS --vocab vocab.txt --output similar.tsv` makes the table of word vectors.
Expected: CMRC 2018 (development) EM/F1: base 68.5/87.9, large 70.7/88.9; XNLI (development): 80.3, 82.4. The model
    cannot fill in [MASK], which it never saw.
Cost: base 102,882,442 parameters and 1.1e20 FLOP, large 326,597,258 and 3.9e20; needs `pip install 'bertjax[chinese]'`.
Command: bertjax pretrain macbert --data.vocab vocab.txt --data.similar-words similar.tsv
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.macbert import MACBERT


def config(variant: str = "base") -> Config:
    """One of the published sizes."""
    return Config(
        name=f"macbert_{variant}",
        model=get_variant(MACBERT.presets, variant),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.zh",),
            vocab_size=21_128,
            segmenter="jieba",
            sequence_length=512,
            max_predictions=77,
            masking="ngrams",
            ngram_shares=(0.4, 0.3, 0.2, 0.1),
            random_ids="ordinary",
            similar_words="similar.tsv",
        ),
        optimizer=OptimizerConfig(name="lamb", learning_rate=1e-4, warmup_steps=10_000),
        training=TrainingConfig(
            steps=1_000_000,
            global_batch_size=384,
            objectives=("mlm", "sop"),
            keep_every=100_000,
        ),
    )
