"""Log to MLflow. `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME` and its other variables apply as usual."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.run.loggers.logger import LoggedRun, Logger, logged_id, remember_id
from bertjax.run.telemetry import Ending

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.utils.async_logging.run_operations import RunOperations

_NAME = "mlflow"
_EXPERIMENT = "bertjax"
_PARAMS_PER_REQUEST = 100  # limit of a tracking server
_PARAM_CHARACTERS = 6000  # likewise
_STATES: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowWriter:
    """Writes metrics to an MLflow run. The client sends them in a thread; a failing server does not stop the run."""

    def __init__(self, client: MlflowClient, identity: str) -> None:
        self._client, self._identity = client, identity
        self._sent: list[RunOperations] = []
        self._warned = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the metrics of a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [Metric(name, float(value), now, int(step)) for name, value in metrics.items()]
        sent = self._client.log_batch(self._identity, metrics=batch, synchronous=False)
        assert sent is not None, "asynchronous"
        self._sent.append(sent)

    def flush(self) -> None:
        """Wait until everything queued is sent; a failure is reported once."""
        from mlflow.exceptions import MlflowException

        sent, self._sent = self._sent, []
        for operations in sent:
            try:
                operations.wait()
            except MlflowException as error:
                self._warn(error)

    def close(self, ending: Ending) -> None:
        """Send the rest, and the final state of the run."""
        from mlflow.exceptions import MlflowException

        self.flush()
        try:
            self._client.set_terminated(self._identity, _STATES[ending])
        except MlflowException as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = " ".join(str(error).split())
            print(f"Warning: some figures are missing in MLflow (metrics.jsonl has all): {reason}", file=sys.stderr)


def open_writer(run: LoggedRun, folder: Path, resume_step: int) -> MlflowWriter:
    """Start a run in MLflow with the config as its params, or continue the one that this run started before.

    Raises ValueError naming the tracking server if it cannot be reached or does not have that run.
    """
    import mlflow
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    origin = f"log: 'mlflow' at MLFLOW_TRACKING_URI={mlflow.get_tracking_uri().rpartition('@')[2]}"
    try:
        if identity := logged_id(folder, _NAME):
            client.update_run(identity, status="RUNNING")
        else:
            identity = _create_run(client, run)
            remember_id(folder, _NAME, identity)
    except MlflowException as error:
        raise ValueError(
            f"{origin}: {' '.join(str(error).split())}; set the URI of the server that has the run, or leave --log "
            "mlflow out"
        ) from None
    return MlflowWriter(client, identity)


def _experiment(client: MlflowClient) -> str:
    """The id of the experiment that the environment names by name or id; `bertjax` by default."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
    if not name and (identity := os.environ.get("MLFLOW_EXPERIMENT_ID", "")):
        return identity
    match = client.get_experiment_by_name(name or _EXPERIMENT)
    return match.experiment_id if match is not None else client.create_experiment(name or _EXPERIMENT)


def _create_run(client: MlflowClient, run: LoggedRun) -> str:
    """Create a run with our name and config; returns its id."""
    from mlflow.entities import Param

    experiment = _experiment(client)
    identity = client.create_run(experiment, run_name=run.name).info.run_id
    params = [Param(key, str(value)[:_PARAM_CHARACTERS]) for key, value in run.config.items()]
    for first in range(0, len(params), _PARAMS_PER_REQUEST):
        client.log_batch(identity, params=params[first : first + _PARAMS_PER_REQUEST])
    return identity


LOGGER = Logger("mlflow", open_writer, extra="mlflow")
