"""The answer of `bertjax plan`: the plan, advice where it does not fit, and a better plan if asked for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from bertjax.config import Config
from bertjax.plan.advice import Advice, advise
from bertjax.plan.estimates import Plan, Say, make_plan
from bertjax.plan.figures import about, as_text, described, headline, tables
from bertjax.plan.suggest import Suggestion, pick_microbatches, suggest
from bertjax.plan.topologies import LOCAL, open_topology
from bertjax.text.trained_vocabulary import vocabulary_size


@dataclass(frozen=True)
class Answer:
    """A plan with advice and suggestion."""

    plan: Plan
    advice: Advice | None  # where it does not fit
    suggestion: Suggestion | None  # where one was asked for
    vocabulary: str  # its size, and where that comes from

    @property
    def text(self) -> str:
        """For the terminal."""
        plan = self.plan
        stages = "\n".join(described(stage) for stage in plan.stages)
        parts = [f"\n{about(plan)}\n{self.vocabulary}\n{stages}", *(as_text(table) for table in tables(plan))]
        if plan.replicated.is_much:
            parts.append(f"WARNING: {plan.replicated}")
        parts += [f"{headline(plan)}."]
        if self.advice is not None:
            parts.append(self.advice.text)
        if self.suggestion is not None:
            parts.append(self.suggestion.text)
        return "\n\n".join(parts)


def answer(config: Config, arguments: argparse.Namespace, say: Say) -> Answer:
    """Make the plan that the command line asks for, and what follows from it.

    Raises ValueError like `open_topology` and `make_plan`.
    """
    entries, vocabulary = vocabulary_size(config.data)
    config = replace(config, model=replace(config.model, vocab_size=entries))
    topology = open_topology(arguments.topology, arguments.slices)
    plan = make_plan(config, topology, stage=arguments.stage, price=arguments.price, adapt=arguments.suggest, say=say)
    suggestion = suggest(plan, say) if arguments.suggest else None
    if arguments.topology == LOCAL and suggestion is None and topology.capacity is not None:
        suggestion = pick_microbatches(plan, say)
    is_answered = suggestion is not None and suggestion.is_whole
    advice = None if plan.fits or is_answered else advise(plan, say)
    return Answer(plan, advice, suggestion, vocabulary)
