"""Small valid files for each reader, from which mutations start."""

from __future__ import annotations

import bz2
import io
import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fuzzing_mutations as change
import numpy as np
from office_files import PAGE, docx_file, pdf_file
from stored_documents import write_store

from bertjax.config import Config, ModelConfig, to_dict
from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.tokenizer_files import tokenizer_texts
from bertjax.convert.tf1.tf1_format import _write_arrays
from bertjax.families.registry import FAMILIES
from bertjax.run.checkpoint_metadata import make_document
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import train_tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

TEXT = (
    "The museum opened in 1877.\nIts drawings are of the 北京 school; naïve ones too.\n\n"
    "A second document — “quoted”.\nIt has [MASK] and café.\n\n"
)
WORDS = ("the", "of", "and", "museum", "opened", "drawings", "naive", "1877", "in", "its", "are", "school")
SIGNS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,;“”—北京"]


def _in_folder(make: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder))


@cache
def wordpiece() -> WordPiece:
    """A vocabulary of 100 tokens."""
    tokens = [*SPECIAL_TOKENS, *WORDS, *SIGNS, *(f"##{sign}" for sign in SIGNS)]
    return WordPiece(tokens, TextRules(lowercase=True, strip_accents=True))


@cache
def _tokenizer(kind: str) -> Tokenizer:
    if kind == "wordpiece":
        return wordpiece()
    counts = Counter(word for word in TEXT.split() for _ in range(3)) + Counter(dict.fromkeys(WORDS, 5))
    return train_tokenizer(kind, counts, 300 if kind == "byte_bpe" else 70, TextRules(False, False))


def tokenizer(kind: str, name: str) -> list[bytes]:
    """A file of a trained tokenizer."""
    trained = _tokenizer(kind)
    texts = tokenizer_texts(trained, 32, "roberta" if kind == "byte_bpe" else "bert")
    content = trained.files.get(name, texts.get(name, ""))
    return [content.encode() if isinstance(content, str) else content]


def beside_tokenizer(kind: str, name: str, folder: Path) -> None:
    """Write the file that accompanies the mutated one."""
    (folder / name).write_bytes(tokenizer(kind, name)[0])


def entity_map() -> list[bytes]:
    """An entity map from surface forms to tokens."""
    return ["Zürich\tmuseum\nQuébécois\tschool\nGöteborg\tthe\n".encode()]


def numbered_pieces() -> list[bytes]:
    """A SentencePiece model with the library's own token order."""
    import sentencepiece

    buffer = io.BytesIO()
    sentences = iter([line for line in TEXT.split("\n") if line] * 3)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=buffer, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    return [buffer.getvalue()]


def torch(*, zipped: bool) -> list[bytes]:
    """State dicts in either format, plain and nested."""
    import torch

    big = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    tensors = {"plain": big, "turned": big[1].T, "part": big[:, 1:, ::2], "scalar": torch.tensor(3.5)}
    tensors |= {"empty": torch.zeros(0, 4), "half": torch.ones(2, dtype=torch.bfloat16), "ids": torch.arange(5)}
    contents = []
    for state_dict in (tensors, {"state_dict": {"p": torch.nn.Parameter(torch.ones(2, 2))}}):
        buffer = io.BytesIO()
        torch.save(state_dict, buffer, _use_new_zipfile_serialization=zipped)
        contents.append(buffer.getvalue())
    return contents


def safetensors() -> list[bytes]:
    """A file with two tensors, and one without."""
    arrays = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.int64)}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {
            "dtype": "F32" if array.dtype == np.float32 else "I64",
            "shape": [*array.shape],
            "data_offsets": offsets,
        }
        data += array.tobytes()
    return [_with_header(header) + data, _with_header({})]


def _with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def configs() -> list[bytes]:
    """`config.json` of every family."""
    special = {"pad": 1, "cls": 0, "sep": 2}
    contents = []
    for family in FAMILIES.values():
        if family.huggingface:
            values = to_config_json(family.presets["base"], special) | {"architectures": ["BertForMaskedLM"]}
            contents.append(json.dumps(values).encode())
    return contents


