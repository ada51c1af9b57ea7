"""The `hf` source: data sets read by huggingface_hub's client from a local stand-in for the Hub."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, Hub, Repository
from small_corpus import changed, generated_text

from bertjax.text import corpus
from bertjax.text.corpus import Corpus
from bertjax.text.prepare import prepare
from bertjax.text.sources.registry import parse_source, read_documents, source_files

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'bertjax[hf]'")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAME = "team/texts"
CARD = {
    "configs": [
        {"config_name": "20231101.en", "data_files": [{"split": "train", "path": "20231101.en/train-*"}]},
        {
            "config_name": "small",
            "data_files": [{"split": "train", "path": "s/*.jsonl"}, {"split": "rest", "path": ["s/t.csv"]}],
        },
    ]
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Start the server, and point this process's client to it as HF_ENDPOINT and HF_HOME would."""
    from huggingface_hub import HfFileSystem, constants

    hub = Hub()
    values = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_CACHE": str(tmp_path / "home" / "hub"),
        "HF_ASSETS_CACHE": str(tmp_path / "home" / "assets"),
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    HfFileSystem.clear_instance_cache()
    yield hub
    hub.shutdown()
    hub.server_close()
    HfFileSystem.clear_instance_cache()


def parquet(rows: list[str], groups: int = 1) -> bytes:
    """Make a Parquet file with a column of text beside others of the same size."""
    table = pa.table({"id": range(len(rows)), "other": rows[::-1], "text": rows, "title": ["T"] * len(rows)})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=len(rows) // groups, compression="none", use_dictionary=False)
    return file.getvalue()


def data_set(hub: Hub, files: dict[str, bytes], name: str = NAME, **options: object) -> str:
    repository = Repository(**options)
    hub.repositories[f"datasets/{name}"] = repository
    return repository.commit({"README.md": b"# Texts\n", **files})


def texts(source: str) -> list[str]:
    return [document.text for file in source_files(parse_source(source)) for document in read_documents(file)]


def test_hf_reads_the_config_the_split_and_the_column(hub):
    first = data_set(
        hub,
        {
            "20231101.en/train-00000-of-00002.parquet": parquet(["One.", "Two."]),
            "20231101.en/train-00001-of-00002.parquet": parquet(["Three."]),
            "20231101.en/test-00000-of-00001.parquet": parquet(["Held out."]),
            "s/a.jsonl": b'{"text": "Line.", "body": "Body."}\n',
            "s/t.csv": b"text\nRest.\n",
        },
        card=CARD,
    )
    hub.repositories[f"datasets/{NAME}"].commit({"s/a.jsonl": b'{"text": "Newer."}\n'})
    for source, expected in {
        "hf:team/texts:20231101.en": ["One.", "Two.", "Three."],
        "hf:team/texts:20231101.en:train:other": ["Two.", "One.", "Three."],
        "hf:team/texts:20231101.en:title": ["T", "T", "T"],
        "hf:team/texts:small": ["Newer."],
        "hf:team/texts:small:rest": ["Rest."],
        f"hf:team/texts@{first}:small:body": ["Body."],
        "hf:team/texts/20231101.en/*": ["Held out.", "One.", "Two.", "Three."],
        "hf:team/texts/**/*.jsonl:text": ["Newer."],
    }.items():
        assert texts(source) == expected, source
    for source, message in {
        "hf:team/texts": r"it has 2 configs; add one, 20231101\.en, small: hf:OWNER/NAME",
        "hf:team/texts:smal": "'smal' is not one of its 2 configs",
        "hf:team/texts:small:rest:text:more": "'text' is neither a config nor a split",
        "hf:team/texts:20231101.en:body": "no field 'body'; it has id, other, text, title",
        "hf:team/texts@v9:small": "team/texts@v9: the data set has no revision v9",
        "hf:team/nothing": "the Hub has no such data set that you may read; .* run `hf auth login`, or set HF_TOKEN",
        "hf:texts": r"source hf:texts: write hf:OWNER/NAME\[@REVISION\]",
        "hf:team/texts/*.bin": "no text files match; its files are 20231101",
    }.items():
        with pytest.raises(ValueError, match=message):
            texts(source)


