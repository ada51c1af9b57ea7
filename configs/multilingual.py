"""BERT-Base for many languages at once (mBERT), and for Chinese.

Reproduces: google-research/bert's multilingual.md: the network and the steps of bert_base.py on the Wikipedias of 104
    languages, cased (119,547 entries, the recommended one), or of 102 of them, uncased (105,879), and of Chinese only
    (21,128 entries; accents and case removed). Variants: cased, uncased, chinese; chinese-wwm masks whole words, which
    jieba segments (Chinese BERT-wwm, Cui et al. 2019; needs `pip install 'bertjax[chinese]'`).
Text: the Wikipedias of LANGUAGES below, each a separate source, as dumps in this folder. That list has the languages of
    multilingual.md, where simplified and traditional Chinese are two languages but one Wikipedia, so 104 languages are
    103 sources. Thai and Mongolian are only in the cased model. The page names languages; the codes of their Wikipedias
    were chosen here ("Low Saxon" as nds, "Norwegian (Bokmal)" as no). Its dumps of 2018 are no longer available. The
    sources' shares of an epoch, and of the words that a vocabulary is trained on, are smoothed with an exponent of 0.7,
    as for the published model. The cased model keeps accents; languages whose marks carry meaning need that.
Expected: XNLI, translate-train: en 81.9, es 77.8, de 75.9, zh 76.6, ar 70.7, ur 61.6 (cased); zh 77.2 (Chinese alone);
    `bertjax finetune xnli` measures it.
Cost: 178 million parameters (cased), 102 million (Chinese); the FLOP of bert_base.py.
Command: bertjax pretrain multilingual:cased
         bertjax pretrain multilingual:chinese --data.vocab vocab.txt --data.sources 'wikiextractor:zh/**/*'
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, get_variant
from bertjax.recipes.bert_base import config as bert_base

ONLY_CASED = ("mn", "th")
# Codes of Wikipedias, in the order of the languages' English names.
_CODES = """
af sq ar an hy ast az ba eu bar be bn bpy bs br bg my ca ceb ce zh cv hr cs da nl en et fi fr gl ka de el gu ht he hi hu
is io id ga it ja jv kn kk ky ko la lv lt lmo nds lb mk mg ms ml mr min mn ne new no nn oc fa pms pl pt pa ro ru sco sr
sh scn sk sl azb es su sw sv tl tg ta tt te th tr uk ur uz vi vo war cy fy pnb yo
"""
LANGUAGES = tuple(_CODES.split())

SMOOTHED = {"temperature": 0.7, "vocab_temperature": 0.7}
CHINESE = DataConfig(vocab_size=21_128, sources=("tfds:wikipedia/20230601.zh",))


def _wikipedias(*without: str) -> tuple[str, ...]:
    return tuple(f"wikipedia:{code}wiki-latest-pages-articles.xml.bz2" for code in LANGUAGES if code not in without)


VARIANTS = {
    "cased": DataConfig(vocab_size=119_547, lowercase=False, strip_accents=False, sources=_wikipedias(), **SMOOTHED),
    "uncased": DataConfig(vocab_size=105_879, sources=_wikipedias(*ONLY_CASED), **SMOOTHED),
    "chinese": CHINESE,
    "chinese-wwm": replace(CHINESE, masking="words", segmenter="jieba"),
}


def config(variant: str = "cased") -> Config:
    """BERT-Base's recipe with another vocabulary and other text."""
    data = get_variant(VARIANTS, variant)
    base = bert_base()
    return replace(
        base,
        name=f"bert_{variant}" if variant.startswith("chinese") else f"bert_multilingual_{variant}",
        model=replace(base.model, vocab_size=data.vocab_size),
        data=data,
    )