def bert_configs() -> list[bytes]:
    """A `bert_config.json`."""
    return [
        json.dumps(
            {
                "vocab_size": 100,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "hidden_act": "gelu",
            }
        ).encode()
    ]


def run_configs() -> list[bytes]:
    """The configs of a pretraining and a fine-tuning run."""
    from bertjax.config import FinetuneConfig

    return [json.dumps(to_dict(config)).encode() for config in (Config(name="run"), FinetuneConfig(name="task"))]


def metadata() -> list[bytes]:
    """The metadata of checkpoint 3."""
    content = {
        "step": 3,
        "config": to_dict(Config(name="run", model=ModelConfig(vocab_size=100))),
        "tokenizer_fingerprint": "a" * 64,
        "data_fingerprint": "b" * 64,
        "teacher_digest": "",
        "versions": {"bertjax": "1", "jax": "0.10.2"},
        "device_kind": "cpu",
        "mesh": {"data": 1},
        "arrays": {"params/a": {"shape": [2, 3], "dtype": "float32", "digest": "0" * 32}},
    }
    return [json.dumps(make_document(content)).encode()]


def similar_words() -> list[bytes]:
    """A table of similar words."""
    return [b"the\tof\tand\nmuseum\tdrawings\tschool\nopened\tare\n"]


def word_vectors() -> list[bytes]:
    """word2vec's text format with and without a header."""
    rows = "the 0.5 -1 2e-3\nof 1 2 3\n\u00e9t\u00e9 0 0 1\n".encode()
    return [b"3 3\n" + rows, rows]


def texts() -> list[bytes]:
    """Plain text; text with a byte order mark and CRLF; a long line."""
    return [TEXT.encode(), b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode(), b"word " * 500]


def packed(suffix: str) -> list[bytes]:
    """Compressed text in one frame and in two."""
    one = change.pack(suffix, TEXT.encode())
    return [one, one + change.pack(suffix, b"And more.\n")]


def json_lines() -> list[bytes]:
    """Records with spans, and records with labels."""
    rows = [
        {"text": line, "label": str(number % 2), "id": number, "spans": [[0, 3], [4, 10, "entity"]]}
        for number, line in enumerate(TEXT.split("\n"))
        if len(line) > 12
    ]
    return [b"\n".join(json.dumps(row).encode() for row in rows) + b"\n"]


def extracted() -> list[bytes]:
    """WikiExtractor's output."""
    return [f'<doc id="1" url="https://x" title="Museum">\nMuseum\n\n{TEXT}</doc>\n'.encode()]


_HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">\n<siteinfo><namespaces>'
    '<namespace key="0" /><namespace key="14">Category</namespace></namespaces></siteinfo>\n'
)
_PAGE = (
    "<page><title>Museum {0}</title><ns>0</ns><id>{0}</id><revision><id>1</id><model>wikitext</model><text>"
    "'''Museum''' is a [[house|building]] &amp; {{{{cite|a={{{{b}}}}}}}} of [[File:x.png|thumb|A [[link]]]] art."
    "&lt;ref&gt;note&lt;/ref&gt;\n"
    "== Head ==\n* one\n* two\n{{| class=a\n|-\n| cell\n|}}\nA second paragraph with a sentence. And another one.\n"
    "[[Category:Houses]]</text></revision></page>\n"
)


def dumps() -> list[bytes]:
    """A MediaWiki dump of three pages."""
    return [(_HEAD + "".join(_PAGE.format(number) for number in range(3)) + "</mediawiki>\n").encode()]


def multistream() -> list[bytes]:
    """The same dump, compressed in several streams and in one."""
    parts = [_HEAD, *(_PAGE.format(number) for number in range(3)), "</mediawiki>\n"]
    return [b"".join(bz2.compress(part.encode(), 1) for part in parts), bz2.compress(dumps()[0], 1)]


