"""Everything a run can be told, as frozen typed dataclasses, and how recipes and overrides become one of them.

A recipe is a Python file with `config() -> Config`. Overrides come from the command line and win over the recipe.
Nothing below the trainer sees the whole `Config`: each room takes the part it is about.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

SHORTEST_ROW = 5  # [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class ModelConfig:
    """The network, in the field names of Hugging Face's BertConfig; defaults are BERT-Base (paper, section 3)."""

    vocab_size: int = 30_522  # entries the tokenizer has; set from the vocabulary when a run starts
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Literal["gelu", "gelu_tanh"] = "gelu"  # erf form, or the tanh approximation of google-research/bert
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    position_embedding: Literal["learned", "sinusoidal"] = "learned"  # sinusoidal has no parameters; an ablation
    causal: bool = False  # a token sees no token to its right, as in the left-to-right ablation
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    vocab_pad_multiple: int = 128  # table rows are padded to this; independent of the mesh
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters are always float32
    remat: Literal["none", "dots", "full"] = "none"  # what the backward pass recomputes
    mlm_chunk: int = 1024  # predictions whose logits exist at a time
    scan_unroll: int = 1  # layers per iteration of the scan over layers; num_hidden_layers unrolls it all
    attention: Literal["auto", "xla", "cudnn", "splash"] = "auto"  # who computes it; auto: by platform and row
    head: str = "pretraining"  # on the encoder: a name in bertjax.model.bert.HEADS
    num_labels: int = 0  # number of classes of a head that has classes; 1 = regression
    # For the feature-based variant: layers of the frozen encoder that the head reads side by side (0: the embeddings,
    # -1: the last layer); empty trains the whole network.
    features: tuple[int, ...] = ()
    lstm_size: int = 0  # for the feature-based variant: size of each direction of a two-layer BiLSTM; 0 = no BiLSTM


@dataclass(frozen=True)
class DataConfig:
    """From text to batches: where the text is, its vocabulary, and how rows are made of it."""

    # Each `kind:what`: text, lines, jsonl, parquet, wikiextractor, wikipedia, docs, tfds; or rows: tfrecord.
    sources: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()  # of the tokens of an epoch, one for each source; empty: see temperature
    temperature: float = 1.0  # shares go by a source's tokens to this power; 1: every document once an epoch
    root: str = "data"  # vocabularies and token stores are kept below it, each under its fingerprint
    cache_dir: str = ""  # a local folder to copy the store to and read it from; a remote one goes to data/cache
    vocab: str = ""  # a vocab.txt, spiece.model or vocab.json to use; empty trains one on the sources
    tokenizer: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = "wordpiece"  # to train; unigram, bpe: SentencePiece
    vocab_size: int = 30_522
    vocab_temperature: float = 1.0  # each source's word counts are scaled to its words to this power
    lowercase: bool = True
    strip_accents: bool = True
    unknown: Literal["words", "characters"] = "words"  # what WordPiece makes [UNK]; "words" is the reference's rule
    segmenter: Literal["none", "jieba"] = "none"  # finds words of Chinese, for whole-word masking
    held_out: float = 0.01  # share of documents, chosen by a hash of their content, kept for evaluation
    workers: int = 0  # processes that prepare text; 0 = one per core
    sequence_length: int = 128
    # Sentence pairs; or without NSP as many sentences as fit, over the ends of documents or not (RoBERTa's names).
    rows: Literal["pairs", "full_sentences", "doc_sentences"] = "pairs"
    packing: Literal["none", "pairs"] = "none"  # a sentence pair to a row, or as many as fit
    pairs_per_row: int = 8  # at most, when packed
    max_predictions: int = 20  # masked positions per sentence pair at most; the paper's 20 at length 128
    predict: Literal["masked", "next"] = "masked"  # hidden tokens, or at every position the token that follows
    mask_probability: float = 0.15
    keep_share: float = 0.1  # of the masked positions: the token stays as it is
    random_share: float = 0.1  # of the masked positions: a random token; the rest become [MASK]
    short_sequence_probability: float = 0.1
    whole_word_masking: bool = False
    threads: int = 2  # threads that make batches

    @property
    def is_mixture(self) -> bool:
        """Whether an epoch is anything but every document once."""
        return bool(self.weights) or self.temperature != 1.0

    @property
    def prediction_slots(self) -> int:
        """Predictions that a row has room for."""
        if self.predict == "next":
            return self.sequence_length - 1
        if self.packing == "none":
            return self.max_predictions
        # A pair of n tokens has max(1, round(n p)) masks, so at most n p and this many more.
        more = max(0.5, 1 - SHORTEST_ROW * self.mask_probability)
        packed = int(self.mask_probability * self.sequence_length + more * self.pairs_per_row)
        return min(packed, self.max_predictions * self.pairs_per_row)

    @property
    def pair_slots(self) -> int:
        """Sentence pairs that a row has room for."""
        return 1 if self.packing == "none" else self.pairs_per_row

    @property
    def expected_predictions(self) -> float:
        """Predictions that a full row has."""
        share = 1.0 if self.predict == "next" else self.mask_probability
        return min(self.prediction_slots, share * self.sequence_length)


