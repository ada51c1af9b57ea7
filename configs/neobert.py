"""NeoBERT: 28 narrow pre-norm layers with rotary positions and SwiGLU; 1,024 tokens, then 4,096.

Reproduces: "NeoBERT" (arXiv 2502.19587) as chandar-lab/NeoBERT trains it (`conf/`, `jobs/`): 20 % of the tokens masked,
    always with [MASK], a separate output matrix, 2,048 rows of 1,024 tokens for 1,000,000 steps, then 512 rows of 4,096
    for 50,000 at a constant rate, on BERT's uncased vocabulary.
    Not verified in a source: the rate (the paper says 6e-4, a file of the repository 1e-4) and the weight decay (0.01
    in the repository, 0.1 in the paper). Not the original: its cosine ends at a tenth after 900,000 steps and stays
    there; here it reaches a tenth after 1,000,000. Its qkv rows are ordered by head, so bertjax does not import its
    weights.
Text: RefinedWeb, 600 billion tokens. Name yours with --data.sources.
Expected: GLUE development sets, mean 89.0 (not verified).
Cost: 245,136,954 parameters, 3.3e21 FLOP: compiled for 8 H100 at least 575 hours, 20 % of their peak in
    the first stage, and for 16 v5e 297 (`launch/plans.md`).
Time: 575 hours or more on 8 H100
Command: bertjax pretrain neobert --data.vocab vocab.txt
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.families.neobert import NEOBERT

RATE, END = 6e-4, 0.1


def config() -> Config:
    """The published stages."""
    return Config(
        name="neobert",
        model=NEOBERT.presets["base"],
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("text:corpus/**/*.txt.zst",),
            sequence_length=1_024,
            rows="doc_sentences",
            packing="pairs",
            pairs_per_row=32,
            mask_probability=0.2,
            keep_share=0.0,
            random_share=0.0,
            max_predictions=205,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=RATE,
            warmup_steps=2_000,
            schedule="cosine",
            final_share=END,
            beta2=0.95,
            eps=1e-8,
            weight_decay=0.1,
        ),
        training=TrainingConfig(steps=1_050_000, global_batch_size=2_048, objectives=("mlm",), checkpoint_every=2_000),
        stages=(
            StageConfig(
                start=1_000_000,
                sequence_length=4_096,
                pairs_per_row=64,
                max_predictions=820,
                global_batch_size=512,
                learning_rate=RATE * END,
                final_share=1.0,
            ),
        ),
    )