def _table() -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "text": TEXT.split("\n"),
            "label": ["a", "b"] * 4 if TEXT.count("\n") == 7 else ["a"] * (TEXT.count("\n") + 1),
            "id": list(range(TEXT.count("\n") + 1)),
        }
    )


def parquet() -> list[bytes]:
    """Parquet files with plain, dictionary-encoded and compressed columns."""
    from pyarrow import parquet as pq

    contents = []
    for options in (
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
    ):
        buffer = io.BytesIO()
        pq.write_table(_table(), buffer, **options)
        contents.append(buffer.getvalue())
    return contents


def arrow(*, stream: bool) -> list[bytes]:
    """Arrow IPC files or streams."""
    import pyarrow as pa

    contents = []
    for compression in (None, "zstd"):
        buffer = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(buffer, _table().schema, options=options) as writer:
            writer.write_table(_table())
        contents.append(buffer.getvalue())
    return contents


def csv() -> list[bytes]:
    """CSV with and without quotes."""
    return [
        b'text,label,id\n"one, ""two""",a,1\nthree,b,2\n"four\nfive",a,3\n',
        b"\xef\xbb\xbflabel,text\r\na,one\r\nb,two\r\n",
    ]


def pages() -> list[bytes]:
    """A web page in UTF-8, and one in the encoding that it declares."""
    return [PAGE.format(charset=name, text="A naïve café. " * 9).encode(name) for name in ("utf-8", "cp1252")]


def pdfs() -> list[bytes]:
    """Two pages with a header and a hyphenated word, uncompressed and compressed."""
    from pypdf import PdfWriter

    plain = pdf_file(
        [["Museum report", f"It opened in 18{number}7 with draw-", "ings of the school."] for number in "78"]
    )
    writer = PdfWriter(clone_from=io.BytesIO(plain))
    for page in writer.pages:
        page.compress_content_streams()
    packed = io.BytesIO()
    writer.write(packed)
    return [plain, packed.getvalue()]


def word_documents() -> list[bytes]:
    """A document with paragraphs and a table, compressed and uncompressed."""
    content = docx_file("The museum opened in 1877.", "Its café is naïve.")
    stored = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(stored, "w") as target:
        for name in ("[Content_Types].xml", *sorted(source.namelist())):
            if name not in target.namelist():
                target.writestr(name, source.read(name))
    return [content, stored.getvalue()]


def tsv() -> list[bytes]:
    """A tab-separated table."""
    return [b'text\tlabel\tid\none "two\ta\t1\nthree\tb\t2\n']


def json_table() -> list[bytes]:
    """A list of objects, and an object whose values are objects."""
    rows = [{"text": "one", "label": "a", "id": 1}, {"text": "two", "label": 0.5, "id": "x"}]
    return [json.dumps(rows).encode(), json.dumps({str(number): row for number, row in enumerate(rows)}).encode()]


def packed_table() -> list[bytes]:
    """A compressed CSV."""
    return [change.pack(".gz", csv()[0])]


def questions() -> list[bytes]:
    """SQuAD 2.0."""
    qas = [
        {"id": "a", "question": "When?", "answers": [{"text": "1877", "answer_start": 21}], "is_impossible": False},
        {"id": "b", "question": "Who?", "answers": [], "is_impossible": True},
    ]
    context = "The museum opened in 1877."
    return [
        json.dumps(
            {"version": "v2.0", "data": [{"title": "x", "paragraphs": [{"context": context, "qas": qas}]}]}
        ).encode()
    ]


def choices() -> list[bytes]:
    """SWAG."""
    return [
        b",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n0,x,A man,He,sits,runs,eats,flies,2\n"
        b"1,x,B,She,a,b,c,d,0\n"
    ]


