"""A small ESM-2 on generated protein families or your own FASTA; a protein model in minutes.

Reproduces: no published model. Network, vocabulary, masks and token dropout are ESM-2's (`configs/protein_esm2.py`).
Text: 20,000 generated members of 12 families, the same in every installation; or your own FASTA as --data.sources.
Expected: on held-out members an MLM loss of 1.61 nats (letter frequencies alone 2.80). Of substitutions, those at
    conserved sites rank below those at free ones with an area under the curve of 0.99. On 137 real proteins of four
    families (`tests/text/proteins`), held out by cluster, 2.25 nats (letter frequencies 2.69).
Cost: 156,513 parameters, 4 million tokens, 6.4e12 FLOP: four minutes on two CPU cores.
Time: four minutes on two CPU cores
Command: bertjax pretrain protein_mini
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig
from bertjax.families.esm import ESM

LAYERS = 3


def config() -> Config:
    """3 layers of width 64, rows of up to 62 letters; longer records give crops."""
    return Config(
        name="protein_mini",
        model=replace(
            ESM.presets["8m"],
            hidden_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=64,
            initializer_range=0.08,
        ),
        execution=ExecutionConfig(scan_unroll=LAYERS),
        data=DataConfig(
            sources=("generated_proteins:20000",),
            tokenizer="characters:esm2",
            held_out=0.05,
            rows="crops",
            sequence_length=64,
            max_predictions=10,
        ),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=100, eps=1e-8),
        training=TrainingConfig(
            objectives=("mlm",),
            steps=3_000,
            global_batch_size=32,
            log_every=100,
            eval_every=500,
            eval_rows=512,
            checkpoint_every=1_000,
        ),
    )
