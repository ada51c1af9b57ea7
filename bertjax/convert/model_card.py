"""The card of an exported model: its architecture, results on held-out text, and use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bertjax
from bertjax.config import Config, FinetuneConfig, ModelConfig, differences, load_recipe
from bertjax.config.recipes import recipe_names
from bertjax.convert.foreign import module_label
from bertjax.convert.huggingface.names import architecture, hf_class, left_out
from bertjax.families.family import Class
from bertjax.families.registry import get_family
from bertjax.finetune.kinds import get_kind
from bertjax.model.attention.block_sparse import longest_full
from bertjax.run.run_directory import TrainedModel
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.storage.hub import is_cached
from bertjax.storage.remote import AnyPath
from bertjax.storage.sums import sha256_of_file
from bertjax.text.sources.registry import KINDS
from bertjax.text.sources.source import SourceKind
from bertjax.training.objectives import OBJECTIVES, choose, list_measures
from bertjax.training.stages import make_stages

CARD_FILE = "README.md"

_DIGEST_LABEL = "SHA-256 of {}: "
# Config keys with paths or names from the training machine, which do not belong in a published card.
_TASK_FILES = ("task.data", "task.train", "task.dev", "task.test", "task.from_text")
_SOURCES = ("data.sources", "data.active_sources", "data.store", "data.exclude")
_TEXT_FILES = ("data.root", "data.cache_dir", "data.vocab", "data.groups")
_WORD_LISTS = ("data.entity_map", "data.similar_words", "data.units")
_OTHER_FILES = ("compilation_cache", "distillation.teacher", "probe.pairs", "probe.tags")
_PRIVATE = (
    *("run_dir", "init_from", "hosts.coordinator"),
    *(*_SOURCES, *_TEXT_FILES, *_WORD_LISTS, *_OTHER_FILES, *_TASK_FILES),
)

# A Wikipedia dump (dewiki-...), or its configuration in a data set on the Hub (20231101.de).
_WIKI_LANGUAGE = re.compile(r"\b(?P<dump>[a-z]{2,3})wiki[-_]|:\d{8}\.(?P<config>[a-z]{2,3})\b")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_MODEL = re.compile(rf"hf:(?P<name>{_HUB_NAME.pattern})(?:@.*)?")

_USE = """\
```python
from transformers import AutoTokenizer, {network}, pipeline

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {network}.from_pretrained(folder)  # the encoder and its heads

pipeline("{task}", folder)("{text}")
```

{others}"""
_FEWER_HEADS = """\
Classes with fewer heads load it too (`AutoModel`: the encoder{pooler}); transformers then lists the heads that they
leave out as unexpected. `bertjax export --head` writes a folder for one of these classes."""
_ONE_HEAD = "It has only this class's head: transformers initialises other heads at random, and lists them as missing."


def model_card(model: TrainedModel, parameters: int, weights_sha256: str, their_class: Class | None = None) -> str:
    """Write `README.md` from the run's config and its `metrics.jsonl` at the exported step.

    `parameters` is the number of exported parameters; `their_class` is the exported class, by default the whole
    model's. The card has no local path, and is the same for every export of a checkpoint.
    """
    config = model.config
    task, use = (
        (get_kind(model.kind).card.pipeline, task_use(model)) if model.kind else _pretraining_use(model, their_class)
    )
    sections = [
        _front_matter(model, "transformers", task, measured=True),
        _summary(model, parameters),
        "## Use",
        use,
        *_drawn(model),
        _limits(model),
        "## Development sets" if model.kind else "## Held-out text",
        _held_out(model),
        "## Training",
        _training(model),
        *_configuration(config),
        _DIGEST_LABEL.format("model.safetensors") + weights_sha256,
    ]
    return "\n\n".join(sections) + "\n"


def _pretraining_use(model: TrainedModel, their_class: Class | None) -> tuple[str, str]:
    """Return (the Hub's name of the task, the section on use)."""
    whole = hf_class(model.config.model)
    their_class = their_class or whole
    mask = model.tokenizer.tokens[model.tokenizer.mask_id]
    task, text = "feature-extraction", "Text to read."
    if "mlm_head" in their_class.outputs:
        causal = model.config.model.causal
        task, text = ("text-generation", "Text to") if causal else ("fill-mask", f"Text with a {mask} in it.")
    pooler = " and the pooler" if model.config.model.pooler == "tanh" else ""
    others = _FEWER_HEADS.format(pooler=pooler) if their_class.name == whole.name else _ONE_HEAD
    return task, _USE.format(task=task, text=text, network=their_class.name, others=others)


def _front_matter(model: TrainedModel, library: str, task: str, measured: bool = False) -> str:
    """Write the Hub's YAML front matter and the title. `measured` adds the figures of the held-out sets."""
    config, family = model.config, get_family(model.config.model.family)
    model_type = family.huggingface.model_type if family.huggingface else family.name
    languages, datasets = _languages(config), _datasets(config)
    base = _hub_name(config.init_from)
    matter: dict[str, Any] = {"library_name": library, "pipeline_tag": task, "tags": [model_type, "bertjax"]}
    # Weights that started from another model keep that model's licence, which is not known here.
    matter |= {} if config.init_from else {"license": "apache-2.0"}
    matter |= {"language": languages} if languages else {}
    matter |= {"datasets": datasets} if datasets else {}
    matter |= {"base_model": base} if base else {}
    results = _hub_results(model, task) if measured else []
    matter |= {"model-index": [{"name": config.name, "results": results}]} if results else {}
    # JSON values are valid YAML.
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in matter.items()]
    return f"---\n{''.join(lines)}---\n\n# {config.name}"


