"""Every odd letter of a sequence is handled with a note, or refused with the name of its record."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertjax.config import DataConfig
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.store.format import TokenStore

ODD = (
    b">soft\r\nmktl\r\nLAGV\r\n"  # lower case, Windows line ends
    b">stop\nMKTLLAGV*\n"
    b">within some words\nMK*TLJJ\n"
    b">gap\nMK-TL\n>rare\nMUOXBZ\n>empty\n\n"
)


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """A FASTA file with odd and ordinary records."""
    plain = "".join(f">p{n}\n{'LAGVSERTID'[n % 7 :]}{'PKQNFYMHWC' * (n % 3 + 1)}\n" for n in range(60))
    long = ">long\n" + "LAGVKTWY" * 125_000 + "\n"
    (tmp_path / "a.fasta").write_bytes(ODD + plain.encode() + long.encode())
    return DataConfig(
        sources=(f"fasta:{tmp_path}/a.fasta",),
        tokenizer="characters:esm2",
        root=str(tmp_path / "data"),
        held_out=0.2,
        workers=1,
    )


def test_odd_letters_are_handled_or_named(data):
    with pytest.raises(ValueError) as error:
        prepare(data)
    assert str(error.value) == (
        "data.unknown_letters='stop': 3 letters that the vocabulary lacks, in 1 records ('J' 2, '*' 1): record within "
        "has '*' at letter 3; correct these records, choose a vocabulary that has the letters, or replace them by "
        "[UNK]: --data.unknown-letters replace"
    )
    store = TokenStore.open(prepare(replace(data, unknown_letters="replace")))
    notes = reading_notes(store.manifest)
    assert "lower-case letters in FASTA files, read as upper case: 4" in notes
    assert "FASTA records that end in *, which was left out: 1" in notes
    assert any(note.startswith("documents without text") and note.endswith("left out: 1") for note in notes)
    assert any(note.startswith("3 letters that the vocabulary lacks, in 1 records") for note in notes)
    tokenizer, texts = store.tokenizer(), set()
    for split in map(store.split, ("train", "held_out")):
        edges = split.sentence_offsets[split.document_offsets]
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            ids = split.tokens(np.array([start]), np.array([end - start]))
            texts.add("".join(tokenizer.tokens[number] for number in ids) if end - start < 99 else end - start)
    assert {"MKTLLAGV", "MK<unk>TL<unk><unk>", "MK-TL", "MUOXBZ", 1_000_000} <= texts
    with pytest.raises(ValueError, match="3 letters that the vocabulary lacks"):
        prepare(data)  # also for the existing store


def test_learned_vocabulary_has_every_letter(data):
    store = TokenStore.open(prepare(replace(data, tokenizer="characters")))
    assert {"*", "J", "-"} <= {*store.tokenizer().tokens}
    assert "unknown_letters" not in store.manifest["provenance"]
