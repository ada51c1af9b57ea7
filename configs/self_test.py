"""A small model on generated text, to check that a machine, a version or a change still trains correctly.

Reproduces: the curves of several seeds in references/self_test*.json; every evaluation reports whether the run is on
    track. Variants: bert; electra, with its generator; modernbert, with windows, in packed rows.
Expected: bert on held-out text an MLM loss of 1.26 ± 0.12 nats, the spread of the reference's seeds (token frequencies
    alone 4.0), NSP accuracy 91 %.
Text: 4,000 generated documents, the same in every installation.
Cost: bert 0.13 million parameters, 2 million tokens, 1.5e12 FLOP: half a minute on two CPU cores; the others a minute.
Time: half a minute on two CPU cores
Command: bertjax pretrain self_test
"""

from dataclasses import replace

from bertjax.config import (
    Config,
    DataConfig,
    ExecutionConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
    get_variant,
)
from bertjax.families.electra import ELECTRA
from bertjax.families.modernbert import MODERNBERT

SIZE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
    "initializer_range": 0.08,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DATA = DataConfig(sources=("generated:4000",), vocab_size=300, held_out=0.05, sequence_length=64, max_predictions=10)
OPTIMIZER = OptimizerConfig(learning_rate=2e-3, warmup_steps=100)
TRAINING = TrainingConfig(
    steps=1_000, global_batch_size=32, log_every=100, eval_every=200, eval_rows=512, checkpoint_every=500
)
BERT = Config(
    name="self_test",
    model=ModelConfig(**SIZE),
    execution=ExecutionConfig(scan_unroll=2),
    data=DATA,
    optimizer=OPTIMIZER,
    training=TRAINING,
)
VARIANTS = {
    "bert": BERT,
    "electra": replace(
        BERT,
        name="self_test_electra",
        model=replace(ELECTRA.presets["small"], **SIZE, embedding_size=0, generator_width=0.5),
        data=replace(
            DATA, rows="doc_sentences", packing="pairs", max_predictions=12, keep_share=0.15, random_share=0.0
        ),
        training=replace(TRAINING, objectives=("mlm", "rtd")),
    ),
    "modernbert": replace(
        BERT,
        name="self_test_modernbert",
        model=replace(
            MODERNBERT.presets["base"],
            **SIZE | {"num_hidden_layers": 4, "intermediate_size": 176},
            window=8,
            rope_theta=1_000.0,
            rope_theta_local=100.0,
        ),
        execution=ExecutionConfig(scan_unroll=4),
        data=replace(
            DATA,
            tokenizer="byte_bpe",
            vocab_size=400,
            special_tokens="[CLS]",
            rows="doc_sentences",
            packing="pairs",
            mask_probability=0.3,
            mask_count="each",
            max_predictions=34,
        ),
        optimizer=replace(
            OPTIMIZER,
            name="stable_adamw",
            schedule="warmup_stable_decay",
            decay_steps=300,
            decay_shape="1-sqrt",
            clip_norm=0.0,
        ),
        training=replace(TRAINING, objectives=("mlm",)),
    ),
}


def config(variant: str = "bert") -> Config:
    """2 layers of width 64 (modernbert: 4), a run of 1,000 steps."""
    return get_variant(VARIANTS, variant)
