"""CamemBERT (Martin et al. 2020): RoBERTa over French text and a SentencePiece vocabulary."""

from __future__ import annotations

from bertjax.model.families.family import Family
from bertjax.model.families.roberta import TEMPLATE, huggingface, sizes
from bertjax.tokenization.piece_order import PieceOrder

# Four entries of fairseq's dictionary precede the model's own <s> and </s>, which are the ones in use.
_UNUSED = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")

CAMEMBERT = Family(
    name="camembert",
    title="CamemBERT",
    presets=sizes("camembert", 32_005),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=huggingface("camembert", "Camembert", PieceOrder(first=_UNUSED, dropped=1, last=("<mask>",))),
)
