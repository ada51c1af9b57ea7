"""Probes of a run at its evaluations: minimal pairs, attention patterns and linear classifiers of tags.

They read the weights and change nothing: batches, steps and weights equal a run's without probes. They run only if
they are expected to take at most `probe.share` of the elapsed time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bertjax.config import Config
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import read_tagged, tag_layout, tags_in
from bertjax.input.randomness import derive_key, permute
from bertjax.input.training_data import TrainingData
from bertjax.interpret.attention_maps import exact_graphdef
from bertjax.interpret.attention_patterns import PATTERNS, WordTable, measure_patterns
from bertjax.interpret.fill_mask import mlm_model
from bertjax.interpret.linear_probe import TagProbe
from bertjax.interpret.pseudo_likelihood import PairSet, judge_pairs, read_pair_sets, require_scored
from bertjax.interpret.sample_text import SampleText
from bertjax.model.network import Params
from bertjax.parallel.mesh import without_mesh
from bertjax.run.callbacks import Callback, Figures
from bertjax.run.job import Job
from bertjax.run.run_directory import TrainedModel
from bertjax.runtime.compilation import compile_seconds
from bertjax.runtime.processes import Processes
from bertjax.storage.progress import no_progress
from bertjax.storage.remote import to_path
from bertjax.training.stages import Stage, as_of_stage

_SENTENCES = 5  # tagged sentences for each pair of the sample

Instrument = Callable[[TrainedModel], dict[str, float]]


@dataclass(frozen=True)
class ProbeFiles:
    """The content of the files that the config's probes name."""

    pairs: tuple[PairSet, ...]
    tagged: tuple[TaggedSentence, ...]


