"""BERT-Base for many languages at once, and for Chinese.

Reproduces: google-research/bert's multilingual.md: the network and the steps of bert_base.py on the Wikipedias of 104
    languages, cased (119,547 entries, the recommended one) or uncased (105,879), and of Chinese alone (21,128 entries;
    accents and case removed). Variants: cased, uncased, chinese; chinese-wwm masks whole words, which jieba finds
    (Chinese BERT-wwm, Cui et al. 2019; needs `pip install 'bertjax[chinese]'`).
Text: give each Wikipedia as a source of its own. Their shares of an epoch, and of the words that a vocabulary is
    trained on, are smoothed with an exponent of 0.7, as for the published model. The cased model keeps accents;
    languages whose marks carry meaning need that.
Expected: XNLI, translate-train: en 81.9, es 77.8, de 75.9, zh 76.6, ar 70.7 (cased); zh 77.2 (Chinese alone).
Cost: 178 million parameters (cased), 102 million (Chinese); the FLOP of bert_base.py.
Command: bertjax pretrain multilingual:chinese --data.vocab vocab.txt --data.sources 'wikiextractor:zh/**/*'
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, variant_of
from bertjax.recipes.bert_base import config as bert_base

SMOOTHED = {"temperature": 0.7, "vocab_temperature": 0.7}
CHINESE = DataConfig(vocab_size=21_128, sources=("tfds:wikipedia/20230601.zh",))
VARIANTS = {
    "cased": DataConfig(vocab_size=119_547, lowercase=False, strip_accents=False, **SMOOTHED),
    "uncased": DataConfig(vocab_size=105_879, **SMOOTHED),
    "chinese": CHINESE,
    "chinese-wwm": replace(CHINESE, masking="words", segmenter="jieba"),
}


def config(variant: str = "cased") -> Config:
    """BERT-Base's recipe with another vocabulary and other text."""
    data = variant_of(VARIANTS, variant)
    base = bert_base()
    return replace(
        base,
        name=f"bert_{variant}" if variant.startswith("chinese") else f"bert_multilingual_{variant}",
        model=replace(base.model, vocab_size=data.vocab_size),
        data=data,
    )