@dataclass(frozen=True)
class MeshConfig:
    """How many devices lie along each mesh axis; -1 takes what the others leave."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    dcn_data: int = -1  # of `data`, the factor that runs across slices; -1 takes what dcn_fsdp leaves
    dcn_fsdp: int = 1  # of `fsdp`, likewise; the product of both is the number of slices


@dataclass(frozen=True)
class HostsConfig:
    """How the processes of a run find each other, and how many there must be."""

    cluster: Literal["auto", "one", "tpu", "slurm", "kubernetes", "address"] = "auto"  # one: no others
    coordinator: str = ""  # HOST:PORT where process 0 listens; for `address`
    processes: int = 0  # that must join; 0: as many as the cluster says
    process: int = -1  # the number of this one; -1: as the cluster says
    devices: int = 0  # that there must be in all; 0: any number
    join_seconds: int = 300  # for all processes to join
    heartbeat_seconds: int = 20  # after which a process that is silent is lost


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule; defaults are the paper's (appendix A.2) and google-research/bert's."""

    name: Literal["bert_adamw", "adamw", "lamb", "lamb_uncorrected"] = "bert_adamw"
    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    schedule: Literal["linear", "polynomial", "cosine", "warmup_stable_decay"] = "linear"
    decay_power: float = 1.0  # of the polynomial schedule
    decay_steps: int = 0  # of warmup_stable_decay: the last steps, over which the rate falls to 0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: how long, how much per step, and how often it logs, evaluates and saves (periods in steps)."""

    steps: int = 1_000_000
    global_batch_size: int = 256
    grad_accum_steps: int = 1
    objectives: tuple[str, ...] = ("mlm", "nsp")
    seed: int = 0
    log_every: int = 100
    eval_every: int = 10_000
    eval_batches: int = 32
    checkpoint_every: int = 5_000
    keep_last: int = 2
    keep_every: int = 0  # checkpoints whose step is a multiple are kept for good; 0 = none
    max_skipped_updates: int = 20  # non-finite updates in a row that stop the run


@dataclass(frozen=True)
class StageConfig:
    """A later stretch of the run with other rows; None keeps what was. The optimizer's state goes on through it."""

    start: int  # the step it begins at; it ends where the next begins, or with the run
    sequence_length: int | None = None
    max_predictions: int | None = None
    global_batch_size: int | None = None
    grad_accum_steps: int | None = None
    learning_rate: float | None = None  # peak of a schedule that begins here; None goes on with the one that runs
    warmup_steps: int | None = None  # of that schedule


