"""ELECTRA: a small generator replaces masked tokens, and the model detects which tokens were replaced.

Reproduces: "ELECTRA" (arXiv 2003.10555) as google-research/electra trains it: 85 % of the hidden positions [MASK], 15 %
    unchanged; the loss of the generator and 50 times that of the discriminator over all tokens; tables shared; Adam
    without bias correction. Variants: small (generator of 1/4 of the width, rows of 128), base (1/3), large (1/4, 25 %
    hidden). Not verified in a source: the weight of 50, but in the paper's text; 766,000 and 400,000 steps.
    Not the original: hidden positions are drawn without replacement; every row has two segments (the original: one row
    in ten has one), and a chunk of one sentence gets a B from another document.
Text: as in bert_base.py; large was trained on XLNet's 33 billion tokens.
Expected: GLUE, development sets, of small on OpenWebText: CoLA 56.8, SST-2 88.3, MNLI 78.9, QNLI 87.9; of the
    published base and large, trained longer: SST-2 95.1 and 96.9, MNLI 88.8 and 90.9, SQuAD 2.0 EM 80.5 and 88.1.
Measured: 2 layers of width 128, ten minutes on two cores, Wikipedia and books, 32 rows of 128 tokens, three seeds:
    SST-2 75.84 ± 0.27 where BERT's recipe has 78.13 ± 0.30, MRPC F1 75.66 ± 1.28 and 78.08 ± 0.47 (`bench_race.py all
    --size tiny --recipes bert electra --seeds 3 --minutes 10 --tasks sst2 mrpc`). A step takes 1.24x the time, so it
    takes 2,677 where BERT takes 3,317. Ten minutes are too short to learn much from context: the loss of replaced
    tokens is 0.375 nats (0.381 from their share alone), the generator's 6.06 and BERT's 6.40 (6.02 and 6.51 without
    context). After an hour at 4 layers of width 256 it is behind too: SST-2 72.1, BERT's recipe 78.8 (README.md).
Cost: small 13,549,057 parameters and a generator of 4,620,026, 1.1e18 FLOP: compiled for 8 H100 at least 0.7 hours, 6 %
    of their peak (`launch/plans.md`); base 109,483,009 and 33,740,602, 6.7e19; large 335,142,913 and 51,295,290,
    9.1e20.
Time: 0.7 hours or more on 8 H100
Command: bertjax pretrain electra:small --data.vocab vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.electra import ELECTRA, GENERATOR_WIDTHS

VARIANTS = {  # length, hidden share, rows a step, steps, rate
    "small": (128, 0.15, 128, 1_000_000, 5e-4),
    "base": (512, 0.15, 256, 766_000, 2e-4),
    "large": (512, 0.25, 2_048, 400_000, 2e-4),
}


def config(variant: str = "small") -> Config:
    """One of the published sizes, with its generator."""
    length, share, rows, steps, rate = get_variant(VARIANTS, variant)
    return Config(
        name=f"electra_{variant}",
        model=replace(ELECTRA.presets[variant], generator_width=GENERATOR_WIDTHS[variant]),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
            sequence_length=length,
            mask_probability=share,
            max_predictions=int((share + 0.005) * length),
            keep_share=0.15,
            random_share=0.0,
            short_sequence_probability=0.05,
        ),
        optimizer=OptimizerConfig(learning_rate=rate, warmup_steps=10_000),
        training=TrainingConfig(
            steps=steps,
            global_batch_size=rows,
            objectives=("mlm", "rtd"),
            keep_every=steps // 50_000 * 5_000,  # a tenth of the run, rounded to steps with a checkpoint
        ),
    )
