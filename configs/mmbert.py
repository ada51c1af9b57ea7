"""mmBERT: ModernBERT over Gemma 2's vocabulary and 1,833 languages, in three phases with decreasing masking.

Reproduces: "mmBERT" (arXiv 2509.06888): 2.3 trillion tokens at 1,024 with 30 % of the tokens masked, 600 billion at
    8,192 with 15 %, 100 billion of decay with 5 %; languages are sampled by their tokens to the power of 0.7, 0.5 and
    0.3, and each phase adds languages (60, 110, 1,833): set --data.active-sources to those of the first phase, and
    --stages.0.active-sources to those of the second. Theta of all layers is 160,000 from the second phase on. Variants:
    base, small.
    Not verified in a source: rates, warm-up and rows in a batch, as ModernBERT. Not the original: the vocabulary is
    trained on your text (Gemma 2's is `--data.vocab tokenizer.json` from the published folder), and small starts from
    random values. The paper merges three runs of the last phase: `bertjax run average RUN --last 5` averages one.
Text: FineWeb2, Wikipedia, code, papers. Name yours with --data.sources, one for each language.
Expected: not measured here. The authors report more than XLM-R on XTREME and MTEB at a fraction of its cost.
Cost: base 307,786,240 parameters, of which 110 million are not embeddings; 3.6e21 FLOP.
Command: bertjax pretrain mmbert --data.sources 'text:corpus/*.txt'
"""

from dataclasses import replace

from bertjax.config import Config, ExecutionConfig, StageConfig, TrainingConfig, get_variant
from bertjax.families.modernbert import MODERNBERT
from bertjax.recipes.modernbert import DATA, LONG, OPTIMIZER, SHORT, THETA

TOKENS = (2.3e12, 600e9, 100e9)  # of each phase
BATCH = 4_608 * SHORT  # tokens of a step
RATE, LATER_RATE = 8e-4, 4e-4
VARIANTS = {"base": "mmbert-base", "small": "mmbert-small"}


def config(variant: str = "base") -> Config:
    """The three phases; the rate falls in the last one."""
    preset = MODERNBERT.presets[get_variant(VARIANTS, variant)]
    first, second, third = (round(tokens / BATCH) for tokens in TOKENS)
    return Config(
        name=f"mmbert_{variant}",
        model=replace(preset, rope_theta=THETA, rope_theta_local=0.0),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=replace(
            DATA,
            temperature=0.7,
            vocab_temperature=0.7,
            vocab_size=preset.vocab_size,
            mask_count="round",
            max_predictions=339,
        ),
        optimizer=replace(OPTIMIZER, learning_rate=RATE, warmup_steps=2_000, decay_shape="linear", weight_decay=0.01),
        training=TrainingConfig(
            steps=first + second + third,
            global_batch_size=BATCH // SHORT,
            objectives=("mlm",),
            checkpoint_every=2_000,
            keep_last=5,
        ),
        stages=(
            StageConfig(
                start=first,
                sequence_length=LONG,
                pairs_per_row=128,
                temperature=0.5,
                mask_probability=0.15,
                max_predictions=1_357,
                global_batch_size=BATCH // LONG,
                rope_theta=preset.rope_theta,
                learning_rate=LATER_RATE,
                decay_steps=third,
            ),
            StageConfig(start=first + second, temperature=0.3, mask_probability=0.05, max_predictions=538),
        ),
    )
