"""Registry of loggers besides `metrics.jsonl`; each imports its package when it opens."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import partial

from bertjax.config import Config
from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.run.loggers import mlflow, wandb
from bertjax.run.loggers.logger import Logger, logged_run
from bertjax.run.telemetry import OpenWriter, open_tensorboard

_ALL = {
    "tensorboard": Logger("tensorboardX", lambda run, folder, resume_step: open_tensorboard(folder, resume_step)),
    "wandb": wandb.LOGGER,
    "mlflow": mlflow.LOGGER,
}
LOGGERS = Registry("loggers", _ALL, Logger)


def require_loggers(names: Iterable[str]) -> None:
    """Raise ValueError, naming the remedy, for a logger that does not exist, is not installed, or cannot log."""
    for name in names:
        if (logger := LOGGERS.get(name)) is None:
            hint = suggestion(name, LOGGERS, f"choose from {', '.join(LOGGERS)}, or name its plug-in: --plugin FILE")
            raise ValueError(f"log: no logger {name!r} (--log {name}); {hint}")
        if logger.package and importlib.util.find_spec(logger.package.partition(".")[0]) is None:
            remedy = f"pip install 'bertjax[{logger.extra}]'" if logger.extra else "install it"
            raise ValueError(
                f"log: {name!r} (--log {name}) needs the package {logger.package}, which is not installed; {remedy}, "
                "or leave it out"
            )
        logger.require_ready()


def openers(config: Config) -> tuple[OpenWriter, ...]:
    """Functions that open the writers named in `config.log`, each once."""
    run = logged_run(config)
    return tuple(partial(LOGGERS[name].open, run) for name in dict.fromkeys(config.log))
