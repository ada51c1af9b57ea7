"""BERT-Base as in the paper: 1,000,000 steps of 256 rows, 900,000 of them at length 128 and 100,000 at 512.

Reproduces: section 3 and appendix A.2 of the paper: 12 layers, hidden size 768, 12 heads; Adam 1e-4 with 10,000 steps
    of warm-up and linear decay, dropout 0.1, MLM and NSP. Variants: uncased (30,522 entries), cased (28,996).
Text: English Wikipedia and books. BooksCorpus, which the paper used, is no longer available; use a directory of books
    (books/ below) or Project Gutenberg (--data.sources ... 'tfds:pg19:book_text'). For Wikipedia from a dump, put
    'wikiextractor:wiki/**/*' in place of the tfds source.
Expected: a held-out perplexity of 3.99 (paper, table 6), a loss of 1.38; GLUE test average 79.6, SQuAD 1.1 F1 88.5.
Cost: 109,482,240 parameters; 4.3e10 tokens, 2.4e19 FLOP: 4 days on the paper's 16 TPU v2 chips; compiled for 8 H100 at
    least 4.3 hours, and for 16 v5e 3.0 (`launch/plans.md`). If memory is short:
    --training.grad-accum-steps 4, --execution.remat dots.
Time: 4.3 hours or more on 8 H100
Command: bertjax pretrain bert_base --data.vocab vocab.txt
         bertjax pretrain bert_base:cased --data.vocab cased_vocab.txt
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, StageConfig, TrainingConfig, get_variant

CASING = {
    "uncased": DataConfig(vocab_size=30_522),
    "cased": DataConfig(vocab_size=28_996, lowercase=False, strip_accents=False),
}
SOURCES = ("tfds:wikipedia/20230601.en", "text:books/**/*.txt")


def config(variant: str = "uncased") -> Config:
    """The defaults of every config class are BERT-Base's; this sets the rest."""
    data = replace(get_variant(CASING, variant), sources=SOURCES)
    return Config(
        name=f"bert_base_{variant}",
        model=ModelConfig(vocab_size=data.vocab_size, hidden_act="gelu_tanh"),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=data,
        training=TrainingConfig(steps=1_000_000, keep_every=100_000),
        stages=(StageConfig(start=900_000, sequence_length=512, max_predictions=77),),
    )
