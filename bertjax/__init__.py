"""BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load.

`import bertjax` is fast: each function imports jax and everything else when it is called.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import would delay the command line's first answer to Ctrl-C
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, Unpack

    from bertjax.config import Config
    from bertjax.config.registry import register
    from bertjax.embed.encoder import EncodingOptions
    from bertjax.loaded import LoadedModel
    from bertjax.pipeline.attention import Attention
    from bertjax.pipeline.embedding import Embedded
    from bertjax.pipeline.evaluation import Evaluation
    from bertjax.pipeline.exporting import Exported, ExportOptions
    from bertjax.pipeline.finetune_options import FinetuneOptions
    from bertjax.pipeline.finetuning import FinetuneResult
    from bertjax.pipeline.preparation import PrepareResult
    from bertjax.pipeline.searching import Found
    from bertjax.pipeline.tokens import Tokens
    from bertjax.run.callbacks import Callback
    from bertjax.run.pretrain import PretrainResult
    from bertjax.storage.remote import AnyPath

__version__ = "0.2.0.dev0"
__all__ = [
    "Callback",
    "Config",
    "ExportOptions",
    "FinetuneOptions",
    "attention",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "load",
    "prepare",
    "pretrain",
    "recipe",
    "register",
    "search",
    "tokenize",
]
_ELSEWHERE = {  # imported on first access
    "Callback": "bertjax.run.callbacks",
    "Config": "bertjax.config",
    "ExportOptions": "bertjax.pipeline.exporting",
    "FinetuneOptions": "bertjax.pipeline.finetune_options",
    "register": "bertjax.config.registry",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)


def recipe(name: str | Path, keys: Mapping[str, Any] | None = None) -> Config:
    """The config of a recipe, with other values under some keys.

        config = bertjax.recipe("bert_mini", {"data.sources": ["text:books/*.txt"], "training.steps": 2000})

    `name` is a recipe of the package or a file. A changed number of steps scales the settings that depend on it, as on
    the command line. Raises ValueError for an unknown recipe or key, naming the nearest one, and for a value of a wrong
    type.
    """
    from bertjax.cli.recipe import scale_to_steps
    from bertjax.config import load_recipe, with_values

    base, keys = load_recipe(name), keys or {}
    return scale_to_steps(with_values(base, keys), base, keys.keys())


def prepare(config: Config) -> PrepareResult:
    """Split the text of a config's sources into sentences and tokens, once, as a token store: `bertjax prepare`.

    Raises ValueError for text that cannot be read or is too little, and OSError if the disk is full.
    """
    _quiet()
    from bertjax.pipeline import preparation

    return preparation.prepare(config)


def pretrain(config: Config, *, callbacks: Sequence[Callback] = ()) -> PretrainResult:
    """Train from text to a reported and exported model, or resume the run that was stopped: `bertjax pretrain`.

        class Losses(bertjax.Callback):
            def on_evaluation(self, step, figures):
                print(step, figures["eval/mlm_loss"])

        result = bertjax.pretrain(config, callbacks=[Losses()])
        model = bertjax.load(result.directory)

    Raises ValueError for unusable settings or data, before it trains. Ctrl-C, or the notebook's stop button, saves a
    checkpoint and raises KeyboardInterrupt; the same call then resumes.
    """
    _quiet()
    from bertjax.run import pretrain as run_pretrain

    return run_pretrain.pretrain(config, callbacks=callbacks)


def finetune(
    task: str,
    init_from: str | Path,
    options: FinetuneOptions | None = None,
    *,
    callbacks: Sequence[Callback] = (),
) -> FinetuneResult:
    """Fine-tune a model for a task under every setting and seed, and export the best run: `bertjax finetune`.

        options = bertjax.FinetuneOptions(train="reviews.csv", learning_rates=(5e-5, 3e-5))
        result = bertjax.finetune("classification", "runs/quickstart", options)
        bertjax.load(result.directory).predict("I would read it again.")

    `task` is one of GLUE, squad, ner, ..., or classification, regression, choice, pairs, relevance for a table of your
    own, vectors or denoising for plain text. `init_from` is a model as in `load`. Raises as `pretrain`.
    """
    _quiet()
    from bertjax.pipeline import finetuning
    from bertjax.pipeline.finetune_options import FinetuneOptions

    request = finetuning.make_request(task, str(init_from), options or FinetuneOptions())
    return finetuning.finetune(request, callbacks=callbacks)


def evaluate(run: str | Path) -> Evaluation:
    """Evaluate a run's newest checkpoint, or `RUN/checkpoints/STEP`, on its held-out text: `bertjax evaluate`.

        bertjax.evaluate("runs/quickstart").figures["eval/mlm_loss"]

    Raises ValueError for a fine-tuned run, and for text or a teacher that has changed since.
    """
    _quiet()
    from bertjax.pipeline import evaluation

    return evaluation.evaluate(str(run))


def export(run: str | Path, options: ExportOptions | None = None, *, overwrite: bool = False) -> Exported:
    """Write a run's model in another framework's format, and compare the two: `bertjax export`.

        options = bertjax.ExportOptions(to="onnx", precision="int8")
        folder = bertjax.export("runs/quickstart", options).directory

    The default is Hugging Face's layout. Raises ValueError for an option that the format does not have, and for a
    folder that exists unless `overwrite` is true; RuntimeError if the outputs differ.
    """
    _quiet()
    from bertjax.pipeline import exporting

    def require_free(output: AnyPath) -> None:
        if not overwrite and (any(output.iterdir()) if output.is_dir() else output.exists()):
            raise ValueError(f"{output} exists; give overwrite=True to replace it, or name another output")

    return exporting.export(str(run), options or exporting.ExportOptions(), require_free)


def search(
    model: str | Path,
    queries: str | Sequence[str],
    *,
    index: str | Path,
    documents: str | Path | Sequence[str | Path] = (),
    column: str | None = None,
    by: str = "vectors",
    rerank: str | Path = "",
    top: int = 10,
    **encoding: Unpack[EncodingOptions],
) -> list[list[Found]]:
    """The `top` best documents for each query, or for one, best first, as (id, title, text, score): `bertjax search`.

        bertjax.search("runs/quickstart", ["sort an array"], index="index", documents=["docs.jsonl"])

    The result has a list for each query. `index` is a folder, which is built from `documents` if it does not exist:
    files of one text per line, .csv, .tsv, .parquet, or .jsonl with `_id`, `title` and `text`; `column` holds the text.
    `by` is vectors, bm25 or both; `rerank` is a model of `finetune relevance`; `encoding` are the options of
    `LoadedModel.encode`, for a new index. Warns of truncated texts. Raises ValueError for an index of another model, of
    other documents or of another encoding.
    """
    _quiet()
    from bertjax.pipeline import searching
    from bertjax.pipeline.arguments import strings

    request = searching.IndexRequest(str(model), str(index), strings(documents), column, encoding)
    return searching.search(request, strings(queries), by, str(rerank), top)


def attention(
    model: str | Path, sentences: str | Sequence[str] = (), *, text: str | Path = "", sample: int = 200
) -> Attention:
    """Compute the attention of every head in one or two sentences; a notebook shows a page: `bertjax attention`.

        bertjax.attention("runs/quickstart", ["I went to the store.", "It was closed."])

    `.view.attention` is float32 [layers, heads, tokens, tokens], `.page` is HTML. The patterns of heads are measured on
    `sample` sentences of the file `text`, or else of the run's held-out text. Raises ValueError for long sentences.
    """
    _quiet()
    from bertjax.pipeline import attention as view
    from bertjax.pipeline.arguments import strings

    return view.attention(str(model), strings(sentences), str(text), sample)


def tokenize(source: str | Path, texts: str | Sequence[str], *, cased: bool = False) -> list[Tokens]:
    """The tokens and ids of each text, or of one, without special tokens: `bertjax tokenize`.

        bertjax.tokenize("runs/quickstart", ["a text"])[0].tokens

    `source` is a run, hf:DIR, hf:NAME, or a vocabulary file; `cased` is for a vocab.txt that keeps case and accents.
    Weights are not read. Raises ValueError for a source without a vocabulary.
    """
    _quiet()
    from bertjax.pipeline import tokens
    from bertjax.pipeline.arguments import strings

    return tokens.tokenize(str(source), strings(texts), cased=cased)


def embed(
    model: str | Path,
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    column: str | None = None,
    overwrite: bool = False,
    **encoding: Unpack[EncodingOptions],
) -> Embedded:
    """Write the vectors of the texts of files, or of one, to .npy, .jsonl or .parquet: `bertjax embed`.

        bertjax.embed("runs/quickstart", ["texts.txt"], "vectors.npy", normalize=True)

    Files have one text per line, or are .csv, .tsv, .jsonl or .parquet with the text in `column`. `encoding` are the
    options of `LoadedModel.encode`, which takes texts in memory. Raises ValueError for an output that exists, unless
    `overwrite` is true, and for files that cannot be read.
    """
    _quiet()
    from bertjax.embed.outputs import require_output
    from bertjax.pipeline import embedding
    from bertjax.pipeline.arguments import strings

    path = require_output(str(output))
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists; give overwrite=True to replace it, or name another output")
    return embedding.embed(str(model), strings(files), path, column, encoding)


# Importing the packages of these names replaces them; the packages call them: see `bertjax.storage.callable_package`.
_finetune, _search, _embed = finetune, search, embed


def load(source: str | Path) -> LoadedModel:
    """Open a trained model: a run's directory or one of its checkpoints, `hf:DIR`, `hf:NAME` of the Hub, or `tf1:DIR`.

        model = bertjax.load("runs/quickstart")
        vectors = model.encode(["a text", "another one"])

        model = bertjax.load("runs/sst2")  # fine-tuned
        label, probability, _ = model.predict("a text")

    Raises ValueError naming what is missing or damaged.
    """
    _quiet()
    from bertjax.loaded import open_model

    return open_model(str(source))


def _quiet() -> None:
    """Silence libtpu where there is no TPU; each function calls it before it imports jax."""
    from bertjax.storage.lean_import import quiet_libtpu

    quiet_libtpu()
