"""BERT-Base in one day on one GPU with 24 GB: a good encoder by tomorrow.

Reproduces: no single model. The network and objectives are those of bert_base.py. The schedule follows "cramming"
    (Geiping and Goldstein 2022) and 24hBERT (Izsak et al. 2021), which also train for a day: short rows, large batches,
    a high learning rate, no dropout. The last tenth of the steps has rows of 512 tokens, so that all positions are
    trained. Rows are packed, so that no time is spent on padding. Variants: uncased, cased.
Text: as in bert_base.py, or your own. A day reads 4.5e9 tokens, English Wikipedia and books about once, so there is no
    dropout. For text that is read five times or more, use --model.hidden-dropout-prob 0.1. Dropout of the attention
    stays 0: with it no fused attention kernel can be used.
Schedule: 262,144 tokens a step, 8 times the paper's. The rate of 4e-4 lies between the paper's rate times the root of
    that factor (2.8e-4) and RoBERTa's (5e-4 for 2,048 rows of 512). beta2 is 0.98 as in RoBERTa; a tenth of the steps
    is warm-up.
Expected: not measured. Cramming's BERT, another network, reached a GLUE dev average of 80.7 in a day on an A6000.
Cost: 2.45e18 FLOP. Estimate: 22.7 hours at 30 TFLOP/s, which is 55,000 tokens/s: 42 % of the data sheet of an RTX 3090
    (71 TFLOP/s), 24 % of an A10's (125); at 30 % an RTX 4090 (165) takes 14 hours. The rest of the day is for
    evaluation, checkpoints and compilation. `bertjax bench` measures your GPU; for a slower one set fewer
    --training.steps; stages and warm-up follow.
Time: 22.7 hours at 30 TFLOP/s
Memory: weights and two moments 3 x 4 bytes x 109.5 million = 1.3 GB, two sets of gradients 0.9 GB, activations 0.36 MB
    per token of a microbatch (64 x 128 tokens: 3 GB), 0.62 MB at length 512 (16 x 512: 5.1 GB). jax takes three
    quarters of a card's memory, and a step takes the fewest microbatches that fit. Compiled for an H100 (jax 0.12.0.1)
    32 of them are 4.9 and 4.3 GiB, and at least 2.7 hours; 16 are 7.6 and 6.5 GiB, and 2.5 hours.
Command: bertjax pretrain bert_one_gpu --data.vocab vocab.txt
         bertjax pretrain bert_one_gpu --data.sources 'text:corpus/**/*.txt.zst'
"""

from dataclasses import replace

from bertjax.config import Config, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.recipes.bert_base import config as bert_base


def config(variant: str = "uncased") -> Config:
    """BERT-Base with batches, learning rate and steps for one day."""
    base = bert_base(variant)
    return replace(
        base,
        name=f"bert_one_gpu_{variant}",
        model=replace(base.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        data=replace(base.data, packing="pairs"),
        optimizer=OptimizerConfig(learning_rate=4e-4, warmup_steps=1_700, beta2=0.98),
        training=TrainingConfig(
            steps=17_000,
            global_batch_size=2_048,
            log_every=20,  # a minute and a half
            eval_every=1_000,
            checkpoint_every=200,  # a quarter of an hour
        ),
        stages=(StageConfig(start=15_300, sequence_length=512, max_predictions=77, global_batch_size=512),),
    )
