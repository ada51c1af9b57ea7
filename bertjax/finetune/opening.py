"""From a task's name to its data: read by its reader, encoded by what its kind is."""

from __future__ import annotations

from bertjax.config import FinetuneConfig
from bertjax.finetune.chosen import read_examples
from bertjax.finetune.content import TaskContent
from bertjax.finetune.own_tasks import task_for
from bertjax.finetune.question_content import open_questions
from bertjax.finetune.tag_content import open_tags
from bertjax.finetune.text_content import open_texts
from bertjax.tokenization.tokenizer import Tokenizer

_OPENERS = {"span": open_questions, "tokens": open_tags}


def open_content(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskContent:
    """All data of the config's task. Raises ValueError naming file and line of whatever is wrong in them."""
    task = task_for(config.task)
    examples = read_examples(task, config)
    return _OPENERS.get(task.kind, open_texts)(task, config, tokenizer, examples)
