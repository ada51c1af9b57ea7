"""ERNIE 1.0 for Chinese: characters, then words, then entities are masked as a whole, in three stages of one run.

Reproduces: "ERNIE: Enhanced Representation through Knowledge Integration" (arXiv 1904.09223) and PaddlePaddle/ERNIE,
    branch release/r2.0: ReLU, 513 positions, 18,000 entries; each unit is chosen independently with 15 %, and each of
    its tokens becomes [MASK] in 80 % and a random token in 10 % of the cases; next-sentence prediction; 1e-4, 5,000
    steps of warm-up, 1,000,000 steps. Not verified in a source: 256 rows of 512 tokens (8,192 tokens a GPU there, of an
    unknown number of GPUs), where the stages begin (thirds here), the epsilon of LayerNorm. Not the original: jieba's
    words are the phrases, and the entities are those of a list (a lexical analyser there); outside of entities jieba's
    words are masked; at most 110 tokens of a row are masked; random tokens exclude special ones (all but [PAD] there);
    the label of a pair is BERT's; B is a sentence of another document (of a near one there); no dialogue task.
Text: as in multilingual.py:chinese. Published: encyclopedia, news and forum text of Baidu, which is not public.
    `--data.units list:entities.txt` has an entity on each line, followed by a tab and `entity`. With phrases in it too
    (`phrase`), `--stages.0.masking phrases` takes these; `--data.units spans:FIELD` takes both from the text's records.
Expected: XNLI (development, test): 79.9, 78.4.
Cost: 100,477,778 parameters and 7.6e19 FLOP; needs `pip install 'bertjax[chinese]'`.
Command: bertjax pretrain ernie --data.vocab vocab.txt --data.units list:entities.txt
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.families.ernie import ERNIE


def config() -> Config:
    """The base size, the only one of version 1.0."""
    return Config(
        name="ernie",
        model=ERNIE.presets["base"],
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.zh",),
            vocab_size=18_000,
            segmenter="jieba",
            units="list:entities.txt",
            sequence_length=512,
            mask_count="each",
            random_ids="ordinary",
            max_predictions=110,
        ),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-4, warmup_steps=5_000),
        training=TrainingConfig(steps=1_000_000, keep_every=100_000),
        stages=(
            StageConfig(start=333_000, masking="words"),
            StageConfig(start=667_000, masking="entities"),
        ),
    )
