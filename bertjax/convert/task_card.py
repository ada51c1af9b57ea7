"""What the model card of a fine-tuned model says of its task: what it does, how to use it, what it reached."""

from __future__ import annotations

from collections.abc import Mapping

from bertjax.config import FinetuneConfig
from bertjax.convert.huggingface.names import architecture
from bertjax.training.run_directory import TrainedModel

# The Hub's names of tasks, by kind.
PIPELINES = {
    "sequence": "text-classification",
    "regression": "text-classification",
    "relevance": "text-ranking",
    "choice": "multiple-choice",
    "tokens": "token-classification",
    "span": "question-answering",
    "vector": "sentence-similarity",
}
_DOES = {
    "sequence": "tells classes of texts or pairs apart",
    "regression": "gives a text or a pair a number",
    "relevance": "tells how likely a passage answers a query",
    "choice": "chooses one of several continuations",
    "tokens": "gives every word a tag",
    "span": "finds the answer to a question in a text",
    "vector": "gives a text a vector, the mean of its tokens', near to those of texts of like meaning",
}
_SHOWN = 50  # labels

_CLASSIFIES = """\
from transformers import pipeline

classify = pipeline("text-classification", "path/to/this/folder")
classify({"text": "a text", "text_pair": "and the second one, if it takes pairs"})"""
_TAGS = """\
from transformers import pipeline

tag = pipeline("token-classification", "path/to/this/folder", aggregation_strategy="first")
tag("A text of several words.")  # a word has the tag of its first piece"""
_RANKS = """\
from sentence_transformers import CrossEncoder

CrossEncoder("path/to/this/folder").predict([("a query", "a passage"), ("a query", "another passage")])"""
_ANSWERS = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForQuestionAnswering.from_pretrained("path/to/this/folder")
inputs = tokenizer("A question?", "The text that answers it.", return_tensors="pt")
output = model(**inputs)
first, last = output.start_logits.argmax(), output.end_logits.argmax()
tokenizer.decode(inputs["input_ids"][0, first : last + 1])"""
_CHOOSES = """\
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForMultipleChoice.from_pretrained("path/to/this/folder")
start, ends = "She opened the door", ["and went in.", "of the."]
inputs = tokenizer([start] * len(ends), ends, padding=True, return_tensors="pt")
model(**{name: rows[None] for name, rows in inputs.items()}).logits.argmax()"""
_EMBEDS = """\
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
inputs = tokenizer(["a text", "another one"], padding=True, return_tensors="pt")
hidden = AutoModel.from_pretrained("path/to/this/folder")(**inputs).last_hidden_state
real = inputs["attention_mask"][..., None]
vectors = (hidden * real).sum(1) / real.sum(1)"""
_USES = {
    "sequence": _CLASSIFIES,
    "regression": _CLASSIFIES,
    "relevance": _RANKS,
    "choice": _CHOOSES,
    "tokens": _TAGS,
    "span": _ANSWERS,
    "vector": _EMBEDS,
}


def task_about(model: TrainedModel) -> str:
    """What the model does, and its labels, in words that go on "A BERT of ..."."""
    name = model.config.task.name if isinstance(model.config, FinetuneConfig) else ""
    labels = model.labels if model.config.model.num_labels else ()
    shown = ", ".join(f"`{label}`" for label in labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")
    return f"which {_DOES[model.kind]} (task `{name}`" + (f"; labels {shown})" if labels else ")")


def task_use(model: TrainedModel) -> str:
    """How to use the folder with the libraries that load it."""
    return f"```python\n{_USES[model.kind]}\n```\n\nIt is a `{architecture(model.config.model)}` of transformers."


def task_figures(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    """(measure, figure) of everything that was measured on the development sets, of what was logged at a step."""
    return [
        (f"`{name.removeprefix('eval/')}`", f"{value:.4f}")
        for name, value in sorted(figures.items())
        if name.startswith("eval/")
    ]
