"""BERT (Devlin et al. 2018), and models that differ from it only in text, vocabulary or masking."""

from __future__ import annotations

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables


def layers(prefix: str) -> tuple[Tensor, ...]:
    """The stack of layers with BertModel's names, which RobertaModel shares."""
    layer = f"{prefix}encoder.layer.{{}}"
    return (
        *dense("encoder/layers/attention/query", f"{layer}.attention.self.query"),
        *dense("encoder/layers/attention/key", f"{layer}.attention.self.key"),
        *dense("encoder/layers/attention/value", f"{layer}.attention.self.value"),
        *dense("encoder/layers/attention/output", f"{layer}.attention.output.dense", inputs=2),
        *norm("encoder/layers/attention_norm", f"{layer}.attention.output.LayerNorm"),
        *dense("encoder/layers/mlp/intermediate", f"{layer}.intermediate.dense"),
        *dense("encoder/layers/mlp/output", f"{layer}.output.dense"),
        *norm("encoder/layers/mlp_norm", f"{layer}.output.LayerNorm"),
    )


_ENCODER = (*tables("bert.embeddings"), *layers("bert."))
_POOLER = dense("pooler/dense", "bert.pooler.dense")
# The output matrix is the word embeddings, and is stored once, as in transformers.
MLM = (
    *dense("mlm_head/transform", "cls.predictions.transform.dense"),
    *norm("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
    Tensor("mlm_head/bias", "cls.predictions.bias", padded=True),
)
NSP = dense("nsp_head/dense", "cls.seq_relationship")

SIZES = {
    "base": ModelConfig(),
    "large": ModelConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
}
# Students of BERT-Base (Jiao et al. 2020, section 4.2), with as many heads.
TINYBERT = {
    "tiny-4x312": ModelConfig(hidden_size=312, num_hidden_layers=4, intermediate_size=1200),
    "tiny-6x768": ModelConfig(num_hidden_layers=6),
}

BERT = Family(
    name="bert",
    title="BERT",
    presets=SIZES | TINYBERT,
    heads=("pooler", "mlm_head", "nsp_head"),
    huggingface=HuggingFace(
        model_type="bert",
        prefix="bert.",
        beginning="Bert",
        encoder=_ENCODER,
        pooler=_POOLER,
        pretraining=Class(
            "BertForPreTraining",
            (*_ENCODER, *_POOLER, *MLM, *NSP),
            outputs={"mlm_head": "prediction_logits", "nsp_head": "seq_relationship_logits"},
        ),
        partial=(
            Class("BertForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
            Class("BertForNextSentencePrediction", (*_ENCODER, *_POOLER, *NSP), outputs={"nsp_head": "logits"}),
        ),
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
)
