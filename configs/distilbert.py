"""DistilBERT, DistilRoBERTa: half the layers of a BERT or a RoBERTa, trained with its predictions of masked tokens.

Reproduces: "DistilBERT" (arXiv 1910.01108) with the settings of transformers' distillation examples: the student starts
    as the teacher's layers 0, 2, 4, 7, 9 and 11, without token types; loss weights of 5 for soft targets at temperature
    2, 2 for MLM and 1 for 1 - cosine of the last vectors; AdamW without decay, rate 5e-4, beta 0.9 and 0.98, clipped at
    5, warm-up over 5 %. Rows of one document, 4,000 of them a step (the paper: "up to 4k"; not verified). Not the
    original: soft targets only at masked tokens (the original: at all tokens unless `--restrict_ce_to_mask`); 15 % of
    the tokens of a row are masked, not of a batch; dropout also after the output of attention. As in the original,
    masked tokens are drawn with weights of count^-0.7 (`--mlm_smoothing`). The number of steps is that of 3 epochs of
    about 3.3 billion tokens.
    Variants: base; roberta, with the same settings on other text (steps and layers not verified).
Text: as in bert_base.py, with the teacher's vocabulary; for roberta OpenWebText, as your own files.
Expected: GLUE, development sets: 77.0 (BERT-Base 79.5); SST-2 91.3, MNLI 82.1, QQP 88.5. roberta: 79.0 (82.3 without
    WNLI).
Cost: 66,985,530 parameters beside a teacher of 109,514,298; 5.0e8 FLOP a token, 5.1e18 FLOP in all: compiled
    for 8 H100 at least 0.7 hours, 26 % of their peak (`launch/plans.md`). roberta: 82,170,201 parameters beside
    124,697,433.
Time: 0.7 hours or more on 8 H100
Measured: 10 minutes on two cores, three seeds, a student of 3 layers of all-MiniLM-L6-v2 (6 layers, 384 wide; it has no
    MLM head, so MLM and the cosine alone, rate 3e-4), from layers 1, 3 and 5 of it, in rows of 128 tokens of Wikipedia
    and novels: held-out MLM loss 5.220 ± 0.009 (frequencies alone: 7.096), SST-2 after one epoch of 7,000 examples, the
    better of two rates, 81.5 ± 0.04 (one class: 49.1). At a rate of 1e-3 the student lost what it started with, and
    without a teacher it did not learn at that rate; the gain from the teacher was not measured. By the entrant `halved`
    of `tests/benchmarks/bench_race.py` at commit 34860a1.
Command: bertjax pretrain distilbert --data.vocab bert-base-uncased/vocab.txt
"""

from dataclasses import replace

from bertjax.config import (
    Config,
    DataConfig,
    DistillationConfig,
    ExecutionConfig,
    OptimizerConfig,
    TrainingConfig,
    get_variant,
)
from bertjax.families.distilbert import DISTILBERT, LAYERS_OF_BERT
from bertjax.families.roberta import ROBERTA

ROWS = DataConfig(
    sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
    sequence_length=512,
    rows="doc_sentences",
    max_predictions=77,
    mask_power=0.7,
)
OF_ROBERTA = replace(
    ROWS,
    sources=("text:openwebtext/**/*.txt",),
    tokenizer="byte_bpe",
    vocab_size=50_265,
    lowercase=False,
    strip_accents=False,
    prefix_space=False,
)
VARIANTS = {  # name, teacher, model, data
    "base": ("distilbert", "hf:bert-base-uncased", DISTILBERT.presets["base"], ROWS),
    "roberta": ("distilroberta", "hf:roberta-base", ROBERTA.presets["distil"], OF_ROBERTA),
}


def config(variant: str = "base") -> Config:
    """The uncased model, or that of RoBERTa."""
    name, teacher, model, data = get_variant(VARIANTS, variant)
    return Config(
        name=name,
        init_from=teacher,
        init_layers=LAYERS_OF_BERT,
        model=model,
        execution=ExecutionConfig(dtype="bfloat16"),
        data=data,
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
            objectives=("distil_mlm", "mlm", "distil_cosine"),
            objective_weights=(5.0, 2.0, 1.0),
            eval_every=500,
            checkpoint_every=500,
        ),
        distillation=DistillationConfig(teacher=teacher, temperature=2.0),
    )
