"""The `randomised_smiles` augmentation: spell a molecule in another order of its atoms, with RDKit.

As in Bjerrum 2017 (arXiv:1703.07076). The molecule stays the same, with its charges and its stereo centres.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertjax.input.augmentations.augmentation import Augmentation, Change, Texts
from bertjax.input.randomness import fold_in, hash64
from bertjax.tokenization.tokenizer import Tokenizer

_DRAWS = 8  # orders of atoms to try until a spelling fits


def prepare(tokenizer: Tokenizer) -> Change:
    """Raise ValueError if the vocabulary does not spell molecules.

    The order of a molecule's atoms is drawn uniformly among the orders whose spelling fits and has no unknown symbol.
    A text does not change if it has an unknown symbol, if RDKit cannot parse it (such as a crop within a ring), or if
    none of eight orders has such a spelling.
    """
    surfaces = [surface.decode(errors="replace") for surface in tokenizer.surfaces]
    special = {*tokenizer.special.values()}

    def decode(ids: np.ndarray) -> str:
        """Decode tokens; returns "" if one of them is special, such as [UNK]."""
        numbers = ids.tolist()
        return "" if special.intersection(numbers) else "".join(surfaces[number] for number in numbers)

    if decode(tokenizer.encode(["CCO"])[0]) != "CCO":
        raise ValueError(
            "data.augment='randomised_smiles': the vocabulary does not spell the molecule CCO; use a cased SMILES "
            "vocabulary, such as data.tokenizer='regex:smiles'"
        )

    def change(keys: np.ndarray, room: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> Texts:
        ends = np.cumsum(lengths)
        parts = [tokens[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        molecules = {number: read for number, part in enumerate(parts) if (read := read_molecule(decode(part)))}
        draws = hash64(fold_in(keys, "order of atoms")[:, None], np.arange(_DRAWS))
        for draw in draws.T:
            spellings = {number: spell(molecule, int(draw[number])) for number, molecule in molecules.items()}
            ids, sizes = tokenizer.encode([*spellings.values()])
            for (number, spelling), size, end in zip(spellings.items(), sizes, np.cumsum(sizes), strict=True):
                part = ids[end - size : end]
                if size <= room[number] and decode(part) == spelling:
                    parts[number] = part.astype(tokens.dtype)
                    del molecules[number]
            if not molecules:
                break
        return np.concatenate([tokens[:0], *parts]), np.array([len(part) for part in parts], np.int64)

    return change


def read_molecule(text: str) -> Any:
    """Parse a SMILES string with RDKit; returns None if it is empty or invalid."""
    from rdkit import Chem, rdBase  # pyright: ignore[reportMissingImports]

    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(text) if text else None


def spell(molecule: Any, key: int) -> str:
    """Write a molecule as SMILES, in an order of its atoms that is drawn from `key`."""
    from rdkit import Chem  # pyright: ignore[reportMissingImports]

    order = np.argsort(hash64(key, np.arange(molecule.GetNumAtoms())))
    return Chem.MolToSmiles(Chem.RenumberAtoms(molecule, order.tolist()), canonical=False)


def _slack(lengths: np.ndarray) -> np.ndarray:
    """Room for brackets of further branches; 98 % of the spellings of ZINC's molecules fit."""
    return 2 + lengths // 8


AUGMENTATION = Augmentation("randomised_smiles", prepare, _slack, needs=("rdkit", "'bertjax[molecules]'"))
