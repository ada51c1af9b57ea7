"""ModernBERT: windows in two of three layers, rotary positions, gated MLPs; 1,024 tokens, then 8,192.

Reproduces: "ModernBERT" (arXiv 2412.13663) as AnswerDotAI/ModernBERT trains it: 30 % of the tokens masked
    independently, sequences packed, StableAdamW without clipping, batches that grow (theirs linearly), a constant rate,
    then rows of 8,192 tokens with the global layers' theta raised from 10,000 to 160,000, and 50 billion tokens of 1 -
    sqrt decay. Variants: base, large, whose rate falls to a tenth after 900 billion tokens. `bertjax run average RUN
    --last 4` is the paper's last step for base.
    Not verified in a source: rows in a batch at 8,192 (here an eighth of those at 1,024, which for large is 616, made
    608 so that 16 divide it). Not the original: dropout of 0.1 on the attention's output is left out (transformers'
    configs have 0), large starts from random values and not from a tiled base, held-out masks are 30 % as in training
    (theirs 15 %), [CLS] and [SEP] are not masked (theirs are, which its authors call a mistake), and the vocabulary is
    trained on your text. They multiply the weight decay of 1e-5 by the current rate over its peak; bertjax multiplies
    by the rate, so that the recipe sets 1e-5 over the first peak (later stages have lower rates, and so less decay).
Text: 2 trillion tokens of web pages, code and papers, not published. Name yours with --data.sources.
Expected: GLUE development sets, mean: base 88.4, large 90.4 (not verified).
Cost: base 149,655,232 parameters, 1.8e21 FLOP; large 395,881,664, 4.9e21. Compiled for 8 H100, base takes at least
    219 hours, 27 % of their peak with rows of 1,024 tokens and 43 % of 8,192, and for 16 v5e 207 (`launch/plans.md`).
    Four layers with windows, 256 wide, one row on a CPU (`bench_attention_length.py`): of 1,024 tokens 0.18 s a
    step and 157 MiB, of 2,048 0.37 s and 249, of 4,096 0.76 s and 426, of 8,192 1.55 s and 786: the length to the power
    of 1.03 in time, 1.04 in processor time and 0.77 in memory.
Time: 219 hours or more on 8 H100
Memory: base compiled for one v5e chip of 15.75 GiB with `--execution.remat full`, 8 rows at a time: of 2,048 tokens 3.7
    GiB and 116 ms a step at best, of 4,096 4.9 GiB and 253 ms, of 8,192 7.3 GiB and 525 ms. Without remat 8 rows of
    8,192 do not fit at once, but 2 at a time do, and 8 then take 450 ms. `bertjax plan modernbert --topology v5e:1x1
    --stage 7 --stages.5.global-batch-size 8 --stages.5.grad-accum-steps 1 --execution.remat full` compiles it, with
    `--stages.5.sequence-length 2048` or `4096` the shorter rows. For one H100 (`--topology h100:1`, jax 0.12.0.1) the
    same is 4.8 GiB and 45 ms, 6.7 and 87, 10.3 and 174, limited by what windows in XLA read and write.
Command: bertjax pretrain modernbert --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import (
    Config,
    DataConfig,
    ExecutionConfig,
    OptimizerConfig,
    StageConfig,
    TrainingConfig,
    get_variant,
)
from bertjax.families.modernbert import MODERNBERT

SHORT, LONG = 1_024, 8_192  # tokens of a row
SHORT_TOKENS, LONG_TOKENS, DECAY_TOKENS = 1.719e12, 250e9, 50e9
WEIGHT_DECAY = 1e-5  # at the peak of the rate
THETA = 10_000.0  # of the global layers with short rows; the presets have the later value
VARIANTS = {  # rows of the batches that lead to the last one, their tokens in all, rows at 8,192, rates, warm-up tokens
    "base": ((768, 1_536, 2_304, 3_072, 3_840, 4_608), 50e9, 576, 8e-4, 3e-4, 3e9),
    "large": ((448, 1_344, 2_240, 3_136, 4_032, 4_928), 10e9, 608, 5e-4, 5e-5, 2e9),
}
LOWERED = {"large": (900e9, 5e-5)}  # tokens after which the rate changes, and the new rate
DATA = DataConfig(
    sources=("text:corpus/**/*.txt.zst",),
    tokenizer="byte_bpe",
    vocab_size=50_368,
    lowercase=False,
    strip_accents=False,
    prefix_space=False,
    special_tokens="[CLS]",
    sequence_length=SHORT,
    rows="doc_sentences",
    packing="pairs",
    pairs_per_row=32,
    mask_probability=0.3,
    mask_count="each",
    max_predictions=396,
)
OPTIMIZER = OptimizerConfig(
    name="stable_adamw", schedule="warmup_stable_decay", decay_shape="1-sqrt", beta2=0.98, clip_norm=0.0
)


def config(variant: str = "base") -> Config:
    """The published stages; a batch grows in five steps of equal tokens."""
    rows, growing, long_rows, rate, long_rate, warmup = get_variant(VARIANTS, variant)
    # The first step of each stage, from the tokens before it.
    starts = [0]
    for size in rows[:-1]:
        starts.append(starts[-1] + round(growing / (len(rows) - 1) / (size * SHORT)))
    extended = starts[-1] + round((SHORT_TOKENS - growing) / (rows[-1] * SHORT))
    ended = extended + round((LONG_TOKENS + DECAY_TOKENS) / (long_rows * LONG))
    stages = [
        StageConfig(start=start, global_batch_size=size) for start, size in zip(starts[1:], rows[1:], strict=True)
    ]
    if variant in LOWERED:
        tokens, lower = LOWERED[variant]
        at = starts[-1] + round((tokens - growing) / (rows[-1] * SHORT))
        stages.append(StageConfig(start=at, learning_rate=lower))
    stages.append(
        StageConfig(
            start=extended,
            sequence_length=LONG,
            pairs_per_row=128,
            max_predictions=2_707,
            global_batch_size=long_rows,
            learning_rate=long_rate,
            decay_steps=round(DECAY_TOKENS / (long_rows * LONG)),
            rope_theta=MODERNBERT.presets[variant].rope_theta,
        )
    )
    return Config(
        name=f"modernbert_{variant}",
        model=replace(MODERNBERT.presets[variant], rope_theta=THETA),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DATA,
        optimizer=replace(
            OPTIMIZER,
            learning_rate=rate,
            warmup_steps=round(warmup / (rows[0] * SHORT)),
            weight_decay=WEIGHT_DECAY / rate,
        ),
        training=TrainingConfig(
            steps=ended,
            global_batch_size=rows[0],
            objectives=("mlm",),
            checkpoint_every=2_000,
            keep_last=5,
        ),
        stages=tuple(stages),
    )
