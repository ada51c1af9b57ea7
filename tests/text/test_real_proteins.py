"""The real proteins are read completely, with ESM-2's vocabulary and a cluster for each."""

from collections import Counter
from pathlib import Path

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.groups import read_groups
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
from bertjax.tokenization.symbols import ALPHABETS, make_symbols

FOLDER = Path(__file__).parent / "proteins"


def test_real_proteins_are_read_whole():
    documents = [*read_documents(SourceFile("fasta", str(FOLDER / "chaperones.fasta.gz")), ReadCounts())]
    tokenizer = make_symbols(*ALPHABETS["esm2"])
    ids, lengths = tokenizer.encode([sentence for one in documents for sentence in one.sentences()])
    assert len(documents) == 137 and lengths.sum() == 82_606 and tokenizer.unk_id not in ids
    groups = read_groups(f"file:{FOLDER / 'clusters.tsv'}")
    clusters = Counter(groups.of(one) for one in documents)
    assert None not in clusters and len(clusters) == 34
