"""`bertjax pretrain`: train a model from text, with a report and an export."""

from __future__ import annotations

import argparse

from bertjax.cli.recipe import add_log, add_recipe, resolve_config
from bertjax.cli.verb import Verb
from bertjax.config.rescale import keys_given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    add_log(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the missing steps from text to a trained model in every process, and print the result."""
    from bertjax.storage.progress import SIGNS

    config, settings_text = resolve_config(arguments)
    user_keys = keys_given(arguments.overrides)
    if config.training.budget and "training.steps" in user_keys:
        raise ValueError(
            f"training.budget={config.training.budget!r} with training.steps: the steps follow from the budget; give "
            "one of them"
        )
    with SIGNS.speaking("starting"):
        from bertjax.run.pretrain import pretrain
        from bertjax.run.session import print_now
        from bertjax.runtime.processes import Stopped

        try:
            result = pretrain(config, user_keys=user_keys, announce=settings_text, ends_process=True)
        except Stopped as stopped:
            print_now(f"\n{stopped}")
            return stopped.exit_code
        if result.summary is not None:
            print_now(str(result))
        return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax pretrain bert_mini --data.sources 'text:books/*.txt'",
    takes_keys=True,
)
