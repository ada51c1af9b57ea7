"""Nomic-BERT: BERT with rotary positions and SwiGLU on packed rows of 2,048 tokens, before it becomes an embedder.

Reproduces: nomic-bert-2048 of "Nomic Embed" (arXiv 2402.01613): 30 % of the tokens masked, documents packed to 2,048,
    batches of 4,096 rows, AdamW at 5e-4 with beta2 0.98, warm-up over 6 % of the steps and a linear fall to 0, no
    dropout, BERT's uncased vocabulary.
    Not verified in a source: the number of steps, the weight decay, and whether theta was 1,000 in pretraining.
Text: English Wikipedia and books. Name yours with --data.sources; --data.vocab the 30,522 entries of BERT.
Expected: GLUE development sets, mean 84 (not verified).
Cost: 137,354,304 parameters, 8.0e19 FLOP.
Command: bertjax pretrain nomic_bert --data.vocab vocab.txt
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig
from bertjax.families.nomic_bert import NOMIC_BERT

STEPS = 10_000


def config() -> Config:
    """One stage of long rows."""
    return Config(
        name="nomic_bert",
        model=NOMIC_BERT.presets["base"],
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("text:corpus/**/*.txt.zst",),
            sequence_length=2_048,
            rows="doc_sentences",
            packing="pairs",
            pairs_per_row=64,
            mask_probability=0.3,
            max_predictions=678,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=5e-4,
            warmup_steps=round(0.06 * STEPS),
            schedule="linear_after_warmup",
            beta2=0.98,
            weight_decay=0.01,
        ),
        training=TrainingConfig(steps=STEPS, global_batch_size=4_096, objectives=("mlm",), checkpoint_every=1_000),
    )