@dataclass(frozen=True)
class Config:
    """One run, whole. `data`, `optimizer` and `training` describe it up to where the first of `stages` begins."""

    name: str = "bert"
    run_dir: str = ""  # a folder or a URL; empty: runs/<name>
    init_from: str = ""  # RUN, hf:DIR or tf1:DIR, whose weights start this run at step 0
    restore: Literal["newest", "previous"] = "newest"  # `previous` is for when the newest checkpoint is damaged
    profile: str = ""  # FIRST:LAST, the steps to write a trace of
    deterministic: bool = False  # on a GPU: the same bits in every run, at some cost; elsewhere it is so anyway
    compilation_cache: str = "data/compiled"  # what was compiled once is taken from here; empty: nothing is kept
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    stages: tuple[StageConfig, ...] = ()

    @property
    def directory(self) -> str:
        """Where the run lives: a folder, or a URL in object storage."""
        return self.run_dir or f"runs/{self.name}"


@dataclass(frozen=True)
class TaskConfig:
    """What a model is fine-tuned for. Recipes of the known tasks are in bertjax/finetune/tasks.py."""

    name: str = ""  # of a known task (sst2, squad, ...), or the kind of one's own (classification, tagging, ...)
    data: str = ""  # the folder of a known task's files, or tfds:glue/NAME
    train: str = ""  # of one's own task: a file
    dev: str = ""
    test: str = ""
    text: tuple[str, ...] = ()  # and in it the columns of the text, of both texts, or of the start and each end
    label: str = ""
    id: str = ""
    labels: tuple[str, ...] = ()  # in the order of the network's outputs; empty: those of the training data, sorted
    class_weights: tuple[float, ...] = ()  # of the loss, one for each label; empty: all weigh 1
    balanced: bool = False  # weights by which every label counts the same over the training data
    epochs: float = 3.0
    warmup: float = 0.1  # share of the steps
    examples: int = 0  # of the training data that many, drawn by the seed; 0: all
    layer_decay: float = 1.0  # the rate of each layer is that of the one above it times this
    patience: int = 0  # evaluations without a better one that end the training; the best is kept then. 0: no end
    strict_length: bool = False  # refuse what is longer than a row, instead of cutting or splitting it
    doc_stride: int = 128  # tokens from one window of a text to the next
    max_query: int = 64  # tokens of a question
    max_answer: int = 30  # tokens of an answer
    n_best: int = 20  # of a question that many answers are kept, of as many likeliest starts and ends
    null_threshold: float = 0.0  # how much better no answer has to score than the best one
    temperature: float = 0.05  # of the contrastive loss

    @property
    def no_answer_threshold(self) -> float | None:
        """The null threshold of a task whose questions may have no answer; None where every text has one."""
        return self.null_threshold if self.name == "squad2" else None


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """A run that fine-tunes `init_from` for a task. With training.steps=0 they come from the task's epochs."""

    task: TaskConfig = field(default_factory=TaskConfig)


def variant_of(variants: Mapping[str, T], name: str) -> T:
    """What a recipe has under the name of a variant. Raises ValueError for another name, with the list."""
    if name not in variants:
        raise ValueError(f"variant {name!r} is unknown; this recipe has {', '.join(variants)}")
    return variants[name]


