"""Tokens of texts, with the vocabulary of a file or a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from exported_models import wordpiece

from bertjax.convert.huggingface.tokenizer_files import tokenizer_texts
from bertjax.pipeline.tokens import tokenize


def test_tokenize_refuses_cased_for_sources_with_rules(tmp_path: Path) -> None:
    for name, content in tokenizer_texts(wordpiece(), 64, "bert").items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert tokenize(str(tmp_path / "vocab.txt"), ["The"], cased=True)[0].tokens == ["The"]
    for source in (f"hf:{tmp_path}", str(tmp_path / "tokenizer.json")):
        assert tokenize(source, ["The"])[0].tokens == ["the"]
        with pytest.raises(ValueError, match=r"cased: .* has its own rules; leave it out"):
            tokenize(source, ["The"], cased=True)
