"""Trace chosen steps for xprof: the timelines of all devices and of the host."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

import jax

from bertjax.run.callbacks import Callback
from bertjax.storage.files import replace_bytes
from bertjax.storage.remote import AnyPath

DIRECTORY = "profile"  # folder in the run's directory; the argument of `xprof --logdir`

_SESSIONS = "plugins/profile"  # where xprof looks for traces in that folder


def steps_to_profile(profile: str, total: int) -> range:
    """Parse `FIRST:LAST` as the steps from FIRST up to but excluding LAST, counted from 0; none for an empty text.

    Raises ValueError unless 0 <= FIRST < LAST <= `total`, the number of steps of the run.
    """
    if not profile:
        return range(0)
    match = re.fullmatch(r"(\d+):(\d+)", profile)
    steps = range(int(match[1]), int(match[2])) if match else range(0)
    if not steps or steps.stop > total:
        raise ValueError(
            f"profile={profile!r}: write it as FIRST:LAST, as in --profile 10:13 for the steps 10, 11 and 12, with "
            f"0 <= FIRST < LAST <= {total} (training.steps)"
        )
    return steps


class Profile(Callback):
    """Traces `steps` when the loop reaches them.

    A context manager: a trace in progress is written even if a signal or an error ends the loop. All processes write
    the traces of their own devices into one folder.
    """

    def __init__(self, steps: range, directory: AnyPath) -> None:
        self._steps, self._directory = steps, directory
        self._first = self._last = 0  # steps of the current trace
        self._trace: tempfile.TemporaryDirectory | None = None
        self._annotation = contextlib.ExitStack()

    def on_start(self) -> None:
        step = self.run.step
        if step >= self._steps.stop:
            self.run.progress.note(
                f"profile: the run resumes at step {step:,}, after the steps to trace; nothing is traced"
            )

    def before_step(self, step: int) -> None:
        """Wait for all dispatched steps before the first traced step, so that the trace has no others."""
        if step not in self._steps:
            return
        if self._trace is None:
            self.run.settle()
            with self.run.processes.taking_time():
                self._start(step)
        self._last = step
        self._annotation.enter_context(jax.profiler.StepTraceAnnotation("train", step_num=step))

    def after_step(self, step: int) -> None:
        self._annotation.close()
        if self._trace is not None and step == self._steps.stop:
            self.run.settle()
            with self.run.processes.taking_time():
                self._stop()

    def _start(self, number: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an event for every Python call would slow down the traced steps
        options.session_id = "trace"
        self._first = number
        # Traces are written to the local disk first, since the run's directory may be a URL.
        folder = tempfile.TemporaryDirectory(prefix="bertjax-profile-")
        jax.profiler.start_trace(folder.name, profiler_options=options)
        self._trace = folder

    def _stop(self) -> None:
        trace, self._trace = self._trace, None
        assert trace is not None
        jax.profiler.stop_trace()
        target = self._directory / _SESSIONS / f"steps_{self._first}_to_{self._last}"
        target.mkdir(parents=True, exist_ok=True)
        with trace as folder:
            # The file is named after its host, which may have several processes.
            for file in sorted(Path(folder, _SESSIONS, "trace").iterdir()):
                replace_bytes(target / f"process_{jax.process_index()}.{file.name}", file.read_bytes())
        self.run.progress.note(
            f"profile: steps {self._first:,} to {self._last:,} are in {target}: xprof --logdir {self._directory}"
        )

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._annotation.close()
        if self._trace is not None:
            with self.run.processes.taking_time():
                self._stop()
