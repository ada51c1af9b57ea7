"""Features of a run, a file each: a hook does its work between the steps of the loop."""

from __future__ import annotations

from collections.abc import Callable

from bertjax.config import Config
from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.run.callbacks import Callback

# Those that a config names. The run's own follow from other settings (`bertjax.run.train_job`).
HOOKS = Registry[Callable[[], Callback]]("hooks", {})


def make_hooks(config: Config) -> list[Callback]:
    """Make the hooks that a config names, each once. Raises ValueError for an unknown name."""
    for name in config.hooks:
        if name not in HOOKS:
            hint = suggestion(name, HOOKS, "name the plug-in that registers it: --plugin FILE")
            raise ValueError(f"hooks={config.hooks}: there is no hook {name!r}; {hint}")
    return [HOOKS[name]() for name in dict.fromkeys(config.hooks)]