def test_hf_infers_splits_from_names(hub):
    data_set(
        hub,
        {
            "data/train-0.parquet": parquet(["A."]),
            "data/validation-0.parquet": parquet(["B."]),
            "en/x.jsonl": b'{"text": "C."}',
        },
    )
    data_set(hub, {"part1.json": b'{"text": "D."}\n', "part2.json": b'{"text": "E."}\n', "a.bin": b""}, "team/plain")
    data_set(hub, {"make.py": b"raise SystemExit"}, "team/script")
    expected = {"": ["A."], ":validation": ["B."], ":en": ["C."], ":data:validation:title": ["T"]}
    assert {end: texts(f"hf:team/texts{end}") for end in expected} == expected
    assert texts("hf:team/plain") == ["D.", "E."]
    with pytest.raises(ValueError, match=r"no text files match; .* read the Hub's Parquet copy: .*@~parquet"):
        texts("hf:team/script")


def test_private_and_gated_data_sets_need_the_token(hub, monkeypatch):
    data_set(hub, {"a.jsonl": b'{"text": "Secret."}\n'}, "team/private", private=True)
    data_set(hub, {"a.jsonl": b'{"text": "Gated."}\n'}, "team/gated", gated=True)
    with pytest.raises(ValueError, match="no such data set that you may read"):
        texts("hf:team/private")
    with pytest.raises(ValueError, match="hf:team/gated: open only to those who accepted its terms; accept them"):
        texts("hf:team/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert texts("hf:team/private") + texts("hf:team/gated") == ["Secret.", "Gated."]


def test_store_of_a_data_set_downloads_its_column_once(hub, data, tmp_path, monkeypatch):
    """Counts the bytes that the server sends for 21 row groups, read for the vocabulary and for the store."""
    monkeypatch.setattr(corpus, "UNIT_BYTES", 1 << 19)
    texts = [generated_text(number, 200) for number in range(210)]
    content = parquet(texts, 21)
    data_set(hub, {"data/train-0.parquet": content})
    footer = pq.read_metadata(io.BytesIO(content))
    column = sum(footer.row_group(group).column(2).total_compressed_size for group in range(footer.num_row_groups))
    data = changed(data, sources=(f"hf:{NAME}",), vocab="", vocab_size=60)
    assert footer.num_row_groups == 21 and len(Corpus.of(data).units) > 3
    store = prepare(data)
    sent = sum(size for path, size in hub.sent)
    print(f"{sent:,} bytes sent, {column:,} of the column of text, {len(content):,} of the file")
    assert column < sent <= 1.1 * column and {path for path, _ in hub.sent} == {f"datasets/{NAME}/data/train-0.parquet"}
    assert prepare(data) == store and sum(size for _, size in hub.sent) == sent
    # A local copy of the file gives the same store.
    (tmp_path / "train-0.parquet").write_bytes(content)
    assert prepare(changed(data, sources=(f"parquet:{tmp_path}/*.parquet",))) == store


def test_offline_reads_what_was_downloaded(hub, monkeypatch):
    from huggingface_hub import constants, snapshot_download

    rest = {f"20231101.en/train-0000{n}-of-00002.parquet": parquet([f"Part {n}."]) for n in range(2)}
    card = "---\n" + json.dumps(CARD) + "\n---\n"
    data_set(hub, {"README.md": card.encode(), **rest}, card=CARD)
    source = "hf:team/texts:20231101.en"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"HF_HUB_OFFLINE is set\); on a machine with network, run `hf download team/texts"
    ):
        texts(source)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(NAME, repo_type="dataset", allow_patterns=["*.md", "*00000-of*"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"only 1 of the 2 files 20231101\.en/train\* are downloaded"):
        texts(source)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(NAME, repo_type="dataset")
    sent = len(hub.sent)
    assert texts(source) == ["Part 0.", "Part 1."] and len(hub.sent) == sent
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert texts(source) == ["Part 0.", "Part 1."]
