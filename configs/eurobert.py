"""EuroBERT: Llama's layers as a multilingual encoder; half of the tokens masked, at the end a tenth in rows of 8,192.

Reproduces: "EuroBERT" (arXiv 2503.05500): RMSNorm, SwiGLU, rotary positions of base 250,000, no biases and an output
    matrix of its own; MLM with 50 % of the tokens hidden in rows of 2,048, then an annealing phase with 10 % in rows of
    8,192. Variants: 210m, 610m, 2.1b; the two larger ones have three heads of queries for each head of keys.
    Not verified in a source: the rate, the batch of 4.2 million tokens, betas, weight decay, warm-up, and the share of
    the annealing phase (here a twentieth). Not the original: the vocabulary of 128,256 entries is trained on your text;
    their own is `--data.vocab tokenizer.json` from the published folder.
Text: 5 trillion tokens in 15 languages, code and mathematics. Name yours with --data.sources, one for each language,
    and balance them with --data.temperature; a stage may have other shares (--stages.0.weights).
Expected: not measured here. The authors report better retrieval, classification and regression than XLM-R and mGTE.
Cost: 210m has 310,266,624 parameters, 211,766,016 without the output matrix; 6.1e21 FLOP.
Command: bertjax pretrain eurobert --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, ExecutionConfig, OptimizerConfig, StageConfig, TrainingConfig, get_variant
from bertjax.families.eurobert import EUROBERT
from bertjax.recipes.modernbert import DATA

SHORT, LONG = 2_048, 8_192  # tokens of a row
TOKENS, ANNEALING = 4.75e12, 0.25e12
ROWS = 2_048  # in a batch of short rows; a quarter of it in long rows
VARIANTS = {"210m": "base", "610m": "610m", "2.1b": "2.1b"}


def config(variant: str = "210m") -> Config:
    """Both phases; the rate is constant in the first and falls to 0 in the second."""
    preset = EUROBERT.presets[get_variant(VARIANTS, variant)]
    annealing = round(TOKENS / (ROWS * SHORT))
    steps = annealing + round(ANNEALING / (ROWS * SHORT))
    return Config(
        name=f"eurobert_{variant}",
        model=preset,
        execution=ExecutionConfig(dtype="bfloat16"),
        data=replace(
            DATA,
            vocab_size=128_256,
            sequence_length=SHORT,
            pairs_per_row=64,
            mask_probability=0.5,
            mask_count="round",
            max_predictions=1_088,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=1e-4,
            warmup_steps=2_000,
            schedule="warmup_stable_decay",
            decay_steps=steps - annealing,
            beta2=0.95,
            eps=1e-5,
            weight_decay=0.1,
        ),
        training=TrainingConfig(
            steps=steps, global_batch_size=ROWS, objectives=("mlm",), checkpoint_every=2_000, keep_last=5
        ),
        stages=(
            StageConfig(
                start=annealing,
                sequence_length=LONG,
                pairs_per_row=256,
                mask_probability=0.1,
                max_predictions=1_075,
                global_batch_size=ROWS * SHORT // LONG,
            ),
        ),
    )
