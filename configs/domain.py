"""BERT-Base for text of one domain: medicine, law, the documents of a company.

Reproduces: two methods. Further pretraining (`:cased`, `:uncased`): the weights of a published BERT-Base, a new warm-up
    of the learning rate, full rows; the vocabulary may extend the published one: tokens in place of [unused] ones, or
    after the others, start as the mean of their pieces. Pretraining from scratch, with a vocabulary of the domain.
    BioBERT (Lee et al. 2019), from bert-base-cased with its vocabulary: `:biobert-1.0-pubmed`, 200,000 steps of PubMed;
    `:biobert-1.0`, 270,000 more of PubMed Central (both texts are mixed here, not one after the other); `:biobert-1.1`,
    1,000,000 of PubMed. Rate 5e-5 and 192 rows of 512 are not verified, nor is the warm-up. The published files of 1.1
    have no MLM head (1.2's do), so `fill-mask` refuses them.
    Legal-BERT (Chalkidis et al. 2020): `:legal`, from scratch, 1,000,000 steps of 256 rows of 512, rate 1e-4, a
    vocabulary of 30,522 of its own (uncased, and made by SentencePiece there, which is not verified; WordPiece here);
    `:legal-small`, 6 layers of 512 with 8 heads; `:legal-further`, from bert-base-uncased: its 500,000 steps, and that
    its other settings are BioBERT's, are not verified.
Text: yours, as --data.sources; some hundred megabytes at least, or the model forgets more than it learns. Legal-BERT
    had 12 GB: legislation of the EU and the UK, judgments of European and US courts, contracts. BioBERT had the
    abstracts of PubMed and the articles of PubMed Central (4.5 and 13.5 billion words, as its paper counts).
Expected: BioBERT gained 0.62 points of F1 in biomedical named entity recognition, 2.80 in relation extraction, and
    12.24 of MRR in question answering (its abstract). `bertjax finetune ncbi-disease` (bc5cdr-disease, bc5cdr-chem)
    measures the first on the files it distributes; `bertjax finetune lener-br` does that for Brazilian law.
Cost: `:cased` 9.8e9 tokens, 5.8e18 FLOP: compiled for 8 H100 at least 1.3 hours, 16 % of their peak
    (`launch/plans.md`); BioBERT 1.1 ten times that; `:legal` 1.3e11 tokens, 7.7e19 FLOP. 108,310,272 parameters,
    uncased 109,482,240, 35 million in `:legal-small`.
Time: 1.3 hours or more on 8 H100
Command: bertjax pretrain domain --init-from hf:bert-base-cased --data.sources 'text:papers/**/*.txt'
         bertjax pretrain domain:legal --data.sources 'jsonl:law/*.jsonl.zst:text'
"""

from dataclasses import replace

from bertjax.config import Config, ModelConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.recipes.bert_base import config as bert_base


def _further(casing: str, steps: int = 100_000, init_from: str = "") -> Config:
    """One stage of full rows; GELU in the erf form, as Hugging Face has it for the published weights."""
    base = bert_base(casing)
    return replace(
        base,
        init_from=init_from,
        model=replace(base.model, hidden_act="gelu"),
        data=replace(base.data, sources=(), sequence_length=512, max_predictions=77),
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=10_000),
        training=TrainingConfig(steps=steps, global_batch_size=192),
        stages=(),
    )


def _scratch(**sizes: int) -> Config:
    """Legal-BERT: BERT's own optimizer, one stage of full rows."""
    base = bert_base("uncased")
    return replace(
        base,
        model=replace(ModelConfig(vocab_size=base.model.vocab_size), **sizes),
        data=replace(base.data, sources=(), sequence_length=512, max_predictions=77),
        stages=(),
    )


_CASED, _UNCASED = "hf:bert-base-cased", "hf:bert-base-uncased"
VARIANTS = {
    "cased": _further("cased"),
    "uncased": _further("uncased"),
    "biobert-1.0-pubmed": _further("cased", 200_000, _CASED),
    "biobert-1.0": _further("cased", 470_000, _CASED),
    "biobert-1.1": _further("cased", 1_000_000, _CASED),
    "legal": _scratch(),
    "legal-small": _scratch(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048),
    "legal-further": _further("uncased", 500_000, _UNCASED),
}


def config(variant: str = "cased") -> Config:
    """BERT-Base further, or from scratch."""
    return replace(get_variant(VARIANTS, variant), name=f"domain_{variant}")
