"""A small Chinese BERT with whole-word masking, for one machine: jieba finds the words that are masked together.

Reproduces: the method of Chinese BERT-wwm (Cui et al. 2019) at the size of bert_mini.py: 4 layers, hidden size 256, one
    token for each character. Traditional and simplified characters are different tokens; convert the text before, if
    one script is to serve both. Needs `pip install 'bertjax[chinese]'`.
Text: part of the Chinese Wikipedia from the Hugging Face Hub (`pip install 'bertjax[hf]'`), or yours as --data.sources.
Expected: depends on the text; `report.html` shows the held-out loss beside the best without context.
Cost: 9 million parameters, 4.1e7 tokens, 1e15 FLOP: about three hours on two CPU cores, minutes on a GPU.
Command: bertjax pretrain chinese_mini --data.sources 'wikiextractor:zh/**/*'
"""

from dataclasses import replace

from bertjax.config import Config
from bertjax.recipes.bert_mini import config as bert_mini


def config() -> Config:
    """Uncased; the vocabulary of characters is trained on the text unless --data.vocab names one."""
    small = bert_mini()
    return replace(
        small,
        name="chinese_mini",
        model=replace(small.model, vocab_size=21_128),
        data=replace(
            small.data,
            sources=("hf:wikimedia/wikipedia/20231101.zh/train-00000-of-*",),
            vocab_size=21_128,
            masking="words",
            segmenter="jieba",
        ),
        training=replace(small.training, steps=10_000, eval_every=2_000, checkpoint_every=2_000),
    )
