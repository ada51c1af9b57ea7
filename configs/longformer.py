"""Longformer: RoBERTa's weights trained further in rows of 4,096 tokens, each attending to 256 on either side.

Reproduces: "Longformer" (arXiv 2004.05150, section 5) as allenai/longformer trains it: positions of a RoBERTa copied
    again and again, MLM without global tokens, 2^18 tokens a batch, AdamW with a rate that falls by the third power.
    Variants: base, large. By its authors, `--training.steps 3000` has most of the gain.
    Not verified in a source: the settings of large, here those of base. Not the original: rows are RoBERTa's, with its
    mask count.
Text: books, Wikipedia, Realnews and Stories, as far as documents are long. Name yours with --data.sources.
Expected: MLM loss of base 1.84 nats (2.652 bits) after the copy, by 3,000 steps below RoBERTa's own 1.76 (2.536 bits).
Measured: four layers of width 256, windows of 256 and a global [CLS], one row on a CPU (`bench_attention_length.py
    --window 256 --global-token`): of 1,024 tokens 0.27 s a step and 227 MiB, of 2,048 0.58 s and 378, of 4,096 1.22 s
    and 670, of 8,192 2.53 s and 1,266: the length to the power of 1.07 in time and processor time, 0.83 in memory.
Cost: base 148,711,257 parameters, 1.0e19 FLOP, a twentieth of it for 3,000 steps; large 434,653,273 parameters,
    3.4e19 FLOP. Planned for v5e:4x4, base takes 5.3 GiB of each chip and at least 50 ms a step (0.9 hours);
    by the compiler's schedule 110 ms (2.0 hours).
Command: bertjax pretrain longformer --init-from hf:roberta-base
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.longformer import LONGFORMER


def config(variant: str = "base") -> Config:
    """A preset of the family over rows of running text; it needs --init-from."""
    return Config(
        name=f"longformer_{variant}",
        model=get_variant(LONGFORMER.presets, variant),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("text:corpus/**/*.txt.zst",),
            tokenizer="byte_bpe",
            vocab_size=50_265,
            lowercase=False,
            strip_accents=False,
            prefix_space=False,
            sequence_length=4_096,
            rows="full_sentences",
            mask_count="random_round",
            mask_special=True,
            random_ids="ordinary",
            max_predictions=615,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=3e-5,
            warmup_steps=500,
            schedule="polynomial",
            decay_power=3.0,
            clip_norm=5.0,
        ),
        training=TrainingConfig(
            steps=65_000, global_batch_size=64, objectives=("mlm",), eval_rows=256, checkpoint_every=1_000
        ),
    )
