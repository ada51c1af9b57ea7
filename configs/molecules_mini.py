"""A small ModernBERT on molecules, as SMILES: an encoder for properties of compounds.

Reproduces: no single model. The network, masks and schedule are those of `configs/modern_mini.py`; the symbols are
    atoms and bonds, found in the text (`--data.tokenizer regex:smiles`).
Text: yours, as --data.sources: `.smi` files, such as those of ZINC or ChEMBL, or a column of a table. Hold out by
    scaffold or cluster rather than at random if near relatives are in the text. --data.augment randomised_smiles writes
    each molecule from another atom in every epoch (pip install 'bertjax[molecules]').
Expected: depends on the molecules; `report.html` shows the held-out loss beside the best loss without context. Of the
    1.58 million molecules of MOSES (PyPI's molsets), held out at random: after 44 steps, which a budget of 15 minutes
    allowed beside other work on two cores, 1.96 nats (without context 2.20).
Cost: 3 million parameters; two hours on two CPU cores, or the time in --training.budget.
Time: two hours on two CPU cores
Command: bertjax pretrain molecules_mini --data.sources 'smiles:molecules/*.smi.gz' --training.budget 2h
"""

from dataclasses import replace

from bertjax.config import Config
from bertjax.recipes.modern_mini import config as modern_mini

VOCABULARY = 512  # atoms in brackets are many, and most of them rare


def config() -> Config:
    """Several molecules share a row; a longer one than a row gives a crop."""
    small = modern_mini()
    return replace(
        small,
        name="molecules_mini",
        model=replace(small.model, vocab_size=VOCABULARY),
        data=replace(
            small.data,
            vocab_size=VOCABULARY,
            tokenizer="regex:smiles",
            lowercase=False,
            strip_accents=False,
            rows="crops",
        ),
    )
