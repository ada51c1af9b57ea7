"""BERT-Mini on your own text: the recipe to start from on a laptop or one small GPU.

Reproduces: the shape of BERT-Mini (4 layers, hidden size 256) of "Well-Read Students Learn Better" (2019), with the
    pretraining of google-research/bert: MLM and NSP, whole sentences, length 128.
Expected: depends on the text; `report.html` shows the held-out loss beside the best loss without context.
Cost: 11 M parameters with the default vocabulary; hours on two CPU cores, minutes on a GPU.
Time: hours on two CPU cores
Command: bertjax pretrain bert_mini --data.sources 'text:books/*.txt' 'wikiextractor:wiki/*.xz'
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, OptimizerConfig, TrainingConfig


def config() -> Config:
    """Uncased; the vocabulary is trained on the text unless --data.vocab names one."""
    return Config(
        name="bert_mini",
        model=ModelConfig(
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            # A model of this size underfits. Initial parameters of about 1 / sqrt(256) and small outputs of residual
            # branches let it use its context early.
            initializer="scaled",
            initializer_range=0.06,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        execution=ExecutionConfig(scan_unroll=4, logits_chunk=256),
        data=DataConfig(vocab_size=30_522, sequence_length=128, max_predictions=20),
        # With 1e-3 four layers still predict by the frequency of tokens after a thousand steps.
        optimizer=OptimizerConfig(learning_rate=4e-4, warmup_steps=1_000),
        training=TrainingConfig(
            steps=30_000, global_batch_size=32, log_every=100, eval_every=2_000, checkpoint_every=2_000
        ),
    )