def read_probe_files(config: Config) -> ProbeFiles:
    """Read the files of a config's probes. Raises ValueError naming file and line."""
    pairs = read_pair_sets([Path(path) for path in config.probe.pairs])
    tagged: list[TaggedSentence] = []
    if config.probe.tags:
        path = Path(config.probe.tags)
        if not path.is_file():
            raise ValueError(f"probe.tags={config.probe.tags!r}: no such file; name a file of tagged words (.conllu)")
        tagged = read_tagged(path, tag_layout(path))[: _SENTENCES * config.probe.sample]
        tags_in(tagged)
    # As many pairs of each set, always the same ones.
    most = max(1, config.probe.sample // max(len(pairs), 1))
    sampled = []
    for pair_set in pairs:
        drawn = permute(np.arange(min(most, len(pair_set.pairs))), len(pair_set.pairs), derive_key(0, "probed pairs"))
        sampled.append(replace(pair_set, pairs=tuple(pair_set.pairs[n] for n in sorted(drawn.tolist()))))
    return ProbeFiles(tuple(sampled), tuple(tagged))


def make_probes(job: Job, content: TrainingData, files: ProbeFiles, processes: Processes) -> tuple[Probes, ...]:
    """Make the probes of a config, as a hook of its run, if it names any.

    Raises ValueError for a model to which they do not apply, and for texts that are too long for it.
    """
    if not job.config.probe.time_share:
        return ()
    # Causal stages, with which a run may begin, cannot fill masks.
    checked = next((stage for stage in job.stages if not stage.model.causal), job.stages[0])
    instruments = _instruments(_model(job, checked, None), content, files)
    return (Probes(job, instruments, processes),)


def _model(job: Job, stage: Stage, params: Params | None) -> TrainedModel:
    """The network of a stage as a `TrainedModel`; without weights it has their shapes."""
    config = as_of_stage(job.config, stage.stop)
    graphdef, shapes, _ = abstract_network(config.model)
    params = shapes if params is None else params
    return TrainedModel(to_path(config.directory), stage.stop, config, job.tokenizer, graphdef, params)


def _instruments(model: TrainedModel, content: TrainingData, files: ProbeFiles) -> list[Instrument]:
    """A function for each probe of the config. Raises ValueError as `make_probes` does."""
    probe, instruments = model.config.probe, []
    if probe.pairs:
        require_scored(mlm_model(model), [text for pair_set in files.pairs for pair in pair_set.pairs for text in pair])

        def judge(model: TrainedModel) -> dict[str, float]:
            if model.config.model.causal:
                return {}
            judged = judge_pairs(model, files.pairs)
            figures = {
                "probe/pairs_accuracy": sum(judgement.right for judgement in judged)
                / sum(judgement.pairs for judgement in judged)
            }
            return figures | (
                {f"probe/pairs/{judgement.name}": judgement.accuracy for judgement in judged} if len(judged) > 1 else {}
            )

        instruments.append(judge)
    if probe.attention:
        exact_graphdef(model)
        template = get_family(model.config.model.family).template
        text = SampleText("held-out text", content.held_out_text(), model.tokenizer, template)
        rows = text.pairs(probe.sample // 2, model.max_length)
        if not rows:
            raise ValueError(
                "probe.attention=True: the held-out text has no two sentences in sequence that are short enough for a "
                "row; hold out more (data.held_out), or leave it out"
            )

        def measure(model: TrainedModel) -> dict[str, float]:
            fills = "mlm_head" in model.params and not model.config.model.causal
            sums = measure_patterns(model, rows, WordTable(model), fills, no_progress)
            clearest = [float(strengths.max()) for strengths in sums.strengths]
            names = (f"probe/attention_{pattern.name.replace(' ', '_')}" for pattern in PATTERNS)
            return {name: value for name, value in zip(names, clearest, strict=True) if not math.isnan(value)}

        instruments.append(measure)
    if probe.tags:
        exact_graphdef(model)
        tags = TagProbe.of(files.tagged, model.tokenizer, model.max_length)

        def classify(model: TrainedModel) -> dict[str, float]:
            accuracies = tags.accuracies(model).tolist()
            layers = {f"probe/tags_layer_{number}": value for number, value in enumerate(accuracies)}
            return layers | {"probe/tags_accuracy": max(accuracies), "probe/tags_by_form": tags.baseline}

        instruments.append(classify)
    return instruments


class Probes(Callback):
    """Runs the probes after every evaluation, if their share of time allows it."""

    every_process = True

    def __init__(
        self, job: Job, instruments: list[Instrument], processes: Processes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._instruments, self._processes, self._clock = job, instruments, processes, clock
        self._share, self._began = job.config.probe.share, clock()
        self._spent = 0.0  # seconds of all probes
        self._next = 0.0  # expected seconds of the next probes, from the second time on
        self.taken = self.passed_over = 0

    def evaluation_figures(self, seconds: float) -> Figures:
        """The figures of the probes, or none if they would take too long; equal in every process.

        At the first evaluation, each instrument is expected to take as long as that, because it is compiled too;
        later all of them as long as the time before without compilation.
        """
        return self.take(self.run.stage, self.run.state.params, seconds)

    def take(self, stage: Stage, params: Params, evaluated: float) -> dict[str, float]:
        """The figures for weights of a stage whose evaluation took `evaluated` seconds."""
        with self._processes.taking_time():
            due = self._processes.broadcast("whether to probe", str(int(self._is_due(evaluated)))) == "1"
            if not due:
                self.passed_over += 1
                return {}
            began = self._clock()
            whole = gather(params)
            figures: dict[str, float] = {}
            with compile_seconds() as compiling:
                if self._processes.first:
                    with without_mesh():
                        model = _model(self._job, stage, whole)
                        figures = {
                            name: value for instrument in self._instruments for name, value in instrument(model).items()
                        }
            figures = json.loads(self._processes.broadcast("figures of probes", json.dumps(figures)))
        self.taken += 1
        seconds = self._clock() - began
        self._next = max(seconds - compiling(), seconds / 10)
        self._spent += seconds
        return figures | {"probe/seconds": seconds, "probe/share": self.share}

    @property
    def share(self) -> float:
        """The share of the elapsed time that probes have taken."""
        return self._spent / max(self._clock() - self._began, 1e-9)

    def _is_due(self, evaluated: float) -> bool:
        expected = self._next if self.taken else evaluated * len(self._instruments)
        return self._spent + expected <= self._share * (self._clock() + expected - self._began)

    def __str__(self) -> str:
        """Summarise the probes after the run."""
        much = f"{self._spent:.1f} s, {self.share:.1%} of the time (probe.share={self._share:g})"
        more = f"; skipped at {self.passed_over} evaluation(s), to stay below that" if self.passed_over else ""
        return f"probes: taken at {self.taken} evaluation(s), in {much}{more}"


def gather(params: Params) -> Params:
    """Gather the whole weights on this process's first device; every process takes part."""
    here = jax.local_devices()[0]

    def whole(leaf: Any) -> jax.Array:
        if leaf.is_fully_addressable and leaf.sharding.device_set == {here}:
            return leaf
        is_local = leaf.is_fully_addressable or leaf.is_fully_replicated
        on_host = np.asarray(leaf) if is_local else multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_put(jnp.asarray(on_host), here)

    return jax.tree.map(whole, params)
