"""Ettin: ModernBERT in six sizes from 17 million to a billion parameters.

Reproduces: the encoders of "Ettin" (arXiv 2507.11412), ModernBERT's recipe on open data: 1.7 trillion tokens at 1,024,
    250 billion at 8,192, 50 billion of decay. Masks fall from 30 to 15 and 5 % over the three phases. Variants: 17m,
    32m, 68m, 150m, 400m, 1b.
    Not verified in a source: rates, warm-up and rows in a batch, and whether theta of the windows is 160,000. Not the
    original: the vocabulary of 50,368 entries is trained on your text.
Text: DCLM, code, papers and books, 2 trillion tokens, published. Name yours with --data.sources.
Expected: GLUE development sets of 150m 88.9, above ModernBERT-base's 88.4 (not verified).
Cost: 17m has 16,913,600 parameters, 1.3e20 FLOP.
Command: bertjax pretrain ettin:150m --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, ExecutionConfig, StageConfig, TrainingConfig, get_variant
from bertjax.families.modernbert import MODERNBERT
from bertjax.recipes.modernbert import DATA, LONG, OPTIMIZER, SHORT, THETA

TOKENS = (1.7e12, 250e9, 50e9)  # of each phase
BATCH = 4_608 * SHORT  # tokens of a step
VARIANTS = {"17m": 3e-3, "32m": 3e-3, "68m": 3e-3, "150m": 8e-4, "400m": 5e-4, "1b": 5e-4}


def config(variant: str = "17m") -> Config:
    """The three phases; the rate falls in the last one."""
    rate = get_variant(VARIANTS, variant)
    preset = MODERNBERT.presets[f"ettin-{variant}"]
    first, second, third = (round(tokens / BATCH) for tokens in TOKENS)
    return Config(
        name=f"ettin_{variant}",
        model=replace(preset, rope_theta=THETA, rope_theta_local=0.0),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=replace(DATA, vocab_size=preset.vocab_size, mask_count="round", max_predictions=339),
        optimizer=replace(OPTIMIZER, learning_rate=rate, warmup_steps=2_000, weight_decay=0.01),
        training=TrainingConfig(
            steps=first + second + third,
            global_batch_size=BATCH // SHORT,
            objectives=("mlm",),
            checkpoint_every=2_000,
            keep_last=5,
        ),
        stages=(
            StageConfig(
                start=first,
                sequence_length=LONG,
                pairs_per_row=128,
                mask_probability=0.15,
                max_predictions=1_357,
                global_batch_size=BATCH // LONG,
                rope_theta=preset.rope_theta,
                learning_rate=rate / 2,
                decay_steps=third,
            ),
            StageConfig(start=first + second, mask_probability=0.05, max_predictions=538),
        ),
    )
