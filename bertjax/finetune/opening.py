"""From a task's name to its data: read by its reader, encoded by what its kind is."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.chosen import Examples, read_examples
from bertjax.finetune.content import TaskContent
from bertjax.finetune.own_tasks import task_for
from bertjax.finetune.question_content import open_questions
from bertjax.finetune.tag_content import open_tags
from bertjax.finetune.text_content import open_texts
from bertjax.tokenization.tokenizer import Tokenizer

_OPENERS = {"span": open_questions, "tokens": open_tags}
# Keys of a task that decide what is made of a network's outputs.
_OF_ANSWERS = ("name", "doc_stride", "max_query", "max_answer", "n_best", "null_threshold")


def open_content(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskContent:
    """All data of the config's task. Raises ValueError naming file and line of whatever is wrong in them."""
    task = task_for(config.task)
    examples = read_examples(task, config)
    content = _OPENERS.get(task.kind, open_texts)(task, config, tokenizer, examples)
    return replace(content, measured_by=_measured_by(config.task, examples))


def _measured_by(task: TaskConfig, examples: Examples) -> str:
    """SHA-256 (hex) over the development and test sets, wherever they lie, and the settings of answers."""
    found = hashlib.sha256(repr([getattr(task, key) for key in _OF_ANSWERS]).encode())
    for name, some in (*examples.dev.items(), *examples.test.items()):
        found.update(f"\n{name}: {len(some)}\n".encode())
        for example in some:
            found.update(repr(replace(example, where="")).encode())
    return found.hexdigest()
