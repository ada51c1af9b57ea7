"""MosaicBERT: BERT-Base with ALiBi in place of positions and gated MLPs, in 70,000 batches of 4,096 short rows.

Reproduces: "MosaicBERT" (arXiv 2312.17482) as mosaicml/examples trains it (`bert/src`, yaml files): 30 % of the tokens
    hidden, 286.72 million rows of 128 tokens, warm-up over 6 % of the steps, a linear fall to 2 % of the peak, no
    dropout of attention. Not the original: held-out masks are 30 % as in training (theirs 15 %), the decay of weights
    is a share of the current rate (theirs of the current rate over the peak), LayerNorm is computed in float32, and
    rows are sentences of one document, packed.
Text: C4. Name yours with --data.sources; --data.vocab the 30,522 entries of BERT.
Expected: GLUE development sets, mean 79.6; the BERT-Base of its README, by the same recipe, 83.3 over 8 tasks.
Cost: 137,395,770 parameters, 2.7e19 FLOP: 0.8 days on one H100 at 40 % of its peak.
Command: bertjax pretrain mosaicbert --data.vocab vocab.txt
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig
from bertjax.model.families.mosaicbert import MOSAICBERT


def config() -> Config:
    """The published run."""
    return Config(
        name="mosaicbert",
        model=MOSAICBERT.presets["base"],
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("text:corpus/**/*.txt.zst",),
            sequence_length=128,
            rows="doc_sentences",
            packing="pairs",
            mask_probability=0.3,
            max_predictions=39,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=5e-4,
            warmup_steps=4_200,
            schedule="linear_after_warmup",
            final_share=0.02,
            beta2=0.98,
            weight_decay=1e-5,
            clip_norm=0.0,
        ),
        training=TrainingConfig(
            steps=70_000, global_batch_size=4_096, grad_accum_steps=4, objectives=("mlm",), checkpoint_every=1_000
        ),
    )
