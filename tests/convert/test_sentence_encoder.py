"""An imported, published sentence encoder has the attention of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertjax.convert.compare import PAIRS
from bertjax.convert.sources import as_run, read_source, write_run
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.token_rows import read_row
from bertjax.run.run_directory import load_run

pytestmark = pytest.mark.run


@pytest.mark.long  # the suite has this model's vectors in test_vector_exports.py
def test_attention_equals_transformers(minilm: Path, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    imported = read_source(f"hf:{minilm}")
    assert imported.untrained == ("MLM head", "NSP head") and not imported.notes
    run = load_run(write_run(as_run(imported, tmp_path / "run")))
    rows = [read_row(run.tokenizer, pair, 128) for pair in PAIRS]
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    network = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    for pair, row, inside in zip(PAIRS, rows, look_inside(run, rows), strict=True):
        inputs = tokenizer(*pair, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == row.ids.tolist()
        with torch.no_grad():
            theirs = np.stack([layer[0].numpy() for layer in network(**inputs, output_attentions=True).attentions])
        # Per element, transformers' float32 differs from its float64 by up to 3e-6, and ours by no more.
        assert np.linalg.norm(inside.attention - theirs) <= 1e-6 * np.linalg.norm(theirs)
        np.testing.assert_allclose(inside.attention, theirs, rtol=0, atol=1.2e-5)
    assert theirs.max() > 0.9, "heads that look at something"
