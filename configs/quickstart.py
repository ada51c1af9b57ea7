"""A small BERT, pretrained in minutes on a laptop's CPU, on text that every installation has.

Reproduces: nothing; shows all steps from text to a checkpoint that Hugging Face loads.
Text: the English prose of the documentation inside the installed Python packages.
Cost: 1.5 million parameters, 8 million tokens, 3e13 FLOP: minutes on two CPU cores.
Command: bertjax pretrain quickstart
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, OptimizerConfig, TrainingConfig


def config() -> Config:
    """2 layers of width 128, BERT-Tiny with twice the heads; its vocabulary of 8,000 entries is trained on the text."""
    return Config(
        name="quickstart",
        model=ModelConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,  # of width 32: with BERT-Tiny's two heads the first 3,000 steps learn little
            intermediate_size=512,
            max_position_embeddings=128,
            # With the paper's 0.02 a model of this width has not begun to use its context when the run ends.
            initializer_range=0.08,
            # A few passes over a small model: it underfits, and dropout only slows it.
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        execution=ExecutionConfig(scan_unroll=2, logits_chunk=256),
        data=DataConfig(
            sources=("docs:",),
            vocab_size=8_000,
            held_out=0.02,
            sequence_length=64,
            max_predictions=10,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=300),
        training=TrainingConfig(
            steps=4_000,
            global_batch_size=32,
            log_every=50,
            eval_every=1_000,
            eval_rows=2_048,
            checkpoint_every=1_000,
        ),
    )
