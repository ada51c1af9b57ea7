"""SpanBERT: BERT over single segments, with masked spans of words, and the span boundary objective beside MLM.

Reproduces: "SpanBERT" (arXiv 1907.10529) as facebookresearch/SpanBERT trains it: rows of one document, spans of 1 to 10
    whole words with geometric lengths (p = 0.2), 15 % of the text's tokens, one draw of [MASK], random or the same
    token for each span, random tokens as frequent as in the text; SBO over the first 15 tokens of a span with a
    200-wide vector of the position in the span. Variants: base, large. 256 rows of 512 tokens are the 32 GPUs x 4,096
    tokens of its README. fairseq's Adam decays all parameters. Not the original: a sentence longer than a row is cut,
    not left out.
Text: as in bert_base.py, cased, --data.vocab the published 28,996 entries.
Expected: base: SQuAD 1.1 F1 92.4, SQuAD 2.0 F1 83.6; large: 94.6, 88.7 (development sets).
Cost: base 108,340,804 parameters and the SBO head, 1.9e20 FLOP; large 333,610,308 and the head, 6.4e20. Compiled
    for 8 H100, base takes at least 39 hours, 17 % of their peak (`launch/plans.md`).
Time: 39 hours or more on 8 H100
Command: bertjax pretrain spanbert --data.vocab cased_vocab.txt
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.spanbert import SPANBERT


def config(variant: str = "base") -> Config:
    """One of the published sizes."""
    return Config(
        name=f"spanbert_{variant}",
        model=get_variant(SPANBERT.presets, variant),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("tfds:wikipedia/20230601.en", "text:books/**/*.txt"),
            vocab_size=28_996,
            lowercase=False,
            strip_accents=False,
            sequence_length=512,
            rows="doc_sentences",
            masking="spans",
            span_p=0.2,
            span_max=10,
            mask_count="ceil_of_text",
            replace_by="span",
            random_ids="corpus",
            max_predictions=77,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=1e-4,
            warmup_steps=10_000,
            schedule="linear_after_warmup",
            eps=1e-8,
            decay_all=True,
        ),
        training=TrainingConfig(steps=2_400_000, objectives=("mlm", "sbo"), keep_every=200_000),
    )
