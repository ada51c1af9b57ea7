"""BigBird: rows of 4,096 tokens in blocks of 64, each attending to neighbours, both ends and three random blocks.

Reproduces: "Big Bird" (arXiv 2007.14062), its ITC form, as google-research/bigbird trains it: whole-word masking of at
    most 75 tokens of a row, random replacements that are not special tokens, only MLM, AdamW without bias correction;
    no dropout on attention probabilities, as in their block attention. Variants: base, large. Not verified in a source:
    256 rows and 500,000 steps. Not the original: it starts from random values (theirs from RoBERTa's weights); the
    masked share is of the tokens, not of the words; a row begins with a sentence, not with any word; random blocks come
    from the whole row, not from its first 1,024 tokens.
Text: books, Wikipedia, news, stories. Name yours with --data.sources.
Expected: no published figure of GLUE; question answering and summaries of long texts are in the paper.
Measured: four layers of width 256, blocks of 64, one row on a CPU (`bench_attention_length.py --blocks 64`): of 1,024
    tokens 0.24 s a step and 185 MiB, of 2,048 0.53 s and 304, of 4,096 1.15 s and 542, of 8,192 2.30 s and 1,027: the
    length to the power of 1.09 in time, 1.10 in processor time and 0.83 in memory.
Cost: base 128,112,824 parameters, 3.0e20 FLOP; large 360,228,024 parameters, 1.0e21 FLOP. Planned for
    v5e:4x4, base takes 10.7 GiB of each chip and at least 199 ms a step (28 hours), 347 ms by the compiler's schedule.
Command: bertjax pretrain bigbird --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.bigbird import BIGBIRD


def config(variant: str = "base") -> Config:
    """A preset of the family over rows of one document each."""
    return Config(
        name=f"bigbird_{variant}",
        model=replace(get_variant(BIGBIRD.presets, variant), attention_probs_dropout_prob=0.0),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("text:corpus/**/*.txt.zst",),
            tokenizer="bpe",
            vocab_size=50_358,
            lowercase=False,
            strip_accents=False,
            sequence_length=4_096,
            rows="doc_sentences",
            masking="words",
            random_ids="ordinary",
            max_predictions=75,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000),
        training=TrainingConfig(
            steps=500_000,
            global_batch_size=256,
            objectives=("mlm",),
            eval_rows=512,
            checkpoint_every=1_000,
        ),
    )
