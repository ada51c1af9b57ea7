"""The result of `bertjax plan` as text and as a page: the plan, advice if it does not fit, a better plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertjax.config import Config
from bertjax.plan.advice import Advice, advise
from bertjax.plan.compiling import Program
from bertjax.plan.estimates import Plan, Say, StagePlan, make_plan
from bertjax.plan.figures import as_text, describe_mesh, describe_stage, gib, headline, label, step_time, tables
from bertjax.plan.suggest import Suggestion, pick_microbatches, suggest
from bertjax.plan.topologies import LOCAL, open_topology
from bertjax.report.bars import Bars, Part, horizontal_bars, parts_bar
from bertjax.report.page import escaped, render_page, table_html
from bertjax.run.progress import long_run_warning
from bertjax.text.trained_vocabulary import vocabulary_size


@dataclass(frozen=True)
class Answer:
    """A plan with advice and suggestion."""

    plan: Plan
    advice: Advice | None  # None if the plan fits
    suggestion: Suggestion | None  # None if none was requested
    vocabulary: str  # the vocabulary's size and its origin, as a line to print

    @property
    def text(self) -> str:
        """Text for the terminal."""
        plan = self.plan
        stages = "\n".join(describe_stage(stage) for stage in plan.stages)
        decided = f"\n{plan.fitted}" if plan.fitted else ""
        parts = [
            f"\n{describe_mesh(plan)}\n{self.vocabulary}\n{stages}{decided}",
            *(as_text(table) for table in tables(plan)),
        ]
        parts += [*_warnings(plan), f"{headline(plan)}."]
        if self.advice is not None:
            parts.append(self.advice.text)
        if self.suggestion is not None:
            parts.append(self.suggestion.text)
        return "\n\n".join(parts)


def answer(
    config: Config,
    topology_name: str,
    slices: int,
    *,
    stage: int | None,
    price: float | None,
    suggests: bool,
    say: Say,
) -> Answer:
    """Make a plan, with advice if it does not fit, and with a better plan if `suggests`.

    Raises ValueError like `open_topology` and `make_plan`.
    """
    entries, vocabulary = vocabulary_size(config.data)
    config = replace(config, model=replace(config.model, vocab_size=entries))
    topology = open_topology(topology_name, slices)
    plan = make_plan(config, topology, stage=stage, price=price, adapt=suggests, say=say)
    suggestion = suggest(plan, say) if suggests else None
    # On a CPU, larger microbatches are not faster, so they are chosen only if those of the recipe do not fit.
    may_gain = topology.capacity is not None and (topology.platform != "cpu" or not plan.fits)
    if topology_name == LOCAL and suggestion is None and may_gain and not plan.fitted:
        suggestion = pick_microbatches(plan, say)
    is_answered = suggestion is not None and suggestion.is_whole
    advice = None if plan.fits or is_answered else advise(plan, say)
    return Answer(plan, advice, suggestion, vocabulary)


def _warnings(plan: Plan) -> list[str]:
    """Warn about weights that every device keeps, and about a run that takes too long."""
    warnings = [f"Warning: {plan.replicated}"] if plan.replicated.is_much else []
    if plan.fits and plan.hours is not None:
        warnings.append(long_run_warning(plan.hours[0], sum(stage.steps for stage in plan.stages)))
    return list(filter(None, warnings))


_OWN_STYLE = """
pre.card { margin: 18px 0 0; padding: 16px 18px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
pre.card { font: 13px/1.6 ui-monospace, Menlo, Consolas, monospace; }
"""
_COLOURS = ("blue", "violet", "green", "orange", "grey")


def render_plan(answer: Answer) -> str:
    """Render the page as HTML; all text is escaped."""
    plan = answer.plan
    title = f"Plan: {plan.config.name} on {plan.topology.name}"
    verdict = "verdict" if plan.fits else "verdict bad"
    texts = [part.text for part in (answer.advice, answer.suggestion) if part is not None]
    memory, *others = tables(plan)
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">{escaped(describe_mesh(plan))}; planned by bertjax, compiled with the real compiler</p>',
        f'<p class="about">{escaped(answer.vocabulary)}</p>',
        *(f'<p class="about">{escaped(describe_stage(stage))}</p>' for stage in plan.stages),
        *([f'<p class="about">{escaped(plan.fitted)}</p>'] if plan.fitted else []),
        f'<p class="{verdict}">{escaped(headline(plan))}.</p>',
        *(f'<pre class="card">{escaped(text)}</pre>' for text in (*_warnings(plan), *texts)),
        "<h2>Memory</h2>",
        _charts([_memory_bar(stage) for stage in plan.stages if isinstance(stage.result, Program)]),
        "<h2>Time of each part of a step</h2>",
        _charts([_time_bars(stage) for stage in plan.stages if stage.bound is not None]),
        table_html(memory),
        *(table_html(table) for table in others),
    ]
    return render_page(title, body, style=_OWN_STYLE)


def _memory_bar(stage: StagePlan) -> str:
    assert isinstance(stage.result, Program)
    m = stage.result.memory
    parts = {
        "parameters": m.parameters,
        "optimizer": m.optimizer,
        "batch": m.batch + m.other,
        "activations": m.results + m.temporaries,
        "program": m.program,
    }
    whole = max(stage.capacity or 0, m.total)
    used = f"{gib(m.total)} of {gib(stage.capacity)} GiB" if stage.capacity else f"{gib(m.total)} GiB"
    return parts_bar(
        f"{label(stage).capitalize()}: {used}",
        [
            Part(name, size / whole, f"{gib(size)} GiB", colour)
            for (name, size), colour in zip(parts.items(), _COLOURS, strict=True)
        ],
    )


def _time_bars(stage: StagePlan) -> str:
    """Draw a bar from 0 for each part: parts overlap, so their sum would be meaningless."""
    b = stage.bound
    assert b is not None
    parts = {"compute": b.compute, "memory": b.memory, "links": b.interconnect, "network": b.network}
    seconds = list(parts.values())
    return horizontal_bars(
        f"{label(stage).capitalize()}: at least {step_time(b.overlapped)}",
        list(parts),
        [Bars("least time", seconds, "blue", list(map(step_time, seconds)))],
        note=f"limited by {b.limited_by}; the parts overlap, so a step takes at least as long as the longest",
    )


def _charts(charts: list[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>' if charts else '<p class="caption">unknown</p>'