def _languages(config: Config) -> list[str]:
    """Language codes recognised in the sources' names; empty if the language of any source is unknown."""
    languages: set[str] = set()
    for source in config.data.sources:
        match = _WIKI_LANGUAGE.search(source)
        if not match and not _kind_satisfies(source, lambda kind: kind.is_english):
            return []
        languages.add(match["dump"] or match["config"] if match else "en")
    return sorted(languages)


def _kind_satisfies(source: str, rule: Callable[[SourceKind], bool]) -> bool:
    # A source may also be a folder, which need not exist on this machine.
    kind = source.partition(":")[0]
    return kind in KINDS.at_hand() and rule(KINDS[kind])


def _datasets(config: Config) -> list[str]:
    """Data sets on the Hub that the run was trained on."""
    sources = (source for source in config.data.sources if _kind_satisfies(source, lambda kind: kind.of_hub))
    return list(dict.fromkeys(match[0] for source in sources if (match := _HUB_NAME.match(source.partition(":")[2]))))


def _hub_name(source: str) -> str:
    """The Hub repository that `init_from` names; "" for a folder, which is not in the Hub's cache."""
    match = _HUB_MODEL.fullmatch(source)
    return match["name"] if match and is_cached(match["name"]) else ""


def _hub_results(model: TrainedModel, task: str) -> list[dict[str, Any]]:
    """Results for the card's `model-index`: every held-out figure, as the Hub's leaderboards read them."""
    config, figures = model.config, _figures(model)
    is_task = isinstance(config, FinetuneConfig)
    name = config.task.name if is_task else "held-out text"
    metrics = [
        {"type": figure.rpartition("/")[2], "value": value, "name": figure.removeprefix("eval/")}
        for figure, value in sorted(figures.items())
        if figure.startswith("eval/") and math.isfinite(value)
    ]
    dataset = {"type": name.replace(" ", "_"), "name": f"{name}, development set" if is_task else name}
    return [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}] if metrics else []


def part_card(model: TrainedModel, library: str, use: str, weights: Path, headed: bool = False) -> str:
    """Write the card of an export for another library: the encoder, or with `headed` also a task's head."""
    net = model.config.model
    size = f"{net.num_hidden_layers} layers, width {net.hidden_size} and {net.num_attention_heads} heads"
    what = f"model of {get_family(model.config.model.family).title}'s architecture with {size}"
    opening = f"A {what}, {task_about(model)}" if headed else f"The encoder of a {what}"
    task = get_kind(model.kind).card.pipeline if headed else "sentence-similarity"
    sections = [
        _front_matter(model, library, task),
        f"{opening}, {_origin(model)}.",
        "## Use",
        use,
        _limits(model),
        "## Training",
        _training(model),
        *_configuration(model.config),
        _DIGEST_LABEL.format(weights.name) + sha256_of_file(weights),
    ]
    return "\n\n".join(sections) + "\n"


