"""A small ModernBERT on your own text: the recommended one of five recipes compared after an hour on two CPU cores.

Reproduces: no single model. Network, masks, packed rows, update rule and schedule are those of ModernBERT
    (`configs/modernbert.py`); the size is that of BERT-Mini, with narrower heads, a vocabulary of 8,000 and rows of 128
    tokens. The recipe is the entrant `modernbert` of `tests/benchmarks/bench_race.py`.
Text: yours, as --data.sources.
Expected: after an hour on Wikipedia and novels SST-2 80.0, MRPC F1 78.8, QNLI 56.4, POS 93.0 and Cranfield nDCG@10 13.3
    (README.md), one seed: best in search and tags, equal in sentiment within the error, worse than BERT in QNLI.
Cost: 5,335,360 parameters; two hours on two CPU cores, or the time in --training.budget.
Time: two hours on two CPU cores
Command: bertjax pretrain modern_mini --data.sources 'text:books/*.txt' --training.budget 2h
"""

from dataclasses import replace

from bertjax.config import Config
from bertjax.recipes.bert_mini import config as bert_mini
from bertjax.recipes.modernbert import config as modernbert

STEPS = 16_000


def config() -> Config:
    """Uncased; the vocabulary is trained on the text unless --data.vocab names one."""
    small, modern = bert_mini(), modernbert()
    return replace(
        small,
        name="modern_mini",
        model=replace(
            modern.model,
            vocab_size=8_000,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=8,
            intermediate_size=704,  # gated, with about as many parameters as 1,024 without gates
            max_position_embeddings=128,
            initializer_range=small.model.initializer_range,
        ),
        data=replace(
            small.data,
            vocab_size=8_000,
            rows=modern.data.rows,
            packing=modern.data.packing,
            pairs_per_row=modern.data.pairs_per_row,
            mask_probability=modern.data.mask_probability,
            mask_count=modern.data.mask_count,
            max_predictions=70,  # more than a row of 128 tokens draws at 30 %
        ),
        optimizer=replace(
            modern.optimizer,
            learning_rate=small.optimizer.learning_rate,
            warmup_steps=STEPS // 20,
            decay_steps=STEPS // 10,
        ),
        training=replace(
            small.training, steps=STEPS, global_batch_size=16, objectives=modern.training.objectives, keep_last=5
        ),
    )
