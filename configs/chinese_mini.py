"""A small Chinese BERT with whole-word masking, for one machine: jieba segments the words that are masked together.

Reproduces: the masking of Chinese BERT-wwm (Cui et al. 2019) at the size of bert_mini.py: 4 layers, hidden size 256,
    one token for each character. Traditional and simplified characters are different tokens; convert the text first if
    the model should serve both scripts. Needs `pip install 'bertjax[chinese]'`.
Text: part of the Chinese Wikipedia from the Hugging Face Hub (`pip install 'bertjax[hf]'`), or yours as --data.sources.
Expected: on 12 MB of WikiExtractor's output 5.21 nats for held-out text, 1.01 below the best loss without context.
Cost: 9 million parameters, 5 million tokens, 1.7e14 FLOP: half an hour on two free cores (47 minutes of CPU time).
    With more text give more --training.steps.
Time: half an hour on two free cores
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
            # As in quickstart.py: half an hour is too short for next-sentence prediction, the context of short rows is
            # used sooner, and more masks give more to learn in each row.
            rows="full_sentences",
            sequence_length=64,
            mask_probability=0.25,
            max_predictions=16,
            masking="words",
            segmenter="jieba",
        ),
        optimizer=replace(small.optimizer, learning_rate=1e-3, beta2=0.98, warmup_steps=150),
        training=replace(
            small.training,
            objectives=("mlm",),
            steps=1_500,
            global_batch_size=64,
            log_every=50,
            eval_every=500,
            eval_rows=512,
            checkpoint_every=500,
        ),
    )
