"""DeBERTa: attention by content and relative distance; version 3 detects tokens that a generator replaced.

Reproduces: "DeBERTa" (arXiv 2006.03654), variants base and large, as microsoft/DeBERTa trains it: words masked in
    groups of up to three, 15 % of the tokens, predicted by the enhanced mask decoder; and "DeBERTaV3" (arXiv
    2111.09543), variants v3-xsmall, v3-small, v3-base, v3-large: words masked one by one, always with [MASK], a
    generator of half the layers, 10 times the loss of its replaced tokens, and word tables shared by a difference
    (GDES). Not verified in a source: rows, steps, rate and betas of base, large, v3-base and v3-large, which are from
    the papers; those of v3-xsmall and v3-small are from the repository's scripts. The paper says 50 for the weight of
    replaced tokens, the code 10, as here; only clipping depends on it. Not the original: both networks of version 3
    take a step at once (in the original the generator's step is first, and the model reads the updated tables);
    distance vectors have no separate dropout; rows are packed; and the vocabulary is trained on your text unless you
    name theirs.
Text: Wikipedia, books, OpenWebText and stories, 78 GB (version 1); with CC-News 160 GB (version 3).
Expected: MNLI matched and mismatched, development sets: base 88.8 and 88.5, large 91.3 and 91.1; v3-xsmall 88.1 and
    88.3, v3-small 88.3 and 87.7, v3-base 90.6 and 90.7, v3-large 91.8 and 91.9.
Cost: base 139,637,337 parameters, 8.1e20 FLOP; large 406,789,209, 2.5e21. Of both networks of version 3, and in the
    export: v3-xsmall 131,339,749 and 70,682,112 parameters, 1.1e19 FLOP; v3-small 263,051,365 and 141,304,320, 8.0e19;
    v3-base 326,842,213 and 183,831,552, 2.3e21; v3-large 719,626,341 and 434,012,160, 7.1e21. Compiled for 8 H100,
    base takes at least 195 hours, 15 % of their peak (`launch/plans.md`): the scores of distances, which are read and
    written again and again, are the limit. A TPU's kernel keeps them in its core: 16 v5e take at least 71 hours,
    141 by the compiler's schedule, which is 51 % of their peak.
Time: 195 hours or more on 8 H100
Command: bertjax pretrain deberta:v3-small --data.vocab spm.model
"""

from dataclasses import replace
from typing import Any

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.deberta import DEBERTA
from bertjax.families.deberta_v2 import DEBERTA_V3

VARIANTS = {  # rows a step, steps, rate, second beta
    "base": (2_048, 1_000_000, 2e-4, 0.999),
    "large": (2_048, 1_000_000, 2e-4, 0.999),
    "v3-xsmall": (64, 1_000_000, 3e-4, 0.999),
    "v3-small": (256, 1_000_000, 1e-4, 0.999),
    "v3-base": (8_192, 500_000, 6e-4, 0.98),
    "v3-large": (8_192, 500_000, 3e-4, 0.98),
}
# Settings of each version: the vocabulary, the masks, the objectives.
OF_V1: dict[str, Any] = {
    "tokenizer": "byte_bpe",
    "vocab_size": 50_265,
    "prefix_space": False,
    "special_tokens": "[CLS]",
    "masking": "ngrams",
    "ngram_shares": (6 / 11, 3 / 11, 2 / 11),
}
OF_V3: dict[str, Any] = {
    "tokenizer": "unigram",
    "vocab_size": 128_001,
    "masking": "words",
    "keep_share": 0.0,
    "random_share": 0.0,
}


def config(variant: str = "base") -> Config:
    """A published size; version 3 has a generator."""
    rows, steps, rate, beta2 = get_variant(VARIANTS, variant)
    size = variant.removeprefix("v3-")
    if size == variant:
        data, objectives, weights = OF_V1, ("mlm",), ()
        model = replace(DEBERTA.presets[size], mlm_decoder="enhanced")
    else:
        data, objectives, weights = OF_V3, ("mlm", "rtd"), (1.0, 10.0)
        preset = DEBERTA_V3.presets[size]
        model = replace(
            preset,
            mlm_decoder="enhanced",
            generator_width=1.0,
            generator_layers=preset.num_hidden_layers // 2,
            embedding_sharing="gdes",
        )
    return Config(
        name=f"deberta_{variant.replace('-', '_')}",
        model=model,
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
            lowercase=False,
            strip_accents=False,
            sequence_length=512,
            rows="doc_sentences",
            packing="pairs",
            max_predictions=80,
            **data,
        ),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=rate, warmup_steps=10_000, schedule="linear_after_warmup", beta2=beta2
        ),
        training=TrainingConfig(
            steps=steps,
            global_batch_size=rows,
            objectives=objectives,
            objective_weights=weights,
            keep_every=steps // 10,
        ),
    )