def digest_in_card(path: AnyPath, weights: str = "model.safetensors") -> str | None:
    """Read the digest of a weights file from its card; None if the card has none."""
    label = _DIGEST_LABEL.format(weights)
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(label):
            return line.removeprefix(label)
    return None


def _summary(model: TrainedModel, parameters: int) -> str:
    config, net, title = model.config, model.config.model, get_family(model.config.model.family).title
    does = task_about(model) if model.kind else f"with {_objectives(config)}"
    untrained = ", ".join(map(module_label, model.untrained))
    random = f"; random, since nothing has trained them: {untrained}" if untrained else ""
    return (
        f"A model of {title}'s architecture with {net.num_hidden_layers} layers, width {net.hidden_size}, "
        f"{net.num_attention_heads} heads and {parameters:,} parameters, {does}, {_origin(model)}{random}."
    )


def _origin(model: TrainedModel) -> str:
    if _is_imported(model):
        return f"imported by bertjax {bertjax.__version__}"
    start = "from the weights of another model" if model.config.init_from else "from scratch"
    if model.kind:
        return f"fine-tuned {start} by bertjax {bertjax.__version__}"
    return f"pretrained {start} by bertjax {bertjax.__version__}"


def _configuration(config: Config) -> tuple[str, ...]:
    """Table of the settings that differ from the run's recipe, or from the defaults without one.

    Network settings are left out: `config.json` has them.
    """
    has_recipe = not isinstance(config, FinetuneConfig) and config.name in recipe_names()
    baseline = load_recipe(config.name) if has_recipe else type(config)()
    rows = [
        (f"`{key}`", f"`{_public_stages(value) if key == 'stages' else value}`")
        for key, (_, value) in sorted(differences(config, baseline).items())
        if key not in ("name", *_PRIVATE) and not key.startswith("model.")  # the name is the title
    ]
    if not rows:
        return ()
    title = f"bertjax's recipe `{config.name}`" if has_recipe else "the defaults"
    return (
        f"<details><summary>Settings that differ from {title}</summary>",
        _table(("key", "value"), rows),
        "</details>",
    )