def load_recipe(recipe: str | Path) -> Config:
    """Return the `Config` that a recipe makes: a file, or `FILE.py:VARIANT` for one of a file that has several.

    Raises ValueError if the file is missing, has no `config`, or `config()` returns something else.
    """
    file, colon, variant = str(recipe).partition(".py:")
    path = Path(f"{file}.py" if colon else file)
    if not path.is_file():
        known = sorted(str(p) for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        near = difflib.get_close_matches(str(path), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"recipes beside it: {', '.join(known) or 'none'}"
        raise ValueError(f"recipe {path}: no such file; {hint}")
    # A recipe may build on one beside it.
    sys.path.insert(0, str(path.parent))
    before = set(sys.modules)
    try:
        make = runpy.run_path(str(path)).get("config")
    finally:
        sys.path.remove(str(path.parent))
        # Another folder may have a recipe of the same name.
        for name in [n for n, m in sys.modules.items() if n not in before and _is_in(path.parent, m)]:
            del sys.modules[name]
    if make is None:
        raise ValueError(f"recipe {path}: it defines no `config`; write `def config() -> Config: ...`")
    if colon and not inspect.signature(make).parameters:
        raise ValueError(f"recipe {path}: it has no variants; leave out {variant!r}")
    made = make(variant) if colon else make()
    if not isinstance(made, Config):
        raise ValueError(f"recipe {path}: config() returned {type(made).__name__}, not bertjax.config.Config")
    return made


def _is_in(folder: Path, module: Any) -> bool:
    return Path(getattr(module, "__file__", None) or "/").resolve().parent == folder.resolve()


def override(config: Config, arguments: Sequence[str], prog: str) -> Config:
    """Apply command-line overrides (`--optimizer.learning-rate 1e-4`) to a config.

    An unknown key or a value of the wrong type ends the program with exit code 2 and names the nearest key.
    """
    import tyro

    return tyro.cli(
        type(config),
        default=config,
        args=list(arguments),
        prog=prog,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        description="",
    )


def validate(config: Config) -> Config:
    """Return the config if its values can work together.

    Raises ValueError naming the key, its value and what to do.
    """
    model, data, training = config.model, config.data, config.training
    if model.hidden_size % model.num_attention_heads:
        raise ValueError(
            f"model.hidden_size={model.hidden_size} is not divisible by "
            f"model.num_attention_heads={model.num_attention_heads}; change one of them"
        )
    if data.sequence_length > model.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length={data.sequence_length} is beyond the position table "
            f"(model.max_position_embeddings={model.max_position_embeddings}); shorten the rows or enlarge the table"
        )
    if data.sequence_length < 8:
        raise ValueError(f"data.sequence_length={data.sequence_length} is too short for two segments; use 8 or more")
    if data.weights and (len(data.weights) != len(data.sources) or min(data.weights) < 0 or not sum(data.weights) > 0):
        raise ValueError(
            f"data.weights={data.weights}: give one for each of the {len(data.sources)} data.sources, none below 0 and "
            "not all of them 0"
        )
    if data.segmenter != "none" and not data.whole_word_masking:
        raise ValueError(
            f"data.segmenter={data.segmenter!r} without data.whole_word_masking has no effect; set both or neither"
        )
    for key, usual in (("unknown", "words"), ("segmenter", "none")):
        if getattr(data, key) != usual and not data.vocab and data.tokenizer != "wordpiece":
            raise ValueError(
                f"data.{key}={getattr(data, key)!r} with data.tokenizer={data.tokenizer!r}: it is WordPiece's option; "
                f"leave it at {usual!r}"
            )
    if data.rows != "pairs" and "nsp" in training.objectives:
        raise ValueError(
            f"data.rows={data.rows!r} with training.objectives={training.objectives}: such rows have no second "
            "segment; leave nsp out"
        )
    if data.rows == "full_sentences" and data.is_mixture:
        raise ValueError(
            f"data.rows='full_sentences' with data.weights={data.weights}, data.temperature={data.temperature}: a row "
            "goes on with the next document of the store, and in a mixture that may not be read; use 'doc_sentences'"
        )
    if not 0 <= data.vocab_temperature <= 1:
        raise ValueError(f"data.vocab_temperature={data.vocab_temperature} must lie in [0, 1]")
    if not 0 <= data.temperature <= 1 or (data.weights and data.temperature != 1):
        raise ValueError(
            f"data.temperature={data.temperature} must lie in [0, 1], and be 1 where data.weights are given"
        )
    if (data.predict == "next") != model.causal:
        raise ValueError(
            f"data.predict={data.predict!r} with model.causal={model.causal}: what a token is to predict must not be "
            "in its sight, and what it may use must be; use 'next' with a causal model and 'masked' with any other"
        )
    if model.causal and "nsp" in training.objectives:
        raise ValueError(
            f"training.objectives={training.objectives} with model.causal=True: [CLS] sees nothing but itself there, "
            "and cannot tell whether B follows A; leave nsp out"
        )
    if training.global_batch_size % training.grad_accum_steps:
        raise ValueError(
            f"training.global_batch_size={training.global_batch_size} is not divisible by "
            f"training.grad_accum_steps={training.grad_accum_steps}; change one of them"
        )
    positive = {
        "model.num_hidden_layers": model.num_hidden_layers,
        "model.vocab_pad_multiple": model.vocab_pad_multiple,
        "model.scan_unroll": model.scan_unroll,
        "model.mlm_chunk": model.mlm_chunk,
        "data.pairs_per_row": data.pairs_per_row,
        "data.max_predictions": data.max_predictions,
        "data.vocab_size": data.vocab_size,
        "data.threads": data.threads,
        "training.steps": training.steps,
        "training.global_batch_size": training.global_batch_size,
        "training.grad_accum_steps": training.grad_accum_steps,
        "training.log_every": training.log_every,
        "training.eval_every": training.eval_every,
        "training.eval_batches": training.eval_batches,
        "training.checkpoint_every": training.checkpoint_every,
        "training.keep_last": training.keep_last,
    }
    shares = {
        "model.hidden_dropout_prob": model.hidden_dropout_prob,
        "model.attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "data.held_out": data.held_out,
        "data.mask_probability": data.mask_probability,
        "data.short_sequence_probability": data.short_sequence_probability,
    }
    for key, value in positive.items():
        if value < 1:
            raise ValueError(f"{key}={value} must be at least 1")
    for key, value in shares.items():
        if not 0 <= value < 1:
            raise ValueError(f"{key}={value} must be a share in [0, 1)")
    for key, value in {"data.keep_share": data.keep_share, "data.random_share": data.random_share}.items():
        if not 0 <= value <= 1 or data.keep_share + data.random_share > 1 + 1e-9:
            raise ValueError(f"{key}={value}: data.keep_share and data.random_share are shares that sum to 1 at most")
    if config.optimizer.warmup_steps >= training.steps:
        raise ValueError(
            f"optimizer.warmup_steps={config.optimizer.warmup_steps} leaves nothing of "
            f"training.steps={training.steps}; shorten the warm-up or train longer"
        )
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: dict[str, Any]) -> Config:
    """The inverse of `to_dict` for a whole Config, or a FinetuneConfig, which has a task.

    Raises ValueError for a key that it does not have, naming the nearest one.
    """
    return _build(FinetuneConfig if "task" in values else Config, values, "")


