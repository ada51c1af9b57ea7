"""BERT-Large in 8,600 steps: LAMB at batch size 65,536 and length 128, then 32,768 and 512.

Reproduces: nvidia: the schedule of NVIDIA's DeepLearningExamples: 7,038 steps at 6e-3 with 28.43 % of warm-up, then
    1,563 at 4e-3 with 12.8 %, each with square-root decay. paper: "Large Batch Optimization for Deep Learning" (arXiv
    1904.00962): nine tenths of the epochs at 65,536, the rest at 32,768 after a new warm-up, linear decay. Its rate at
    32,768 is 5e-3 and grows with the root of the batch size (7.07e-3 at 65,536, derived); its warm-up there is a fifth
    of the steps. Variants: nvidia, paper.
Text: as in bert_base.py.
Expected: SQuAD 1.1 F1 90.6 (paper); a training loss of 1.24 to 1.30 in the second phase (nvidia).
Cost: 335,141,888 parameters; 1.6e20 FLOP: 76 minutes on the paper's 1,024 TPU v3 chips.
Time: 76 minutes on the paper's 1,024 TPU v3 chips
Command: bertjax pretrain lamb:nvidia --data.vocab vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, OptimizerConfig, StageConfig, get_variant
from bertjax.recipes.bert_large import config as bert_large

SECOND = {"sequence_length": 512, "global_batch_size": 32_768}
VARIANTS = {
    "nvidia": (
        OptimizerConfig(name="lamb", learning_rate=6e-3, warmup_steps=2_001, schedule="polynomial", decay_power=0.5),
        StageConfig(start=7_038, max_predictions=80, learning_rate=4e-3, warmup_steps=200, **SECOND),
    ),
    "paper": (
        OptimizerConfig(name="lamb", learning_rate=7.07e-3, warmup_steps=1_408),
        StageConfig(start=7_038, max_predictions=77, learning_rate=5e-3, warmup_steps=313, **SECOND),
    ),
}


def config(variant: str = "nvidia") -> Config:
    """BERT-Large with few, large batches."""
    optimizer, second = get_variant(VARIANTS, variant)
    base = bert_large()
    training = replace(
        base.training,
        steps=8_601,
        global_batch_size=65_536,
        eval_every=500,
        checkpoint_every=200,
        keep_every=0,
    )
    return replace(base, name=f"bert_large_lamb_{variant}", optimizer=optimizer, training=training, stages=(second,))
