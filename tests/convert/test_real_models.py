"""A published, trained model and published vocabularies: bertjax reads and uses them as transformers does."""

from __future__ import annotations

import bz2
import json
import lzma
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertjax.__main__ import main
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer
from bertjax.interpret.fill_mask import fill_mask
from bertjax.run.run_directory import load_run
from bertjax.tokenization.huggingface import provide_sentencepiece_messages

pytestmark = pytest.mark.run

# Reactions in the format of the model's training data, with spaces between its tokens.
REACTIONS = (
    "C C ( = O ) O [MASK] C C O > > C C ( = O ) O C C",
    "c 1 c c c c c 1 Br . O B ( O ) c 1 c c c c [MASK] 1",
    "[MASK] C ( = O ) Cl . N C",
)


@pytest.fixture(scope="module")
def reactions(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an AlbertForMaskedLM over reactions, with the rules that its own tokenizer has only in code."""
    source = real_data / "checkpoints" / "rxnmapper_albert"
    if not source.is_dir():
        pytest.skip("needs the checkpoint rxnmapper_albert")
    folder = tmp_path_factory.mktemp("model") / "rxn"
    shutil.copytree(source, folder)
    folder.chmod(0o755)
    settings = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_trained_albert_fills_masks_like_transformers(
    reactions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["import", f"hf:{reactions}", "--output", "run"]) == 0
    output = capsys.readouterr().out
    assert "MLM logits" in output and "hidden states" in output, "the comparison uses the class that the folder has"
    assert "fill-mask" in output and "SOP head: not in the source" in output
    model = load_run("run")
    assert model.config.model.layer_groups == 1 and model.config.model.embedding_size == 128
    network = transformers.AlbertForMaskedLM.from_pretrained(reactions).eval()
    tokenizer = model.tokenizer
    for text, (ours,) in zip(REACTIONS, fill_mask(model, REACTIONS, top=5), strict=True):
        before, after = (ids.tolist() for ids in tokenizer.encode_sentences(text.split("[MASK]")))
        ids = torch.tensor([[tokenizer.cls_id, *before, tokenizer.mask_id, *after, tokenizer.sep_id]])
        with torch.no_grad():
            shares = torch.softmax(network(input_ids=ids).logits[0, len(before) + 1], dim=-1).topk(5)
        assert [guess.token for guess in ours] == [tokenizer.display_texts[n] for n in shares.indices.tolist()]
        np.testing.assert_allclose([guess.probability for guess in ours], shares.values.numpy(), rtol=1e-4)
    assert main(["fill-mask", "run", REACTIONS[0]]) == 0
    assert main(["export", "run", "--to", "huggingface", "--output", "out"]) == 0
    back = transformers.AlbertForPreTraining.from_pretrained("out").state_dict()
    for name, tensor in network.state_dict().items():
        if "position_ids" not in name:
            assert torch.equal(back[name], tensor), name


def sample(real_data: Path) -> list[str]:
    """Lines of books and of Wikipedia in several scripts."""
    lines: list[str] = []
    for name in ("books_en/carroll-alice.txt.xz", "wikipedia_zh/zh_00.txt.xz", "wikipedia_ko/ko_00.txt.xz"):
        with lzma.open(real_data / name, "rt", encoding="utf-8") as file:
            lines += file.read(60_000).splitlines()
    for language in ("fr", "de", "ru", "ar", "hi", "th", "ja"):
        with bz2.open(
            real_data / "wikipedia_dumps" / f"{language}wiki_minidump.xml.bz2", "rt", encoding="utf-8"
        ) as file:
            lines += file.read(30_000).splitlines()
    return [line for line in lines if line.strip()]


def texts_with_other_ids(ours, theirs, texts: list[str]) -> list[str]:
    their_ids = theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return [text for text, a, b in zip(texts, ours.encode_sentences(texts), their_ids, strict=True) if a.tolist() != b]


@pytest.mark.long  # the suite has it in tests/tokenization/test_byte_level.py
def test_roberta_vocabulary_gives_transformers_ids(real_data: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = real_data / "vocab" / "roberta-base"
    ours = read_tokenizer(folder, "roberta")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text("utf-8").split("\n")[1:] if line]
    theirs = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
    assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 50_264)
    texts = [text for text in sample(real_data) if not re.search(r"</?s>|<(pad|unk|mask)>", text)]
    assert len(texts) > 1000 and not texts_with_other_ids(ours, theirs, texts)


@pytest.mark.long  # the suite has it in test_tokenizer_files.py
def test_albert_vocabulary_gives_transformers_ids(real_data: Path) -> None:
    transformers = pytest.importorskip("transformers")
    provide_sentencepiece_messages()
    folder = real_data / "vocab" / "albert-base-v1"
    ours, theirs = read_tokenizer(folder, "albert"), transformers.AlbertTokenizer.from_pretrained(folder)
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    texts = sample(real_data)
    assert len(texts) > 1000 and not texts_with_other_ids(ours, theirs, texts)
