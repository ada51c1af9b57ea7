"""A small BERT on text made by rules: whether a machine, a version or a change still trains as it should.

Reproduces: the curve in references/self_test.json, ten seeds; every evaluation says whether the run is on track.
Expected: on held-out text an MLM loss of 1.2 to 1.3 nats (token frequencies alone 4.0), NSP accuracy 91 %.
Text: 4,000 documents made by rules, the same in every installation.
Cost: 0.13 million parameters, 2 million tokens, 1.5e12 FLOP: half a minute on two CPU cores.
Command: bertjax pretrain self_test
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, OptimizerConfig, TrainingConfig


def config() -> Config:
    """2 layers of width 64, a run of 1,000 steps."""
    return Config(
        name="self_test",
        model=ModelConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=64,
            initializer_range=0.08,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        execution=ExecutionConfig(scan_unroll=2),
        data=DataConfig(
            sources=("generated:4000",),
            vocab_size=300,
            held_out=0.05,
            sequence_length=64,
            max_predictions=10,
        ),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=1_000,
            global_batch_size=32,
            log_every=100,
            eval_every=200,
            eval_rows=512,
            checkpoint_every=500,
        ),
    )
