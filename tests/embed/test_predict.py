"""Predictions of fine-tuned models match transformers' and have the form of their task."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model
from family_models import traits

import bertjax
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.sources import as_run, write_run
from bertjax.finetune.predict import Answer, Choice, Prediction, Tag
from bertjax.loaded import LoadedModel

pytestmark = pytest.mark.usefixtures("one_device")

LABELS = {"sequence": ("bad", "fair", "good"), "tokens": ("O", "B-PER", "I-PER")}
TEXT = "The museum opened in 1877, and holds drawings."
LONG = " ".join(["the museum of drawings opened"] * 30)


def loaded(tmp_path: Path, kind: str, **fields) -> LoadedModel:
    return LoadedModel(fine_tuned_model(tmp_path / "run", kind, LABELS.get(kind, ()), **fields))


def their_logits(model: LoadedModel, tmp_path: Path, *texts, **options) -> np.ndarray:
    """Compute logits with transformers from the exported folder: [rows, ...], for spans [rows, tokens, 2]."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = export_huggingface(model._model, tmp_path / "theirs")
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(
        *texts, padding=True, truncation=True, return_tensors="pt", **options
    )
    network = getattr(transformers, bertjax_class(model)).from_pretrained(folder).eval()
    if "MultipleChoice" in bertjax_class(model):
        inputs = {name: rows[None] for name, rows in inputs.items()}
    with torch.no_grad():
        out = network(**inputs)
    return out.logits.numpy() if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1).numpy()


def bertjax_class(model: LoadedModel) -> str:
    from bertjax.convert.huggingface.names import architecture

    return architecture(model.config)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_classes_match_transformers(tmp_path: Path) -> None:
    model = loaded(tmp_path, "sequence", dtype="bfloat16")
    texts = ["The museum opened.", TEXT, "of", "", "drawings and the museum of the drawings"]
    predictions = model.predict(texts)
    expected = softmax(their_logits(model, tmp_path, texts))
    np.testing.assert_allclose([list(one.probabilities.values()) for one in predictions], expected, atol=2e-6)
    assert [one.label for one in predictions] == [LABELS["sequence"][best] for best in expected.argmax(-1)]
    assert all(isinstance(one, Prediction) for one in predictions) and model.predict([]) == []
    np.testing.assert_allclose(model.predict(texts[1]).probability, predictions[1].probability, atol=1e-6)
    pairs = [("The museum", "opened"), ("of", TEXT)]
    pair_probabilities = softmax(their_logits(model, tmp_path, [a for a, _ in pairs], [b for _, b in pairs]))
    np.testing.assert_allclose(
        [list(one.probabilities.values()) for one in model.predict(pairs)], pair_probabilities, atol=2e-6
    )


