"""BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load.

`import bertjax` takes no time: jax and all else is imported by the function that needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import would delay the command line's first answer to Ctrl-C
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from bertjax.config import Config
    from bertjax.config.plugins import register
    from bertjax.loaded import LoadedModel
    from bertjax.pipeline.finetuning import FinetuneResult
    from bertjax.pipeline.preparation import PrepareResult
    from bertjax.run.callbacks import Callback
    from bertjax.run.pretrain import PretrainResult

__version__ = "0.2.0.dev0"
__all__ = ["Callback", "Config", "finetune", "load", "prepare", "pretrain", "recipe", "register"]
_ELSEWHERE = {  # imported on first access
    "Callback": "bertjax.run.callbacks",
    "Config": "bertjax.config",
    "register": "bertjax.config.plugins",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)


def recipe(name: str | Path, keys: Mapping[str, Any] | None = None) -> Config:
    """The config of a recipe, with other values under some keys.

        config = bertjax.recipe("bert_mini", {"data.sources": ["text:books/*.txt"], "training.steps": 2000})

    `name` is that of a recipe of the package or a file. Another number of steps scales what follows from it, as on the
    command line. Raises ValueError for a recipe or a key that there is not, naming the nearest one, and for a value of
    a wrong type.
    """
    from bertjax.cli.recipe import scale_to_steps
    from bertjax.config import load_recipe, with_values

    made, keys = load_recipe(name), keys or {}
    return scale_to_steps(with_values(made, keys), made, keys.keys())


def prepare(config: Config) -> PrepareResult:
    """Split the text of a config's sources into sentences and tokens, once, as a token store: `bertjax prepare`.

    Raises ValueError for text that cannot be read or is too little, and OSError if the disk is full.
    """
    from bertjax.pipeline import preparation

    return preparation.prepare(config)


def pretrain(config: Config, *, callbacks: Sequence[Callback] = ()) -> PretrainResult:
    """Train from text to a reported and exported model, or resume the run that was stopped: `bertjax pretrain`.

        class Losses(bertjax.Callback):
            def on_evaluation(self, step, figures):
                print(step, figures["eval/mlm_loss"])

        result = bertjax.pretrain(config, callbacks=[Losses()])
        model = bertjax.load(result.directory)

    Raises ValueError for what cannot be used, before it trains. Ctrl-C, or the notebook's stop button, saves a
    checkpoint and raises KeyboardInterrupt; the same call then resumes.
    """
    from bertjax.run import pretrain as run_pretrain

    return run_pretrain.pretrain(config, callbacks=callbacks)


def finetune(
    task: str,
    init_from: str | Path,
    *,
    teacher: str | Path = "",
    data: str | Path = "",
    train: str | Path = "",
    dev: str | Path = "",
    test: str | Path = "",
    text: Sequence[str] = (),
    label: str = "",
    labels: Sequence[str] = (),
    learning_rates: Sequence[float] = (),
    batch_sizes: Sequence[int] = (),
    epochs: Sequence[float] = (),
    seeds: int = 1,
    max_length: int | None = None,
    run_dir: str | Path = "",
    keys: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> FinetuneResult:
    """Fine-tune a model for a task under every setting and seed, and export the best run: `bertjax finetune`.

        result = bertjax.finetune("classification", "runs/quickstart", train="reviews.csv")
        bertjax.load(result.directory).predict("I would read it again.")

    `task` is one of GLUE, squad, ner, ..., or classification, regression, choice, pairs, relevance for a table of your
    own. `teacher` is a model that was fine-tuned for the task, to learn from. `data` is the folder of a known task;
    `train`, `dev` and `test` are files; `text` and `label` are columns.
    `keys` are any other keys of the config: `{"optimizer.beta2": 0.98}`. Raises as `pretrain`.
    """
    from bertjax.config import with_values
    from bertjax.pipeline import finetuning

    given = {"data": str(data), "train": str(train), "dev": str(dev), "test": str(test), "label": label}
    given |= {"text": tuple(text), "labels": tuple(labels)}
    tried = {"learning_rate": learning_rates, "batch_size": batch_sizes, "epochs": epochs}
    request = finetuning.TaskRequest(
        name=task,
        init_from=str(init_from),
        teacher=str(teacher),
        task={key: value for key, value in given.items() if value},
        tried={key: values for key, values in tried.items() if values},
        seeds=seeds,
        max_length=max_length,
        run_dir=str(run_dir),
        change=lambda config: with_values(config, keys or {}),
    )
    return finetuning.finetune(request, callbacks=callbacks)


_finetune = finetune  # the package of the same name, once imported, replaces it and calls it


def load(source: str | Path) -> LoadedModel:
    """Open a trained model: a run's directory or one of its checkpoints, `hf:DIR`, `hf:NAME` of the Hub, or `tf1:DIR`.

        model = bertjax.load("runs/quickstart")
        vectors = model.encode(["a text", "another one"])

        model = bertjax.load("runs/sst2")  # fine-tuned
        label, probability, _ = model.predict("a text")

    Raises ValueError naming what is missing or damaged.
    """
    from bertjax.storage.lean_import import quiet_libtpu

    quiet_libtpu()
    from bertjax.loaded import open_model

    return open_model(str(source))