def _public_stages(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings of later stages without the private ones."""
    return [{key: value for key, value in stage.items() if f"data.{key}" not in _PRIVATE} for stage in stages]


def _is_imported(model: TrainedModel) -> bool:
    """Whether bertjax imported it and never trained it."""
    return model.step == 0 and bool(model.config.init_from)


def _objectives(config: Config) -> str:
    if config.model.causal:
        return "left-to-right attention and a head for the next word; no other head was trained"
    heads = get_family(config.model.family).heads
    # A generator's heads are not exported.
    trained = [o.about for o in choose(config.training.objectives) if set(o.heads) & {*heads}]
    trainable = [objective for objective in OBJECTIVES.values() if objective.about and set(objective.heads) <= {*heads}]
    untrained = [objective.about for objective in trainable if objective.about not in trained]
    heads_text = f"{'heads' if len(trained) > 1 else 'a head'} for {' and '.join(trained)}"
    untrained_text = f"; its head for {' and '.join(untrained)} was never trained" if untrained else ""
    left_out_text = "".join(f"; {line}" for line in left_out_lines(config.model))
    if {*heads} <= {*left_out(config.model)}:
        return f"no pretraining head{left_out_text}"
    return heads_text + untrained_text + left_out_text


def left_out_lines(config: ModelConfig) -> list[str]:
    """Lines about what an export for transformers leaves out."""
    modules = left_out(config)
    lines = [f"in the run, but not in this export: {', '.join(map(module_label, modules))}"] if modules else []
    never = "transformers has no enhanced mask decoder, so none of its classes fills masks as this model does"
    return [*lines, never] if "mask_decoder" in modules else lines


def _drawn(model: TrainedModel) -> list[str]:
    hf = get_family(model.config.model.family).transformers
    return [
        f"transformers initialises {part} (`{prefix}*`) at random and lists it as missing: bertjax has no such part, "
        "and neither hidden states nor logits depend on it."
        for prefix, part in hf.transformers_only.items()
    ]


def _limits(model: TrainedModel) -> str:
    rules = model.tokenizer.rules
    case = "Text is lower-cased" if rules.lowercase else "Case is kept"
    accents = "accents are stripped" if rules.strip_accents else "accents are kept"
    length, table = model.max_length, model.config.model.max_position_embeddings
    unused = f"; the position table has {table:,} rows, and the rest saw no text" if table > length else ""
    limits = f"{case} and {accents} by the tokenizer. It was trained on up to {length:,} tokens at a time{unused}."
    net = model.config.model
    full = longest_full(net.attention_block, net.random_blocks)
    if not net.attention_block or net.random_blocks_seed < 0 or full >= net.max_position_embeddings:
        return limits
    return (
        f"{limits} In rows of more than {full:,} tokens transformers uses other random blocks than the model was "
        "trained with."
    )


def _figures(model: TrainedModel) -> Mapping[str, float]:
    """The figures logged at the exported step; empty without a log or without that step."""
    path = model.directory / METRICS_FILE
    records = read_metrics(path) if path.is_file() else []
    logged = [record for record in records if record["step"] == model.step]
    return {key: value for record in logged for key, value in record.items() if isinstance(value, int | float)}


def _held_out(model: TrainedModel) -> str:
    figures, rows = _figures(model), []
    if model.kind and (measures := task_figures(figures)):
        return "On examples kept out of training:\n\n" + _table(("measure", "this model"), measures)
    for name, measure in list_measures(OBJECTIVES.values()):
        value, base = figures.get(f"eval/{name}", math.nan), figures.get(f"baseline/{measure.baseline}", math.nan)
        if not math.isnan(value):
            baseline = "" if math.isnan(base) else f"{base:{measure.form}} ({measure.meaning})"
            rows.append((measure.title, f"{value:{measure.form}}", baseline))
    if not rows:
        return "This checkpoint was not evaluated in its run."
    return "On documents kept out of training:\n\n" + _table(("measure", "this model", "baseline"), rows)


def _training(model: TrainedModel) -> str:
    if _is_imported(model):
        return "None by bertjax: the weights were imported."
    stages = [(stage, min(model.step, stage.stop) - stage.start) for stage in make_stages(model.config)]
    seen = [(s.data.sequence_length, s.training.global_batch_size, steps) for s, steps in stages if steps > 0]
    kinds = ", ".join(dict.fromkeys(source.split(":")[0] for source in model.config.data.sources)) or "unknown"
    return _table(
        ("what", "how much"),
        [
            ("steps", f"{model.step:,} of {stages[-1][0].stop:,}"),
            *[("of them", f"{n:,} with {rows:,} rows of {length:,} tokens each") for length, rows, n in seen],
            ("tokens", f"at most {sum(length * rows * n for length, rows, n in seen):,}, padding included"),
            ("vocabulary", f"{model.config.model.vocab_size:,} {model.tokenizer.kind_name} tokens"),
            *([] if model.kind else [("kinds of source", kinds)]),
            ("peak learning rate", f"{model.config.optimizer.learning_rate:g}"),
        ],
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MOST_LABELS = 50  # in a card


def task_about(model: TrainedModel) -> str:
    """A clause about the model's task and its labels, to follow "A model"."""
    name = model.config.task.name if isinstance(model.config, FinetuneConfig) else ""
    labels = model.labels if model.config.model.num_labels else ()
    label_list = ", ".join(f"`{label}`" for label in labels[:_MOST_LABELS]) + (
        ", ..." if len(labels) > _MOST_LABELS else ""
    )
    return f"which {get_kind(model.kind).card.does} (task `{name}`" + (f"; labels {label_list})" if labels else ")")


def task_use(model: TrainedModel) -> str:
    """The section on use in transformers."""
    use, name = get_kind(model.kind).card.use, architecture(model.config.model)
    return f"```python\n{use}\n```\n\nIt is a `{name}` of transformers."


def task_figures(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows (measure, value) for the development-set figures of a step."""
    return [
        (f"`{name.removeprefix('eval/')}`", f"{value:.4f}")
        for name, value in sorted(figures.items())
        if name.startswith("eval/")
    ]