def tags() -> list[bytes]:
    """CoNLL-2003's four columns, and two with tabs."""
    return [
        b"-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n",
        b"EU\tB-ORG\nsays\tO\n\n",
    ]


def treebank() -> list[bytes]:
    """CoNLL-U with a range, an empty node and comments."""
    word = "{0}\tword\tword\tNOUN\tNN\t_\t0\troot\t_\t_\n"
    return [
        (
            "# sent_id = a-1\n# text = word\n"
            + word.format("1-2")
            + word.format(1)
            + word.format(2)
            + word.format("2.1")
            + "\n"
        ).encode()
    ]


def judgements() -> list[bytes]:
    """Relevance judgements in BEIR's and TREC's format."""
    return [b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n", b"1 0 d1 1\n1 0 d2 -1\n"]


def documents() -> list[bytes]:
    """A corpus in BEIR's format."""
    return [b'{"_id": "1", "title": "A", "text": "one"}\n{"_id": 2, "text": "two"}\n{"text": "three"}\n']


def metrics() -> list[bytes]:
    """A log of metrics."""
    return [
        b'{"step": 1, "time": "2024", "train/loss": 3.5}\n{"step": 2, "time": "2024", "train/loss": null}\n{"step": 3'
    ]


def sums() -> list[bytes]:
    """A list of digests."""
    return [b"# 2 files\n" + b"0" * 64 + b"  a.txt\n" + b"1" * 64 + b"  b/c.txt\n"]


@cache
def _store_files() -> dict[str, bytes]:
    def make(folder: Path) -> dict[str, bytes]:
        splits = {"train": [[[5, 6, 7], [8]], [[9, 10]], [[11], [12, 13]]], "held_out": [[[5], [6, 7]]]}
        sources = {"train": [0, 0], "held_out": [0]}
        path = write_store(
            folder / "s", splits, wordpiece(), documents_per_shard=2, provenance={"shard_sources": sources}
        )
        return {file.name: file.read_bytes() for file in path.iterdir()}

    return _in_folder(make)


def store_manifest() -> list[bytes]:
    """The manifest of a token store of three shards."""
    return [_store_files()["manifest.json"]]


def beside_store(folder: Path) -> None:
    """The other files of the store."""
    for name, content in _store_files().items():
        (folder / name).write_bytes(content)


def store_archive() -> list[bytes]:
    """The arrays and the vocabulary of the store in one archive, with its manifest."""
    return [_archived(_store_files())]


def _archived(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def tf_records() -> list[bytes]:
    """Two examples in the format of google-research/bert."""
    import tensorflow as tf

    def example(label: int) -> bytes:
        ints = {
            "input_ids": [2, 5, 4, 3, 6, 3, 0, 0],
            "input_mask": [1] * 6 + [0] * 2,
            "segment_ids": [0] * 4 + [1] * 2 + [0] * 2,
            "masked_lm_positions": [2, 0],
            "masked_lm_ids": [7, 0],
            "next_sentence_labels": [label],
        }
        features = {key: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for key, value in ints.items()}
        features["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 0.0]))
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)

    return [b"".join(change._framed(example(label)) for label in (0, 1))]


@cache
def _tf1_files() -> dict[str, bytes]:
    def make(folder: Path) -> dict[str, bytes]:
        arrays = {
            "bert/embeddings/word_embeddings": np.ones((4, 3), np.float32),
            "global_step": np.asarray(3, np.int64),
        }
        _write_arrays(folder / "bert_model.ckpt", arrays)
        return {file.name.removeprefix("bert_model.ckpt."): file.read_bytes() for file in folder.iterdir()}

    return _in_folder(make)


def tf1(part: str) -> list[bytes]:
    """A file of a TensorFlow 1 checkpoint."""
    return [_tf1_files()[part]]


def beside_tf1(part: str, folder: Path) -> None:
    """The other file of the checkpoint."""
    (folder / f"bert_model.ckpt.{part}").write_bytes(_tf1_files()[part])
