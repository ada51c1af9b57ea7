"""BERT-Base, uncased, at the paper's length 128: the first 90 % of its steps.

Reproduces: the paper's section 3 and appendix A.2: 12 layers, hidden 768, batch 256, Adam 1e-4 with 10,000 steps of
    warm-up and linear decay, dropout 0.1, MLM and NSP.
Expected: a held-out MLM loss near 1.4 nats on books and Wikipedia (reported by its authors for the whole run).
Cost: 109 M parameters; 2.4e19 FLOP for the whole recipe.
Command: bertjax pretrain configs/bert_base.py --data.vocab vocab.txt --data.sources 'wikiextractor:wiki/*.xz' ...
    On one GPU: --training.grad-accum-steps 4 --model.remat dots if memory is short.
"""

from bertjax.config import Config, ModelConfig, TrainingConfig


def config() -> Config:
    """The defaults of every config class are BERT-Base's; what is here is what they leave open."""
    return Config(
        name="bert_base",
        model=ModelConfig(dtype="bfloat16", hidden_act="gelu_tanh"),
        training=TrainingConfig(steps=900_000, keep_every=100_000),
    )
