"""Small files named as in documented commands: text in every format, vocabularies, lists."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from generated_corpus import write_corpus
from google_records import SPECIAL, features, make_instances, serialized, write_records
from test_wikipedia import dump, page
from tokenizer_vocabularies import byte_bpe_files, sentencepiece_model

REPOSITORY = Path(__file__).resolve().parent.parent
NOVEL = REPOSITORY / "bertjax" / "text" / "sources" / "novels" / "alice.txt.xz"
CHAPTERS = lzma.decompress(NOVEL.read_bytes()).decode().split("\n\n")[:8]
CHINESE = ("我", "他", "老师", "学生", "北京", "上海", "大学", "昨天", "今天", "喜欢", "看见", "学习", "中国", "历史")
MOLECULES = ("CC(=O)O", "c1ccccc1", "CCO", "C#N", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "[Na+].[Cl-]", "C/C=C/C", "OCC(O)CO")


def write_text_files(folder: Path) -> None:
    """Write a novel and generated text in each format and folder that documented sources name."""
    import pyarrow as pa
    from pyarrow import feather, parquet

    rng = random.Random(0)
    chinese = ["".join("".join(rng.choices(CHINESE, k=9)) + "。" for _ in range(12)) for _ in range(40)]
    for name in ("books", "papers", "corpus", "notes"):
        for number, chapter in enumerate(CHAPTERS):
            write_bytes(folder / name / f"{number}.txt", chapter.encode())
    compressed = zstandard.ZstdCompressor().compress
    write_bytes(folder / "corpus" / "part" / "all.txt.zst", compressed("\n\n".join(CHAPTERS).encode()))
    write_bytes(folder / "law" / "a.jsonl.zst", compressed(json_lines({"text": text} for text in CHAPTERS)))
    news = [{"text": text, "entities": [[0, text.index(" "), "entity"]]} for text in CHAPTERS]
    write_bytes(folder / "news" / "a.jsonl", json_lines(news))
    table = pa.table({"text": CHAPTERS})
    for path in ("crawl/a.parquet", "my_dataset/part/a.parquet"):
        write_bytes(folder / path, b"")
        parquet.write_table(table, folder / path)
    write_bytes(folder / "my_saved_dataset" / "train" / "a.arrow", b"")
    feather.write_feather(table, folder / "my_saved_dataset" / "train" / "a.arrow", compression="uncompressed")
    write_bytes(folder / "wiki" / "wiki_00.xz", lzma.compress(extracted(CHAPTERS)))
    write_bytes(folder / "zh" / "AA" / "wiki_00", extracted(chinese))
    write_tfds(folder / "tensorflow_datasets", {"20230601.en": CHAPTERS, "20230601.zh": chinese})
    proteins = ["".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=rng.randint(30, 90))) for _ in range(200)]
    genomes = ["".join(rng.choices("ACGT", k=900)) for _ in range(40)]
    write_bytes(folder / "uniref50.fasta.gz", fasta(proteins))
    write_bytes(folder / "proteins" / "a.fasta.gz", fasta(proteins))
    write_bytes(folder / "genomes" / "a.fna.gz", fasta(genomes))
    molecules = "".join(f"{''.join(rng.sample(MOLECULES[:4], 3))}{rng.choice(MOLECULES)} m{n}\n" for n in range(300))
    write_bytes(folder / "molecules" / "a.smi.gz", gzip.compress(molecules.encode()))
    write_vocabularies(folder, [*CHAPTERS, *chinese])


def write_dumps(folder: Path, names: Iterable[str]) -> None:
    """Write Wikipedia dumps, all with the same articles."""
    xml = bz2.compress(dump(*(page(f"Chapter {n}", text) for n, text in enumerate(CHAPTERS))).encode())
    for name in names:
        (folder / name).write_bytes(xml)


def write_google_records(folder: Path, length: int, predictions: int) -> None:
    """Write pretraining records of this row length, and add their words to the vocabulary beside the folder."""
    folder.mkdir()
    texts = write_corpus(folder / "corpus.txt", 60).read_text().strip().split("\n\n")
    documents = [[line.split() for line in text.split("\n")] for text in texts]
    path = folder.parent / "vocab.txt"
    vocabulary = path.read_text(encoding="utf-8").split("\n")[:-1]
    vocabulary += sorted({word for document in documents for line in document for word in line} - {*vocabulary})
    path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    instances = make_instances(documents, vocabulary, length, predictions, seed=length)
    records = [serialized(features(instance, vocabulary, length, predictions)) for instance in instances]
    for end in ("tfrecord", "tfrecord.gz"):
        write_records([folder / f"a.{end}"], records)


def write_vocabularies(folder: Path, texts: list[str]) -> None:
    """Write vocabularies like those of BERT, ALBERT, DeBERTa v3 and RoBERTa, and the lists for ERNIE and MacBERT."""
    letters = sorted({letter for text in texts for letter in text if not letter.isspace()})
    words = [word for word, _ in Counter(" ".join(texts).lower().split()).most_common(300) if word.isalpha()]
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *(word for word in words if len(word) > 1)]
    vocabulary = "\n".join(dict.fromkeys(tokens)) + "\n"
    for name in ("vocab.txt", "cased_vocab.txt", "bert-base-multilingual-cased/vocab.txt"):
        write_bytes(folder / name, vocabulary.encode())
    (folder / "spiece.model").write_bytes(sentencepiece_model("albert"))
    (folder / "spm.model").write_bytes(sentencepiece_model("deberta-v2"))
    for name, text in zip(("vocab.json", "merges.txt"), byte_bpe_files("roberta"), strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "entities.txt").write_text("北京\tentity\n上海\tentity\n中国历史\tphrase\n", encoding="utf-8")
    (folder / "similar.tsv").write_text("老师\t学生\n北京\t上海\n昨天\t今天\n喜欢\t看见\n", encoding="utf-8")


def write_tfds(folder: Path, configs: dict[str, list[str]]) -> None:
    """Prepare these configs of TensorFlow Datasets' data set `wikipedia`."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class Wikipedia(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in configs]  # noqa: RUF012

        def _info(self):
            parts = tfds.features.FeaturesDict({"title": tfds.features.Text(), "text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=parts)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, text in enumerate(configs[self.builder_config.name]):
                yield number, {"title": f"Article {number}", "text": text}

    for name in configs:
        Wikipedia(config=name, data_dir=str(folder)).download_and_prepare()


def write_task_files(folder: Path) -> None:
    """Write examples, sentences and tables for fine-tuning, prediction and scores."""
    words = {"good": "I liked it and would read it again", "bad": "It was long, and I did not finish it"}
    lines = [f'"{words[label]}, number {number}.",{label}' for number in range(40) for label in words]
    texts = {
        "reviews.csv": "\n".join(["text,label", *lines]),
        "texts.txt": "Sort an array in place.\nOpen a file.\nThe mean of all elements.",
        "lines.txt": "The rabbit ran.\nShe opened the door.",
        "sighan15_test.tsv": "id\tsource\ttarget\n1\tthe rabit ran\tthe mouse ran\n2\tshe sad no\tshe said no",
        "vectors.txt": "\n".join(
            f"{word} {n % 3} {n % 2} 1" for n, word in enumerate(["the", "a", "she", "he", "was", "said"])
        ),
        "SST-2/train.tsv": "\n".join(
            ["sentence\tlabel", *(f"{words['good']}\t1\n{words['bad']}\t0" for _ in range(8))]
        ),
        "SST-2/dev.tsv": f"sentence\tlabel\n{words['good']}\t1\n{words['bad']}\t0",
        "SST-2/test.tsv": f"index\tsentence\n0\t{words['good']}",
    }
    for name, text in texts.items():
        write_bytes(folder / name, f"{text}\n".encode())
    pair = {"sentence_good": "She was here.", "sentence_bad": "She were here."}
    write_bytes(folder / "blimp" / "data" / "agreement.jsonl", json_lines([pair] * 3))
    write_bytes(folder / "papers.jsonl.gz", gzip.compress(json_lines([{"abstract": "It is short."}] * 3)))


def write_protein_tables(folder: Path) -> None:
    """Write proteins with a family, a number, a tag and a number for each residue, contacts and variants."""
    rng = random.Random(0)
    sequences = ["".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=24)) for _ in range(24)]
    records = [
        {"sequence": one, "structure": "HE" * 12, "flexibility": [n / 24 for n in range(24)]} for one in sequences
    ]
    rows = [f"{one},{'ab'[n % 2]},{n / 8}" for n, one in enumerate(sequences)]
    for name, part in {"train": slice(0, 16), "dev": slice(16, 24)}.items():
        write_bytes(folder / f"{name}.jsonl", json_lines(records[part]))
        write_bytes(folder / f"{name}.csv", "\n".join(["sequence,family,stability", *rows[part]]).encode())
    for name, head, cell in (("known", "contacts", "1-9 4-20"), ("variants", "variant", "")):
        cells = [f"{one},{cell or f'{one[4]}5V'}" for one in sequences]
        write_bytes(folder / f"{name}.csv", "\n".join([f"sequence,{head}", *cells]).encode())
    write_bytes(folder / "proteins.fasta", gzip.decompress(fasta(sequences)))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def json_lines(records: Iterable[dict[str, Any]]) -> bytes:
    """Encode one record per line."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def fasta(sequences: list[str]) -> bytes:
    """Encode sequences as a compressed FASTA file."""
    return gzip.compress("".join(f">s{n}\n{sequence}\n" for n, sequence in enumerate(sequences)).encode())


def extracted(texts: list[str]) -> bytes:
    """Encode articles in the format of WikiExtractor."""
    return "".join(f'<doc id="{n}" title="T">\nT\n\n{text}\n</doc>\n' for n, text in enumerate(texts)).encode()