def _build(cls: type, values: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    made = {}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise ValueError(f"config key {where}{key} is unknown; {f'did you mean {where}{near[0]}?' if near else ''}")
        default = fields[key].default_factory
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            value = _build(default, value, f"{where}{key}.")
        if key == "stages" and issubclass(cls, Config):
            value = [_build(StageConfig, stage, f"{where}{key}.{n}.") for n, stage in enumerate(value)]
        made[key] = tuple(value) if isinstance(value, list) else value
    return cls(**made)


def differences(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value in base, value in config), for every key that differs; None where one lacks it."""
    old, new = flatten(to_dict(base)), flatten(to_dict(config))
    return {key: (old.get(key), new.get(key)) for key in new | old if new.get(key) != old.get(key)}


def flatten(tree: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Nested dicts as one of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{where}{key}.") if isinstance(value, dict) else {where + key: value})
    return flat


def render(config: Config, recipe: Config) -> str:
    """The resolved config as text, differences from the recipe first."""
    changed = differences(config, recipe)
    lines = [f"  {key}: {new!r}   (recipe: {old!r})" for key, (old, new) in changed.items()]
    head = ["changed from the recipe:", *lines] if lines else ["as the recipe has it"]
    return "\n".join(head + ["config:"] + [f"  {key}: {value!r}" for key, value in flatten(to_dict(config)).items()])
