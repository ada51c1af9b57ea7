"""Real sentences in eight languages and scripts, for tests of tokenizers."""

import lzma

import pytest

LANGUAGES = ("ar", "en", "hi", "ja", "ko", "ru", "th", "zh")


@pytest.fixture(scope="session")
def sentences(real_data):
    """Sentences of treebanks, and lines of Chinese, Korean and English Wikipedia."""
    lines_of_text = []
    for language in LANGUAGES:
        (path,) = (real_data / "pos").glob(f"{language}_*.xz")
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            texts = [line.partition("=")[2].strip() for line in lines if line.startswith("# text = ")]
        assert len(texts) > 400, path
        lines_of_text += texts
    for name in ("wikipedia_zh/zh_00", "wikipedia_ko/ko_00", "wikipedia_en/AA_00"):
        with lzma.open(real_data / f"{name}.txt.xz", "rt", encoding="utf-8") as stream:
            lines_of_text += [line.strip() for line in stream.read(300_000).split("\n") if line.strip()]
    return lines_of_text
