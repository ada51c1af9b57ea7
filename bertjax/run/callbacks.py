"""The protocol of hooks: what a run calls between its steps. Every feature of the loop is one, and so is a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    from bertjax.model.network import Params
    from bertjax.run.loop import Outcome, Run

Figures = Mapping[str, float]  # by name in the log: train/mlm_loss, perf/tokens_per_second, eval/mlm_loss


class Callback:
    """Override what you need; every method does nothing. Called in the process and thread that trains.

    `self.run` is the run: its `config`, `stage`, `step`, `state` (weights and moments, on the devices) and the last
    step's `metrics` (arrays on the devices: reading one makes the host wait). `run.stop()` ends training after the
    step; `run.add_figures({...})` adds to the next line of the log.

    With several processes, only process 0 calls the callbacks, unless `every_process` is set; those that call
    `run.stop()` or compute with `run.state` need it. An exception ends the run like any other error: checkpoints that
    are written stay, and the same call resumes from the newest.
    """

    run: Run
    every_process = False

    def on_start(self) -> None:
        """The state exists; the first step is not compiled yet."""

    def on_stage(self) -> None:
        """The next step is the first of `run.stage`, or the first one in it since the run resumed."""

    def before_step(self, step: int) -> None:
        """`step` steps were taken, and the next one is due."""

    def after_step(self, step: int) -> None:
        """Step number `step` was handed to the devices, which may still compute it. Be quick."""

    def on_log(self, step: int, figures: Figures) -> None:
        """A line of the log is due: means over the steps that finished since the last call.

        Due every `training.log_every` steps, after the first step of a stage, before an evaluation or a save, and at
        the end of training.
        """

    def evaluation_figures(self, seconds: float) -> Figures:
        """More figures of an evaluation, which took so many seconds, by name in the log."""
        return {}

    def on_evaluation(self, step: int, figures: Figures) -> None:
        """Every `training.eval_every` steps and at the end of a stage: the held-out figures and the baselines.

        Not again where a resumed run repeats an evaluation that its log has.
        """

    def before_save(self, step: int) -> None:
        """The state after `step` steps is about to be saved."""

    def on_save(self, step: int, directory: str) -> None:
        """The checkpoint of a step is complete. Files are written during training, so `step` is a past one."""

    def after_training(self) -> None:
        """The last step was taken, or a signal ended the run early; final figures and files are not made yet."""

    def on_finish(self, outcome: Outcome) -> None:
        """Everything is saved (`outcome.exit_code` is not 0 after a signal)."""

    def gradient_metrics(self, gradient: Params) -> dict[str, jax.Array]:
        """Scalars of the gradient, unclipped and over the global batch, logged as `gradient/NAME`.

        Computed inside the jitted step, in every process. Only callbacks that are given to `bertjax.pretrain` or
        `bertjax.finetune` are asked, not the hooks in `bertjax/run/hooks/`: those are made after the step is built.

        `gradient` has the same nested dicts as the parameters. The arrays in `gradient["encoder"]["layers"]` have the
        layer as dim 0. Families whose layer 0 has different arrays (ModernBERT) keep it in
        `gradient["encoder"]["first_layer"]`, and the stack begins with layer 1. Where layers share parameters
        (ALBERT), dim 0 is the group. `layer_norms` handles all three.
        """
        return {}


def layer_norms(gradient: Params) -> dict[str, jax.Array]:
    """The norm of each layer's gradient in layer order, as `layer_0`, `layer_1`, ...: float32 scalars.

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
    """The `gradient_metrics` of callbacks that have them, as one function with the names of the log; None without."""
    measuring = [callback for callback in callbacks if type(callback).gradient_metrics is not Callback.gradient_metrics]
    if not measuring:
        return None

    def metrics(gradient: Params) -> dict[str, jax.Array]:
        return {
            f"gradient/{name}": x for callback in measuring for name, x in callback.gradient_metrics(gradient).items()
        }

    return metrics
