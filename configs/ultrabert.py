"""UltraBERT: EuroBERT's layers with windows in two of three, for rows of up to 32,768 tokens.

Reproduces: the network of UltraBERT (dmis-lab 2026), as in transformers: windows of 128 tokens to either side, every
    third layer global with angles of base 2,560,000, an MLM head of two dense layers. Variants: base (150M), large
    (380M).
    Not verified in a source: depth, inner width and vocabulary (chosen so that the numbers of parameters are the
    published ones), and all settings of the training. The phases here are ModernBERT's, with a third one of 32,768
    tokens: 30 % of the tokens masked, then 15 % while the rate decays.
Text: English web pages, code and papers. Name yours with --data.sources.
Expected: not measured here. The authors report the best average of its size in classification and in retrieval.
Cost: base 149,455,104 parameters, 9.1e20 FLOP.
Command: bertjax pretrain ultrabert --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, ExecutionConfig, StageConfig, TrainingConfig, get_variant
from bertjax.families.ultrabert import ULTRABERT
from bertjax.recipes.modernbert import DATA, LONG, OPTIMIZER, SHORT, THETA

LONGEST = 32_768  # tokens of a row
TOKENS = {SHORT: 0.8e12, LONG: 0.15e12, LONGEST: 0.05e12}
BATCH = 4_608 * SHORT  # tokens of a step
VARIANTS = {"base": 8e-4, "large": 5e-4}


def config(variant: str = "base") -> Config:
    """Three lengths of rows; the rate falls over the last one."""
    rate = get_variant(VARIANTS, variant)
    steps = {length: round(tokens / BATCH) for length, tokens in TOKENS.items()}
    preset = ULTRABERT.presets[variant]
    return Config(
        name=f"ultrabert_{variant}",
        model=replace(preset, rope_theta=THETA),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=replace(DATA, vocab_size=preset.vocab_size, mask_count="round", max_predictions=339),
        optimizer=replace(
            OPTIMIZER, learning_rate=rate, warmup_steps=2_000, decay_steps=steps[LONGEST], weight_decay=0.01
        ),
        training=TrainingConfig(
            steps=sum(steps.values()),
            global_batch_size=BATCH // SHORT,
            objectives=("mlm",),
            checkpoint_every=2_000,
            keep_last=5,
        ),
        stages=(
            StageConfig(
                start=steps[SHORT],
                sequence_length=LONG,
                pairs_per_row=128,
                max_predictions=2_586,
                global_batch_size=BATCH // LONG,
                rope_theta=preset.rope_theta,
            ),
            StageConfig(
                start=steps[SHORT] + steps[LONG],
                sequence_length=LONGEST,
                pairs_per_row=256,
                mask_probability=0.15,
                max_predictions=5_172,
                global_batch_size=BATCH // LONGEST,
            ),
        ),
    )
