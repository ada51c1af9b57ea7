"""A modern encoder in one day on one GPU: ModernBERT's network, rows of 1,024 tokens, then of 8,192.

Reproduces: no single model. The network is ModernBERT-base (2024) with 32,768 tokens of vocabulary, which "cramming"
    (Geiping and Goldstein 2022) found enough for a day. Also theirs: no dropout, short rows first, a high rate that
    falls to 0. From ModernBERT: 30 % masked tokens, StableAdamW, a constant rate and a 1 - sqrt decay (Hägele et al.
    2024), here over the rows of 8,192, and theta raised there. Rows are whole documents, packed. Variants: 24gb, 80gb.
Text: 2.8e9 tokens are read on 24 GB, somewhat less than English Wikipedia and books have; 24e9 on 80 GB, for which add
    web pages: text that is read more than four times teaches less (Muennighoff et al. 2023).
Cost: 136,120,832 parameters. A token costs 0.80 GFLOP in rows of 1,024 and 1.33 in rows of 8,192, where attention is 47
    % of it; an eighth of the tokens are in long rows. A day has 22.7 hours of steps; the rest is for evaluation,
    checkpoints and compilation.
    24gb: 2.4e18 FLOP. Estimate: 22.6 hours at 30 TFLOP/s (18 % of the data sheet of an RTX 4090, 42 % of an RTX
    3090's), which is 37,000 tokens/s in rows of 1,024 and 2.8e9 a day, 21 for each parameter. Decoders make the best
    use of their FLOP at 20 (Hoffmann et al. 2022), so a larger network would gain little.
    80gb: 2.1e19 FLOP. Estimate: 22.6 hours at 258 TFLOP/s, the 26 % of an H100 that ModernBERT's authors had: 320,000
    tokens/s in rows of 1,024 and 24e9 a day, 178 for each parameter. By the compiler's plan an H100 needs at least 19.8
    hours, limited by memory bandwidth; the matrix products take 6.1 of them. `bertjax bench` measures your GPU; for a
    slower one set fewer --training.steps; stages, warm-up and decay follow.
Time: 22.6 hours at 30 TFLOP/s
Schedule: 2^18 and 2^19 tokens a step. The rate is ModernBERT's 8e-4, of its first batches of 786,432 tokens, times the
    root of the ratio.
Expected: not measured. MosaicBERT-base had a GLUE average of 79.6 after 9 hours of an A100, cramming 80.7 after a day
    of an A6000.
Memory: compiled for an H100 (`bertjax plan modern_one_gpu:80gb --topology h100:1`, jax 0.12.0.1) 24gb takes 6.6 GiB
    in 32 microbatches, 80gb 18.1 GiB in 16, of which weights and moments are 1.5. A step takes the fewest that fit.
Command: bertjax pretrain modern_one_gpu --data.sources 'text:corpus/*.txt'
         bertjax pretrain modern_one_gpu:80gb --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, ExecutionConfig, StageConfig, TrainingConfig, get_variant
from bertjax.families.modernbert import MODERNBERT
from bertjax.recipes.modernbert import DATA, LONG, OPTIMIZER, SHORT, THETA

VARIANTS = {  # rows of a step at 1,024 tokens, steps at 1,024, steps at 8,192, rate, warm-up
    "24gb": (256, 9_400, 1_350, 4.6e-4, 500),
    "80gb": (512, 40_400, 5_800, 6.5e-4, 1_000),
}


def config(variant: str = "24gb") -> Config:
    """ModernBERT-base for one day on a GPU with so much memory."""
    rows, short_steps, long_steps, rate, warmup = get_variant(VARIANTS, variant)
    preset = MODERNBERT.presets["base"]
    return Config(
        name=f"modern_one_gpu_{variant}",
        model=replace(preset, vocab_size=32_768, rope_theta=THETA),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=replace(DATA, vocab_size=32_768, rows="documents"),
        optimizer=replace(
            OPTIMIZER, learning_rate=rate, warmup_steps=warmup, decay_steps=long_steps, weight_decay=0.01
        ),
        training=TrainingConfig(
            steps=short_steps + long_steps,
            global_batch_size=rows,
            objectives=("mlm",),
            log_every=20,
            eval_every=1_000,
            eval_rows=512,
            checkpoint_every=200,
        ),
        stages=(
            StageConfig(
                start=short_steps,
                sequence_length=LONG,
                pairs_per_row=128,
                max_predictions=2_707,
                global_batch_size=rows * SHORT // LONG,
                rope_theta=preset.rope_theta,
            ),
        ),
    )
