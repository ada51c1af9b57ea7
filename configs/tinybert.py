"""TinyBERT: a small BERT whose layers learn what the layers of a frozen BERT-Base compute (general distillation).

Reproduces: "TinyBERT" (arXiv 1909.10351), general distillation as huawei-noah's general_distill.py does it: squared
    errors of the embeddings, of the outputs of every third or second layer through a dense layer to the teacher's
    width, and of the attention scores before the softmax; no MLM. Rows have no [MASK], as in its second version. Batch
    256, three epochs, rate 5e-5, decay 0.01. Variants: 4x312, 6x768. The number of steps is that of three epochs of
    2.5 billion words, about 3.3 billion tokens. Not the original: rows of one document
    and not pairs; padding does not count in the errors. Not verified:
    the rate that the published models were trained with (5e-5 is the default of the script).
    Then distil again for a task, from a teacher that was fine-tuned for it, layers first and predictions second; the
    paper's augmentation of the data is not part of bertjax:
    bertjax finetune sst2 --init-from runs/tinybert_4x312 --teacher runs/sst2 --distil layers --data DIR --epochs 10 \\
            --run-dir runs/sst2_layers
    bertjax finetune sst2 --init-from runs/sst2_layers --teacher runs/sst2 --distil predictions --data DIR --epochs 3 \\
            --run-dir runs/sst2_small
Text: as in bert_base.py, with the teacher's vocabulary.
Expected: GLUE, test sets, after distillation for each task with augmented data: 77.0 and 79.4 (teacher: 79.5).
Cost: 14,479,676 parameters and 67,579,196, beside a teacher of 110,106,428; the projection, which is not exported, has
    240,384 and 590,592. 4x312: 2.1e8 FLOP a token, 2.1e18 FLOP in all: compiled for 8 H100 at least 0.4 hours, 19 % of
    their peak (`launch/plans.md`).
Time: 0.4 hours or more on 8 H100
Command: bertjax pretrain tinybert --data.vocab bert-base-uncased/vocab.txt
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
from bertjax.families.bert import BERT, TINYBERT


def config(variant: str = "4x312") -> Config:
    """The paper's smaller student, or the larger one."""
    student = get_variant({name.removeprefix("tiny-"): model for name, model in TINYBERT.items()}, variant)
    return Config(
        name=f"tinybert_{variant}",
        model=replace(student, teacher_width=BERT.presets["base"].hidden_size),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
            sequence_length=128,
            rows="doc_sentences",
            max_predictions=20,
        ),
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=30_000),
        training=TrainingConfig(
            steps=300_000,
            global_batch_size=256,
            objectives=("distil_layers",),
            checkpoint_every=2_500,
        ),
        distillation=DistillationConfig(teacher="hf:bert-base-uncased"),
    )