@pytest.mark.long  # the suite compares the network with transformers
def test_block_sparse_prediction_ignores_neighbours(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    blocks = {"attention_block": 4, "random_blocks": 1}  # full attention in rows of up to 28 tokens
    model = loaded(tmp_path, "sequence", **(traits("bigbird") | blocks))
    texts = [" ".join(["the museum of drawings opened"] * count) for count in (7, 2, 12, 6, 8, 5)]
    predictions = model.predict(texts)
    folder = export_huggingface(model._model, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.BigBirdForSequenceClassification.from_pretrained(folder).eval()
    # The longest first: after a short text the class keeps full attention.
    for text, one in sorted(zip(texts, predictions, strict=True), reverse=True):
        with torch.no_grad():
            theirs = softmax(network(**tokenizer(text, return_tensors="pt")).logits[0].numpy())
        np.testing.assert_allclose(list(one.probabilities.values()), theirs, atol=2e-6)


def test_regression_and_relevance_match_transformers(tmp_path: Path) -> None:
    pairs = [("The museum", "opened"), ("of", TEXT)]
    number = loaded(tmp_path, "regression")
    expected = their_logits(number, tmp_path, [a for a, _ in pairs], [b for _, b in pairs])[:, 0]
    np.testing.assert_allclose(number.predict(pairs), expected, rtol=1e-5)
    relevance = loaded(tmp_path, "relevance")
    np.testing.assert_allclose(relevance.predict(pairs), 1 / (1 + np.exp(-expected)), rtol=1e-5)
    assert isinstance(relevance.predict(pairs[0]), float)


@pytest.mark.parametrize(
    ("kind", "task", "inputs", "message"),
    [
        ("sequence", {"name": "mrpc"}, "a text", "input 1: 'a text' is one text; the task mrpc takes a pair of texts"),
        ("sequence", {"name": "mrpc"}, [("a", "b"), "c"], "input 2: 'c' is one text"),
        ("sequence", {"name": "xnli"}, "a text", "the task xnli takes a pair"),
        ("regression", {"name": "stsb"}, "a text", "the task stsb takes a pair"),
        ("sequence", {"name": "sst2"}, ("a", "b"), "is a pair of texts; the task sst2 takes one text"),
        ("sequence", {"name": "classification"}, ("a", "b"), "the task classification takes one text"),
        ("sequence", {"name": "classification", "text": ("q", "a")}, "a", "the task classification takes a pair"),
        ("regression", {"name": "regression"}, ("a", "b"), "the task regression takes one text"),
    ],
)
def test_predict_rejects_wrong_number_of_texts(tmp_path: Path, kind: str, task: dict, inputs, message: str) -> None:
    model = fine_tuned_model(tmp_path / "run", kind, LABELS.get(kind, ()))
    config = replace(model.config, task=replace(model.config.task, **task))
    with pytest.raises(ValueError, match=message):
        LoadedModel(replace(model, config=config)).predict(inputs)


def test_describe_rejects_two_texts_for_tags(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 texts: this task takes one text"):
        loaded(tmp_path, "tokens").describe(["The museum opened.", "And closed."])


def test_choices_match_transformers(tmp_path: Path) -> None:
    model = loaded(tmp_path, "choice")
    start, ends = "The museum opened", ["in 1877.", "the drawings of the naive museum.", "and?"]
    choice = model.predict((start, ends))
    (expected,) = softmax(their_logits(model, tmp_path, [start] * 3, ends))
    np.testing.assert_allclose(choice.probabilities, expected, atol=2e-6)
    assert isinstance(choice, Choice) and (choice.number, choice.end) == (
        expected.argmax(),
        ends[expected.argmax()],
    )
    assert choice.probability == max(choice.probabilities)


def test_tags_match_transformers(tmp_path: Path) -> None:
    model = loaded(tmp_path, "tokens")
    words = ["The", "naïve", "museum", "\x00", "opened", "in", "1877"]
    (tags,) = model.predict([words])
    their_words = [word for word in words if word != "\x00"]
    (logits,) = their_logits(model, tmp_path, [their_words], is_split_into_words=True)
    shares = softmax(logits)
    pieces = [len(ids) for ids in model.tokenizer.encode_sentences(their_words)]
    firsts = 1 + np.cumsum(pieces) - pieces
    assert [one.word for one in tags] == words and tags[3] == Tag("\x00", None, 0.0)
    tagged = [one for one in tags if one.tag is not None]
    assert [one.tag for one in tagged] == [LABELS["tokens"][best] for best in shares[firsts].argmax(-1)]
    np.testing.assert_allclose([one.probability for one in tagged], shares[firsts].max(-1), atol=2e-6)
    assert [one.word for one in model.predict("It opened, in 1877.")] == ["It", "opened", ",", "in", "1877", "."]
    long = model.predict([LONG.split()])
    assert len(long[0]) == 150 and all(one.tag for one in long[0])


def test_answers_are_spans_of_the_text(tmp_path: Path) -> None:
    model = loaded(tmp_path, "span")
    question = "the museum?"
    answer = model.predict((question, TEXT))
    (logits,) = their_logits(model, tmp_path, [question], [TEXT])
    first = 2 + len(model.tokenizer.encode_sentences([question])[0])
    scores = logits[first:-1, 0][:, None] + logits[first:-1, 1]
    scores[np.tril_indices(len(scores), -1)] = scores[np.triu_indices(len(scores), 30)] = -np.inf
    start, end = np.unravel_index(scores.argmax(), scores.shape)
    spans = model.tokenizer.backend.encode(TEXT, add_special_tokens=False).offsets
    assert isinstance(answer, Answer) and answer.text == TEXT[spans[start][0] : spans[end][1]]
    assert 0 < answer.probability <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # windows lose nothing
        (long_answer,) = model.predict([(question, LONG)])
    assert long_answer.text in LONG and long_answer.text


def test_null_threshold_gives_empty_answers(tmp_path: Path) -> None:
    always = loaded(tmp_path, "span")
    question = ("the museum?", TEXT)
    assert always.predict(question).text in TEXT and always.predict(question).text
    assert always.predict(question, null_threshold=-1e9).text == ""
    assert always.predict(question).text, "the threshold of a call does not apply to the next"
    assert always.predict(question, null_threshold=1e9).text == always.predict(question).text
    with pytest.raises(ValueError, match="null threshold 0: the model does not answer questions"):
        loaded(tmp_path, "sequence").predict("a", null_threshold=0.0)


def test_no_answer_threshold_survives_export(tmp_path: Path) -> None:
    model = fine_tuned_model(tmp_path / "run", "span")
    model = replace(model, config=replace(model.config, task=replace(model.config.task, null_threshold=-1e9)))
    question = ("the museum?", TEXT)
    assert LoadedModel(model).predict(question).text, "squad ignores the threshold"
    model = replace(model, config=replace(model.config, task=replace(model.config.task, name="squad2")))
    folder = export_huggingface(model, tmp_path / "out")
    run = write_run(as_run(read_huggingface(folder), tmp_path / "back"))
    for source in (f"hf:{folder}", str(run)):
        assert bertjax.load(source).predict(question).text == ""
    again = export_huggingface(bertjax.load(str(run))._model, tmp_path / "again")
    assert (again / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"bertjax_null_threshold": "low"}))
    with pytest.raises(ValueError, match=r"config\.json: bertjax_null_threshold is 'low'"):
        read_huggingface(folder)


def test_words_keep_combining_marks(tmp_path: Path) -> None:
    model = loaded(tmp_path, "tokens")
    for text, words in (
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902\u0964",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092e\u0947\u0902", "\u0964"],
        ),
        ("cafe\u0301s, 1877", ["cafe\u0301s", ",", "1877"]),
        ("\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 a_b", ["\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48", "a_b"]),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"]),
        (" \u0301 !!x", ["\u0301", "!", "!", "x"]),
    ):
        assert [one.word for one in model.predict(text)] == words
    plain = Path(__file__).read_text(encoding="utf-8")[:3000]
    assert [one.word for one in model.predict(plain)] == re.findall(r"\w+|[^\w\s]", plain)


