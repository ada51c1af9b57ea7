"""Widely used encoders import, fill masks, train further and export, all equal to transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizer_vocabularies as vocabularies
from todays_encoders import ENCODERS, Encoder, make_encoder
from tokenizer_folders import composed_texts, hard_texts, readable_pieces, reference_ids, reference_tokenizer

import bertjax
from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig
from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.sources import as_run
from bertjax.families.registry import get_family
from bertjax.loaded import open_model
from bertjax.run.run_directory import load_run

pytestmark = pytest.mark.run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


# A tokenizer.json of bytes, one of pieces with byte fallback, and two SentencePiece models; the others are similar.
SUITE = ("ModernBERT", "mmBERT", "DeBERTa-v3", "XLM-R")


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.long] * (one.name not in SUITE), id=one.name) for one in ENCODERS],
)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return request.param


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(encoder, tmp_path_factory.mktemp("encoder") / encoder.name)


def their_guesses(folder: Path, text: str, top: int) -> list[tuple[int, float]]:
    """The likeliest ids for the mask in a text and their probabilities, as in transformers' fill-mask pipeline."""
    tokenizer = reference_tokenizer(folder)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).float().eval()
    ids = torch.tensor([tokenizer(text.replace("[MASK]", tokenizer.mask_token))["input_ids"]])
    (place,) = (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    with torch.no_grad():
        shares = torch.softmax(network(input_ids=ids).logits[0, place].double(), -1)
    values, numbers = shares.topk(top)
    return [*zip(numbers.tolist(), values.tolist(), strict=True)]


def test_encoder_is_imported_with_its_ids_and_states(encoder: Encoder, folder: Path, tmp_path: Path) -> None:
    imported = read_huggingface(folder)
    assert imported.config.family == encoder.family and not imported.untrained
    ours = [ids.tolist() for ids in imported.tokenizer.encode_sentences(hard_texts())]
    if encoder.kind == "deberta-v3":  # transformers leaves the bytes out
        from sentencepiece import SentencePieceProcessor

        assert ours == SentencePieceProcessor(model_file=str(folder / "spm.model")).encode(hard_texts())
    else:
        assert ours == reference_ids(reference_tokenizer(folder), hard_texts(), forged=True)
    with readable_pieces():
        difference = compare_with_transformers(as_run(imported, tmp_path / "run"), folder)
    assert difference is not None and difference.largest < 1e-4


def test_encoder_fills_masks_as_transformers(encoder: Encoder, folder: Path) -> None:
    model = open_model(f"hf:{folder}")
    (guesses,) = model.fill_mask(encoder.text, top=5)
    expected = their_guesses(folder, encoder.text, top=5)
    assert [guess.token for guess in guesses] == [model.tokenizer.display_texts[number] for number, _ in expected]
    np.testing.assert_allclose([guess.probability for guess in guesses], [share for _, share in expected], rtol=1e-3)


def export_texts(encoder: Encoder) -> list[str]:
    """Texts on which an export has the encoder's ids: `tokenizers` cannot follow sentencepiece on all texts."""
    return composed_texts() if encoder.kind == "deberta-v3" else hard_texts()


def test_export_of_encoder_has_its_ids_and_logits(encoder: Encoder, folder: Path, tmp_path: Path) -> None:
    """Covers the export as written, and after transformers saved its tokenizer again."""
    model = as_run(read_huggingface(folder), tmp_path / "run")
    exported = export_huggingface(model, tmp_path / "export")
    compare_with_transformers(model, exported)
    theirs, texts = transformers.AutoTokenizer.from_pretrained(exported), export_texts(encoder)
    expected = [ids.tolist() for ids in model.tokenizer.encode_sentences(texts)]
    assert reference_ids(theirs, texts) == expected
    theirs.save_pretrained(exported)
    again = read_huggingface(exported)
    assert [ids.tolist() for ids in again.tokenizer.encode_sentences(texts)] == expected
    for name, value in jax.tree_util.tree_leaves_with_path(model.params):
        np.testing.assert_array_equal(value, _leaf(again.params, name))


def _leaf(tree: dict, path: tuple) -> np.ndarray:
    for key in path:
        tree = tree[key.key]
    return tree


@pytest.mark.long
@pytest.mark.parametrize("encoder", ENCODERS, indirect=True, ids=str)
def test_encoder_trains_further_with_its_own_vocabulary(encoder: Encoder, folder: Path, tmp_path: Path) -> None:
    """Continued pretraining with only `init_from` set takes the vocabulary of the weights."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(vocabularies.LINES) for _ in range(12)) + "\n", encoding="utf-8")
    before = read_huggingface(folder)
    objectives = get_family(before.config.family).objectives
    config = Config(
        name="further",
        init_from=f"hf:{folder}",
        model=before.config,
        execution=ExecutionConfig(dtype="float32"),
        data=DataConfig(
            sources=(f"lines:{corpus}",), root=str(tmp_path / "data"), sequence_length=32, max_predictions=8,
            held_out=0.2, workers=1,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=1),
        training=TrainingConfig(
            steps=2, global_batch_size=8, eval_rows=8, log_every=1, eval_every=2, checkpoint_every=2,
            objectives=objectives,
        ),
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    result = bertjax.pretrain(config)
    assert result.step == 2 and np.isfinite(result.figures["eval/mlm_loss"])
    after = load_run(result.directory)
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    moved = np.asarray(after.params["encoder"]["embeddings"]["word"]) - before.params["encoder"]["embeddings"]["word"]
    assert 0 < np.abs(moved).max() < 1e-3, "two steps away from the weights of the folder"
    compare_with_transformers(after, result.exported)
    theirs, texts = transformers.AutoTokenizer.from_pretrained(result.exported), export_texts(encoder)
    assert reference_ids(theirs, texts) == [ids.tolist() for ids in before.tokenizer.encode_sentences(texts)]


def test_japanese_words_cut_by_mecab_are_refused(tmp_path: Path) -> None:
    """tohoku-nlp/bert-base-japanese-v3 and others use MeCab, which no artefact can express."""
    encoder = replace(ENCODERS[0], name="bert-japanese", kind="bert", family="bert", files="legacy")
    folder = make_encoder(encoder, tmp_path / "japanese")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {
        "tokenizer_class": "BertJapaneseTokenizer",
        "word_tokenizer_type": "mecab",
        "subword_tokenizer_type": "wordpiece",
        "mecab_kwargs": {"mecab_dic": "unidic_lite"},
    }
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"(?i)mecab") as caught:
        read_huggingface(folder)
    assert str(folder) in str(caught.value)
