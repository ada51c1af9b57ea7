"""The protocol of hooks, which the loop calls between its steps. Built-in features and user callbacks implement it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    from bertjax.model.network import Params
    from bertjax.run.loop import Outcome, Run

Figures = Mapping[str, float]  # by name in the log: train/mlm_loss, perf/tokens_per_second, eval/mlm_loss


class Callback:
    """Base class whose methods do nothing; override the ones you need. They are called in the training thread.

    `self.run` has the `config`, `stage`, `step`, `state` (weights and moments, on the devices) and the last step's
    `metrics` (arrays on the devices by their names in the log without `train/`; reading one makes the host wait).
    `run.stop()` ends training after the step; `run.add_figures({...})` adds to the next line of the log.

    With several processes, only process 0 calls the callbacks, unless `every_process` is set; set it if you call
    `run.stop()` or compute with `run.state`. An exception ends the run like any other error: finished checkpoints
    stay, and the same call resumes from the newest.
    """

    run: Run
    every_process = False

    def on_start(self) -> None:
        """Called once the state exists, before the first step is compiled."""

    def on_stage(self) -> None:
        """Called before the first step of `run.stage`, or before the first step in it after a resume."""

    def before_step(self, step: int) -> None:
        """Called when `step` steps have been taken and the next one is about to begin."""

    def after_step(self, step: int) -> None:
        """Called when step number `step` has been dispatched; the devices may still be computing it. Be quick."""

    def on_log(self, step: int, figures: Figures) -> None:
        """Called with the means over the steps that finished since the last call.

        Every `training.log_every` steps, after the first step of a stage, before an evaluation or a save, and at the
        end of training.
        """

    def evaluation_figures(self, seconds: float) -> Figures:
        """Return figures to add to an evaluation, by name in the log; `seconds` is how long it took."""
        return {}

    def on_evaluation(self, step: int, figures: Figures) -> None:
        """Called with held-out figures and baselines every `training.eval_every` steps and at the end of a stage.

        Not called when a resumed run repeats an evaluation that is already in its log.
        """

    def before_save(self, step: int) -> None:
        """Called before the state after `step` steps is saved."""

    def on_save(self, step: int, directory: str) -> None:
        """Called when the checkpoint of `step` is complete; it is written during training, so `step` is in the past."""

    def after_training(self) -> None:
        """Called after the last step or a stop signal, before the final figures and files are written."""

    def on_finish(self, outcome: Outcome) -> None:
        """Called once everything is saved (`outcome.exit_code` is not 0 after a signal)."""

    def gradient_metrics(self, gradient: Params) -> dict[str, jax.Array]:
        """Return scalars of the unclipped gradient over the global batch; their means are logged as `gradient/NAME`.

        Traced into the jitted step, in every process, so they are computed in every step; `training.log_every` sets how
        often the log gets the means since its last line. Callbacks passed in Python and hooks of plug-ins can do this;
        those in `bertjax/run/hooks/` cannot, because they are made after the step is built.

        `gradient` has the same nested dicts as the parameters. Dim 0 of the arrays in `gradient["encoder"]["layers"]`
        is the layer. Families whose layer 0 has different arrays (ModernBERT) keep it in
        `gradient["encoder"]["first_layer"]`, and the stack begins with layer 1. If layers share parameters (ALBERT),
        dim 0 is the group. `layer_norms` handles all three.
        """
        return {}


def layer_norms(gradient: Params) -> dict[str, jax.Array]:
    """Return the norm of each layer's gradient as float32 scalars `layer_0`, `layer_1`, ...

    Layers that share parameters have one gradient, so there is one norm per group.
    """
    import jax
    import jax.numpy as jnp

    encoder = gradient["encoder"]
    stacks = [jax.tree.map(lambda x: x[None], encoder["first_layer"])] if "first_layer" in encoder else []
    norms: list[jax.Array] = []
    for stack in [*stacks, encoder["layers"]]:
        leaves = [x.astype(jnp.float32).reshape(len(x), -1) for x in jax.tree.leaves(stack)]
        norms += [*jnp.sqrt(sum(jnp.sum(jnp.square(x), axis=1) for x in leaves))]
    return {f"layer_{number}": norm for number, norm in enumerate(norms)}


def merge_gradient_metrics(callbacks: Sequence[Callback]) -> Callable[[Params], dict[str, jax.Array]] | None:
    """Merge the callbacks' `gradient_metrics` into one function with log names; None if no callback has any.

    The function raises ValueError for a metric that is not a scalar, and for a name that two callbacks use.
    """
    measuring = [callback for callback in callbacks if type(callback).gradient_metrics is not Callback.gradient_metrics]
    if not measuring:
        return None

    def metrics(gradient: Params) -> dict[str, jax.Array]:
        merged: dict[str, jax.Array] = {}
        for callback in measuring:
            for name, value in callback.gradient_metrics(gradient).items():
                source = f"{type(callback).__name__}.gradient_metrics: {name!r}"
                if value.shape:
                    raise ValueError(f"{source} has the shape {list(value.shape)}; return one scalar for each name")
                if f"gradient/{name}" in merged:
                    raise ValueError(f"{source} is also a metric of another callback; rename one of them")
                merged[f"gradient/{name}"] = value
        return merged

    return metrics
