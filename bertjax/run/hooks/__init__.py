"""Features of a run, one file each. A hook does its work between the steps of the loop."""

from __future__ import annotations

from collections.abc import Callable

from bertjax.config import Config
from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.run.callbacks import Callback

# The hooks that `config.hooks` can name. `bertjax.run.train_job` makes the built-in ones from other settings.
HOOKS = Registry[Callable[[], Callback]]("hooks", {})


def make_hooks(config: Config) -> list[Callback]:
    """Make the hooks named in `config.hooks`, each once. Raises ValueError for an unknown name."""
    for name in config.hooks:
        if name not in HOOKS:
            hint = suggestion(name, HOOKS, "name the plug-in that registers it: --plugin FILE")
            raise ValueError(f"hooks={config.hooks}: there is no hook {name!r}; {hint}")
    return [HOOKS[name]() for name in dict.fromkeys(config.hooks)]
