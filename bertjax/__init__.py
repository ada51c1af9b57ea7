"""BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import would delay the command line's first answer to Ctrl-C
if TYPE_CHECKING:
    from pathlib import Path

    from bertjax.loaded import LoadedModel

__version__ = "0.1.0"


def load(path: str | Path) -> LoadedModel:
    """Open a trained model: a run's directory or one of its checkpoints, `hf:DIR` or `tf1:DIR`.

        model = bertjax.load("runs/quickstart")
        vectors = model.encode(["a text", "another one"])

        model = bertjax.load("runs/sst2")  # fine-tuned
        label, probability, _ = model.predict("a text")

    Raises ValueError naming what is missing or damaged.
    """
    from bertjax.storage.lean_import import quiet_libtpu

    quiet_libtpu()
    from bertjax.loaded import open_model  # jax and all that it needs; `import bertjax` takes no time

    return open_model(str(path))
