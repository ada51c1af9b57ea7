"""Log to Weights & Biases. `WANDB_MODE`, `WANDB_PROJECT`, `WANDB_ENTITY` and its other variables apply as usual."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.run.loggers.logger import LoggedRun, Logger, logged_id, remember_id
from bertjax.run.telemetry import Ending

if TYPE_CHECKING:
    import wandb

_NAME = "wandb"
_PROJECT = "bertjax"
_STEP = "step"  # the x-axis of every curve; wandb's own step counts calls and cannot go back
_WITHOUT_ACCOUNT = ("offline", "disabled", "dryrun")  # modes
_EXIT_CODES: dict[Ending, int] = {"finished": 0, "stopped": 0, "failed": 1}


class WandbWriter:
    """Writes metrics to a wandb run. A separate process sends them, and keeps them in a file without a network."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of a step as plain floats."""
        self._run.log({name: float(value) for name, value in metrics.items()} | {_STEP: int(step)})

    def flush(self) -> None:
        """Do nothing: logged metrics have already left this process."""

    def close(self, ending: Ending) -> None:
        """Wait until everything is sent or in the file."""
        self._run.finish(exit_code=_EXIT_CODES[ending])


def require_ready() -> None:
    """Raise ValueError if wandb would later ask for a key or refuse its key."""
    if os.environ.get("WANDB_MODE", "online").lower() in _WITHOUT_ACCOUNT:
        return
    import wandb
    from wandb.errors import Error

    reason = "has no key"
    try:
        if wandb.login(prompt=False):
            return
    except Error as error:
        reason = f"cannot log in: {' '.join(str(error).split())}"
    raise ValueError(
        f"log: 'wandb' (--log wandb) {reason}; run `wandb login` or set WANDB_API_KEY, or set WANDB_MODE=offline and "
        "send the files later with `wandb sync`"
    )


def open_writer(run: LoggedRun, folder: Path, resume_step: int) -> WandbWriter:
    """Start a wandb run, or continue the one that this run started before.

    wandb's own records (arguments, code, console, git) are disabled, because they may contain secrets.
    """
    import wandb

    identity = logged_id(folder, _NAME) or secrets.token_hex(4)
    remember_id(folder, _NAME, identity)
    return WandbWriter(
        wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run.name,
            id=identity,
            resume="allow",
            config=dict(run.config),
            dir=folder,
            reinit="create_new",  # a process may train several runs one after the other
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_meta=True,
            ),
        )
    )


LOGGER = Logger("wandb", open_writer, extra="wandb", require_ready=require_ready)
