"""End the run after too many consecutive updates that were not finite."""

from __future__ import annotations

from bertjax.run.callbacks import Callback, Figures


class NanGuard(Callback):
    """Warns of skipped updates, and raises RuntimeError after `training.max_skipped_updates` in a row."""

    def on_log(self, step: int, figures: Figures) -> None:
        skipped, limit = int(figures["train/skipped_in_a_row"]), self.run.config.training.max_skipped_updates
        if skipped >= limit:
            raise RuntimeError(
                f"step {step}: the last {skipped} updates had a gradient that is not finite and were skipped "
                f"(training.max_skipped_updates={limit}); they did not change the weights. "
                "Lower optimizer.learning_rate, lengthen optimizer.warmup_steps, or set execution.dtype to float32"
            )
        if skipped:
            self.run.progress.note(
                f"Warning: step {step:,}: the last {skipped} update(s) had a gradient that is not finite and were "
                f"skipped; after {limit} in a row the run ends (training.max_skipped_updates)"
            )
