"""DistilBERT: a BERT of half the layers that learns from a frozen BERT what it would put for hidden tokens.

Reproduces: "DistilBERT" (arXiv 1910.01108) with the settings of transformers' distillation examples: the student
    starts as the teacher's layers 0, 2, 4, 7, 9 and 11, without token types; 5 times the soft targets at temperature
    2, 2 times MLM, 1 time 1 - cosine of the last vectors; AdamW without decay, rate 5e-4, beta 0.9 and 0.98, clipped
    at 5, warm-up over 5 %. Rows of one document, 4,000 of them a step (the paper: "up to 4k"; not verified).
    Not the original: soft targets at the hidden tokens alone (there at all tokens unless `--restrict_ce_to_mask`);
    hidden tokens are drawn evenly, not with weights of count^-0.7, 15 % of a row and not of a batch; dropout behind the
    output of attention too. The number of steps is that of 3 epochs of about 3.3 billion tokens.
Text: as in bert_base.py, with the teacher's vocabulary.
Expected: GLUE, development sets: 77.0 (BERT-Base 79.5); SST-2 91.3, MNLI 82.1, QQP 88.5.
Cost: 66,985,530 parameters beside a teacher of 109,514,298; 5.4e8 FLOP a token, 5.5e18 in all: 4.4 hours of one
    H100 at 35 % of its peak.
Command: bertjax pretrain distilbert --data.vocab bert-base-uncased/vocab.txt
"""

from bertjax.config import (
    Config,
    DataConfig,
    DistillationConfig,
    ExecutionConfig,
    OptimizerConfig,
    TrainingConfig,
)
from bertjax.model.families.distilbert import DISTILBERT, LAYERS_OF_BERT

TEACHER = "hf:bert-base-uncased"


def config() -> Config:
    """The uncased model."""
    return Config(
        name="distilbert",
        init_from=TEACHER,
        init_layers=LAYERS_OF_BERT,
        model=DISTILBERT.presets["base"],
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
            sequence_length=512,
            rows="doc_sentences",
            max_predictions=77,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=5e-4,
            warmup_steps=250,
            schedule="linear_after_warmup",
            beta2=0.98,
            weight_decay=0.0,
            clip_norm=5.0,
        ),
        training=TrainingConfig(
            steps=5_000,
            global_batch_size=4_000,
            grad_accum_steps=50,
            objectives=("distil_mlm", "mlm", "distil_cosine"),
            objective_weights=(5.0, 2.0, 1.0),
            eval_every=500,
            checkpoint_every=500,
        ),
        distillation=DistillationConfig(teacher=TEACHER, temperature=2.0),
    )
