"""Registry of families by name."""

from __future__ import annotations

from dataclasses import replace

from bertjax.config import ModelConfig
from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.families.albert import ALBERT
from bertjax.families.bert import BERT
from bertjax.families.bigbird import BIGBIRD
from bertjax.families.camembert import CAMEMBERT
from bertjax.families.deberta import DEBERTA
from bertjax.families.deberta_v2 import DEBERTA_V2, DEBERTA_V3
from bertjax.families.distilbert import DISTILBERT
from bertjax.families.electra import ELECTRA, ELECTRA_GENERATOR
from bertjax.families.ernie import ERNIE
from bertjax.families.esm import ESM
from bertjax.families.esmc import ESMC
from bertjax.families.eurobert import EUROBERT
from bertjax.families.family import Family
from bertjax.families.longformer import LONGFORMER
from bertjax.families.macbert import MACBERT
from bertjax.families.modernbert import MODERNBERT
from bertjax.families.mosaicbert import MOSAICBERT
from bertjax.families.mpnet import MPNET
from bertjax.families.neobert import NEOBERT
from bertjax.families.nomic_bert import NOMIC_BERT
from bertjax.families.roberta import ROBERTA
from bertjax.families.spanbert import SPANBERT
from bertjax.families.ultrabert import ULTRABERT
from bertjax.families.xlm_roberta import XLM_ROBERTA
from bertjax.families.xlm_roberta_xl import XLM_ROBERTA_XL

# The order counts: the first family reads files without a `model_type`, and of several with the same `model_type` the
# first one is the default.
_ALL = (
    BERT,
    SPANBERT,
    MACBERT,
    ERNIE,
    DISTILBERT,
    BIGBIRD,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    LONGFORMER,
    XLM_ROBERTA_XL,
    MPNET,
    ALBERT,
    ELECTRA,
    ELECTRA_GENERATOR,
    DEBERTA,
    DEBERTA_V2,
    DEBERTA_V3,
    MODERNBERT,
    MOSAICBERT,
    NEOBERT,
    EUROBERT,
    ULTRABERT,
    NOMIC_BERT,
    ESM,
    ESMC,
)
FAMILIES = Registry("families", {family.name: family for family in _ALL}, Family)


def get_family(name: str) -> Family:
    """Look up a family by name. Raises ValueError for an unknown name, with the nearest one."""
    if name not in FAMILIES:
        raise ValueError(f"model.family={name!r} is unknown; {suggestion(name, FAMILIES)}")
    return FAMILIES[name]


def trained_networks(config: ModelConfig) -> dict[str, ModelConfig]:
    """Configs of the networks that a run trains, by owner for messages ("" is the model). See `generator_config`."""
    return {"": config} | ({"generator's": generator_config(config)} if config.generator_width else {})


def generator_config(config: ModelConfig) -> ModelConfig:
    """Config of a model's generator: `generator_width` times as wide, with heads of equal width (ELECTRA, section 3.2).

    It has `generator_layers` layers (DeBERTa v3: half of the model's), by default as many as the model. Raises
    ValueError for a family without generators, and for a width that its heads do not divide.
    """
    share, family = config.generator_width, get_family(config.family).generator
    setting = f"model.generator_width={share}"
    if not family:
        raise ValueError(f"{setting} with model.family={config.family!r}: it has no generators; leave it 0")
    width = max(1, round(share * config.hidden_size))
    heads = max(1, width * config.num_attention_heads // config.hidden_size)
    if width % heads:
        raise ValueError(f"{setting}: a width of {width} is not divisible by {heads} heads; choose another share")
    E = config.embedding_size or config.hidden_size
    return replace(
        config,
        family=family,
        generator_width=0.0,
        generator_layers=0,
        embedding_sharing="tied",
        rtd_context=False,
        teacher_width=0,
        hidden_size=width,
        num_hidden_layers=config.generator_layers or config.num_hidden_layers,
        embedding_size=0 if width == E else E,
        num_attention_heads=heads,
        intermediate_size=max(1, round(share * config.intermediate_size)),
    )


def pretraining_heads(config: ModelConfig) -> tuple[str, ...]:
    """The heads of pretraining that a model of this config has, itself or in its generator, by name."""
    generator_heads = get_family(generator_config(config).family).heads if config.generator_width else ()
    return (*get_family(config.family).heads, *generator_heads)
