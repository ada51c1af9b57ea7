"""Summarise a task's runs: means and standard deviations over seeds, the best run, and published figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertjax.finetune.encoding.answers import NO_SHARES
from bertjax.finetune.kinds.kind import Kind, baseline_name
from bertjax.finetune.run import Result
from bertjax.report.page import Table

_CONSTANT = "constant answer"  # the row of baselines: one answer for every example


@dataclass(frozen=True)
class TaskSummary:
    """The results of a task by setting, one per seed. The first of `metrics` decides which run is best."""

    task: str
    metrics: tuple[str, ...]
    results: Mapping[str, Sequence[Result]]
    published: Mapping[str, float]
    kind: Kind | None = None
    example: tuple[str, ...] = ()  # the texts of a development example
    labels: tuple[str, ...] = ()
    averaged: bool = False  # the sets are one set in several languages

    @property
    def best(self) -> Result:
        """The best run on the (first) development set, the earliest if several tie. NaN ranks last."""
        runs = [run for runs in self.results.values() for run in runs]
        return max(runs, key=lambda run: _rank(run.figures[self._first]))

    @property
    def best_setting(self) -> str:
        """The setting with the highest mean."""
        return max(self.results, key=lambda name: _rank(statistics.fmean(self._values(name, self._first))))

    @property
    def _first(self) -> str:
        return f"eval/{self.metrics[0]}"

    def _values(self, setting: str, figure: str) -> list[float]:
        return [result.figures[figure] for result in self.results[setting]]

    def _figures(self) -> list[str]:
        """Names of the figures that are shares, beginning with the first set."""
        names = next(iter(self.results.values()))[0].figures
        shares = [name for name in names if not name.endswith(("_loss", *NO_SHARES))]
        return [name for name in shares if not (self.averaged and _language(name))]

    def cells(self, setting: str) -> list[str]:
        """Format a setting's figures: the mean, with the standard deviation if there are several seeds."""
        return [_spread(self._values(setting, figure)) for figure in self._figures()]

    def table(self) -> Table:
        """Make a table with a row per setting and a column per figure."""
        figures = self._figures()
        titles = [name.removeprefix("eval/").replace("/", " ") for name in figures]
        columns = ["setting", "seeds", *titles, "minutes a run"]
        rows = []
        for name, results in self.results.items():
            minutes = statistics.fmean(result.seconds for result in results) / 60
            rows.append((name or "default", str(len(results)), *self.cells(name), f"{minutes:.1f}"))
        note = "development set unless named, in % (mean ± s.d. over seeds)"
        baselines = [self.baseline(name) for name in figures]
        if any(value is not None for value in baselines):
            rows.append((_CONSTANT, "", *map(_baseline_cell, baselines), ""))
        else:
            note += "; no baseline: these figures are undefined for one answer to every example"
        return Table(self.task, note, tuple(columns), tuple(rows))

    def baseline(self, figure: str) -> float | None:
        """The figure of one answer for every example; None if it is undefined."""
        return next(iter(self.results.values()))[0].baselines.get(baseline_name(figure))

    def by_language(self) -> list[Table]:
        """Make a table of the best setting with a row per language, if the sets have languages."""
        if not self.averaged:
            return []
        setting = self.best_setting
        cells: dict[str, dict[str, str]] = {}
        for name in next(iter(self.results.values()))[0].figures:
            if (language := _language(name)) and name.endswith(f"/{self.metrics[0]}"):
                split = "test" if name.startswith("test_") else "dev"
                cells.setdefault(language, {})[split] = _spread(self._values(setting, name))
        rows = tuple((language, one.get("dev", ""), one.get("test", "")) for language, one in sorted(cells.items()))
        note = f"{self.metrics[0]} in %" + (f", setting {setting}" if setting else "")
        return [Table(f"{self.task} by language", note, ("language", "dev", "test"), rows)] if rows else []

    def published_line(self) -> str:
        """Format the published figures as a line; "" if there are none."""
        return ";  ".join(f"{system} {figure:g}" for system, figure in self.published.items())


def overall(summaries: Sequence[TaskSummary], systems: Sequence[str]) -> Table:
    """Make a table of tasks: the first metric under the best setting, and the published figures of `systems`.

    The last row averages the tasks for which all systems have figures, like GLUE's score. The average of constant
    answers is "none" if one of those tasks has no such figure.
    """
    rows = []
    together: list[tuple[float, ...]] = []
    constants: list[float | None] = []
    for summary in summaries:
        ours = summary.cells(summary.best_setting)[0]
        published = [f"{summary.published[system]:g}" if system in summary.published else "" for system in systems]
        constant = summary.baseline(f"eval/{summary.metrics[0]}")
        rows.append((summary.task, summary.metrics[0], ours, *published, _baseline_cell(constant)))
        if all(published):
            mean = 100 * statistics.fmean(summary._values(summary.best_setting, f"eval/{summary.metrics[0]}"))
            together.append((mean, *(summary.published[system] for system in systems)))
            constants.append(constant)
    if len(together) > 1:
        means = (f"{statistics.fmean(column):.2f}" for column in zip(*together, strict=True))
        defined = [value for value in constants if value is not None]
        constant = statistics.fmean(defined) if len(defined) == len(constants) else None
        rows.append((f"average of {len(together)}", "", *means, _baseline_cell(constant)))
    return Table("GLUE", "development sets, in %", ("task", "metric", "ours", *systems, _CONSTANT), tuple(rows))


def _baseline_cell(value: float | None) -> str:
    return "none" if value is None else f"{value:.2%}".removesuffix("%")


def _spread(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    text = f"{100 * mean:.2f}"
    if len(values) == 1 or math.isnan(mean):  # NaN has no deviation
        return text
    return f"{text} ± {100 * statistics.stdev(values):.2f}"


def _rank(figure: float) -> float:
    """Sort key of a figure; NaN is worse than any number."""
    return -math.inf if math.isnan(figure) else figure


def _language(figure: str) -> str:
    """The language of a figure such as eval/dev_de/accuracy or test_de/accuracy; "" for others."""
    split, _, name = figure.removeprefix("eval/").partition("/")
    return split.partition("_")[2] if name else ""