def test_text_without_words_has_empty_prediction(tmp_path: Path) -> None:
    for kind in ("tokens", "token_regression"):
        model = loaded(tmp_path / kind, kind)
        assert [[word[0] for word in words] for words in model.predict(["", "the", " "])] == [[], ["the"], []]
        assert (model.predict(""), model.predict([[]])) == ([], [[]])
    reader = loaded(tmp_path / "span", "span")
    questions = [("the museum?", " "), ("the museum?", TEXT), ("", "\u200b")]
    for threshold in (None, 0.0):
        answers = reader.predict(questions, threshold)
        assert [one.text for one in answers] == ["", reader.predict(questions[1], threshold).text, ""]


def test_long_text_is_truncated_with_warning(tmp_path: Path) -> None:
    model = loaded(tmp_path, "sequence")
    with pytest.warns(UserWarning, match="1 of 2 examples were cut to 64 tokens: 88 of"):
        model.predict([LONG, "the"])


@pytest.mark.parametrize(
    ("kind", "inputs", "message"),
    [
        ("sequence", [("a", "b", "c")], r"input 1: \('a', 'b', 'c'\) is neither a text nor a pair of texts"),
        ("sequence", 3, "inputs=3: give a text, a tuple, or a list of them"),
        ("sequence", [1, 2], "input 1: 1 is neither a text nor a pair of texts"),
        ("tokens", [["a", 3]], r"input 1: \['a', 3\] is neither a text nor a list of words"),
        ("sequence", ["a", ("a", "b")], "input 2: 2 texts, but every example must have 1"),
        ("relevance", "a", "input 1: 'a' is not a query and a passage; give a pair of texts"),
        (
            "choice",
            [("a", ["b", "c"]), ("a", ["b"])],
            r"input 2: \('a', \['b'\]\) is not a start and a list of two or more ends",
        ),
    ],
)
def test_predict_rejects_malformed_inputs(tmp_path: Path, kind: str, inputs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path, kind).predict(inputs)


def test_predict_rejects_models_without_task_head(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a pretrained model without a task head; fine-tune it first"):
        LoadedModel(trained_model(tmp_path / "run")).predict("a")
    with pytest.raises(ValueError, match="the model gives vectors; use encode"):
        loaded(tmp_path, "vector").predict("a")
