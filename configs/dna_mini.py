"""A small MosaicBERT on DNA: genomes as FASTA, cut into rows, with a vocabulary of pieces or of letters.

Reproduces: no single model. The network and the masks are MosaicBERT's (`configs/mosaicbert.py`), on which DNABERT-2
    builds; size, update rule and schedule are those of BERT-Mini. Variants: bpe, 4,096 pieces without word borders (as
    in DNABERT-2); kmers, all 6-mers (as in Nucleotide Transformer); letters, in rows of 512. The last two also read the
    other strand.
Text: yours, as --data.sources; bacterial genomes from NCBI are a start.
Expected: depends on the genomes; `report.html` shows the held-out loss beside the best loss without context. 176 steps
    on E. coli 536 (Debian's bowtie-examples), which a budget of 15 minutes allowed beside other work on two cores, are
    too few for bpe: 7.06 nats (without context 6.40). Random letters cannot be predicted, and of a single genome only
    repeats and codons can.
Cost: 4 million parameters (letters 3); about two hours on two CPU cores, or the time in --training.budget.
Time: about two hours on two CPU cores
Command: bertjax pretrain dna_mini --data.sources 'fasta:genomes/*.fna.gz' --training.budget 2h
"""

from dataclasses import replace

from bertjax.config import Config, DataConfig, get_variant
from bertjax.recipes.bert_mini import config as bert_mini
from bertjax.recipes.mosaicbert import config as mosaicbert

ROWS = DataConfig(
    vocab_size=4_096,
    lowercase=False,
    strip_accents=False,
    rows="pieces",
    sequence_length=128,
    packing="pairs",
    mask_probability=0.3,
    max_predictions=39,
)
OTHER_STRAND = replace(ROWS, augment=("reverse_complement",))
VARIANTS = {
    "bpe": replace(ROWS, tokenizer="sequence_bpe"),
    "kmers": replace(OTHER_STRAND, tokenizer="kmers:6", vocab_size=4_106),
    "letters": replace(
        OTHER_STRAND, tokenizer="characters:dna", vocab_size=10, sequence_length=512, max_predictions=154
    ),
}


def config(variant: str = "bpe") -> Config:
    """Chromosomes are read in pieces; for genes or reads, --data.rows crops."""
    small, mosaic = bert_mini(), mosaicbert()
    data = get_variant(VARIANTS, variant)
    model = replace(
        mosaic.model,
        vocab_size=data.vocab_size,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=704,
        max_position_embeddings=data.sequence_length,
        initializer_range=small.model.initializer_range,
    )
    return replace(
        small,
        name="dna_mini" if variant == "bpe" else f"dna_mini_{variant}",
        model=model,
        data=data,
        training=replace(small.training, objectives=("mlm",)),
    )
