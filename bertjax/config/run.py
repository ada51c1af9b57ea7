"""The config of a run: devices and processes, optimizer, loop, stages and task, and their checks."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from bertjax.config.bounds import COUNT, NOT_NEGATIVE, POSITIVE, PROPER_SHARE, SHARE, Bounds, check_bounds
from bertjax.config.budget import budget_seconds
from bertjax.config.credentials import refuse_credentials_within
from bertjax.config.data import DataConfig, RowKind, check_data
from bertjax.config.model import ExecutionConfig, ModelConfig, check_execution, check_model
from bertjax.config.resume import changes_with_notice, may_change
from bertjax.config.skips import parse_skips

_OTHER_END = "the learning-rate schedule now ends at another step"
_OTHER_ROWS = "evaluations before and after use different rows"
_ONLY_AT_STEP_0 = "has no effect on a run that continues from its own checkpoint"


@dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each mesh axis; -1 takes all that the others leave."""

    data: int = may_change(-1)  # Number of devices along the data axis (copies of the model); -1: all that are left
    # Number of devices along the fsdp axis (weights are sharded); -1: all that are left; 0: 1, or up to 8 where all
    # devices are TPUs and no other size is given
    fsdp: int = may_change(0)
    # Number of devices along the tensor axis (layers are split); -1: all that are left. On TPUs, if no size is set and
    # a step has too few rows for all devices, as many devices as necessary share a row
    tensor: int = may_change(1)
    # Number of devices along the length axis (the tokens of a row are split); -1: all that are left. On TPUs, if no
    # size is set, it replaces tensor where the model's sizes do not allow that
    length: int = may_change(1)
    dcn_data: int = may_change(-1)  # Number of slices along the data axis; -1: all that dcn_fsdp leaves
    dcn_fsdp: int = may_change(1)  # Number of slices along the fsdp axis; dcn_data x dcn_fsdp is all slices


@dataclass(frozen=True)
class HostsConfig:
    """How the processes of a run find each other, and how many must join."""

    # Kind of cluster; one: a single process, address: as given by hosts.coordinator
    cluster: Literal["auto", "one", "tpu", "slurm", "kubernetes", "address"] = may_change("auto")
    coordinator: str = may_change("")  # Address HOST:PORT of process 0, for hosts.cluster=address
    processes: int = may_change(0)  # Number of processes that must join; 0: as many as the cluster has
    process: int = may_change(-1)  # Index of this process; -1: from the cluster
    devices: int = may_change(0)  # Number of devices that all processes must have together; 0: any number
    join_seconds: int = may_change(300)  # Time limit for all processes to join, in seconds
    heartbeat_seconds: int = may_change(20)  # Silence in seconds after which a process counts as lost


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule; defaults are the paper's (appendix A.2) and google-research/bert's."""

    # Update rule; bert_adamw has no bias correction
    name: Literal["bert_adamw", "adamw", "lamb", "lamb_uncorrected", "stable_adamw", "muon"] = "bert_adamw"
    learning_rate: float = 1e-4  # Peak learning rate
    warmup_steps: int = 10_000  # Number of steps over which the learning rate rises from 0
    # Shape of the learning-rate schedule; linear decays from step 0 on, as BERT does
    schedule: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "warmup_stable_decay"] = "linear"
    decay_power: float = 1.0  # Power of the polynomial schedule
    decay_steps: int = 0  # Number of last steps over which the rate falls (warmup_stable_decay)
    decay_shape: Literal["linear", "1-sqrt"] = "linear"  # Shape of the fall (warmup_stable_decay; ModernBERT: 1-sqrt)
    final_share: float = 0.0  # Share of the peak learning rate at which the schedule ends
    beta1: float = 0.9  # Decay rate of the first moment (mean of gradients)
    beta2: float = 0.999  # Decay rate of the second moment (mean of squared gradients)
    muon_momentum: float = 0.95  # Decay rate of the mean of gradients of the layers' matrices (muon)
    eps: float = 1e-6  # Constant added to the denominator of an update
    weight_decay: float = 0.01  # Weight decay, times the learning rate at every step
    decay_all: bool = False  # Weight decay for biases and norms too (fairseq); BERT leaves them out
    clip_norm: float = 1.0  # Largest norm of the gradient over all parameters; 0: no clipping
    # Decay rate of an exponential moving average of the parameters, which `bertjax run average RUN --moving` writes as
    # a run. 0: none.
    average_decay: float = 0.0


OPTIMIZER_BOUNDS = {
    "learning_rate": POSITIVE,
    "warmup_steps": NOT_NEGATIVE,
    "decay_power": POSITIVE,
    "decay_steps": NOT_NEGATIVE,
    "final_share": SHARE,
    "beta1": PROPER_SHARE,
    "beta2": PROPER_SHARE,
    "muon_momentum": PROPER_SHARE,
    "average_decay": PROPER_SHARE,
    "eps": POSITIVE,
    "weight_decay": NOT_NEGATIVE,
    "clip_norm": NOT_NEGATIVE,
}


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise ValueError for a value outside its bounds, or for options that another schedule needs."""
    check_bounds(optimizer, "optimizer", OPTIMIZER_BOUNDS)
    for name, default in (("decay_shape", "linear"), ("decay_steps", 0)):
        value = getattr(optimizer, name)
        if value != default and optimizer.schedule != "warmup_stable_decay":
            raise ValueError(
                f"optimizer.{name}={value!r} requires optimizer.schedule='warmup_stable_decay', not "
                f"{optimizer.schedule!r}; leave it at {default!r}"
            )


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: its length, the size of a step, and how often it logs, evaluates and saves (periods in steps)."""

    steps: int = changes_with_notice(1_000_000, _OTHER_END)  # Number of update steps of the whole run
    # Time limit for the whole run (90s, 10m, 2h, 1d), which sets the number of steps; empty: training.steps
    budget: str = may_change("")
    global_batch_size: int = 256  # Number of rows in a step, over all devices
    # Number of microbatches in a step, computed one after the other to save memory. auto: the fewest that fit the
    # devices, with more of execution.remat and gather if necessary; decided once, when the run begins.
    grad_accum_steps: int | Literal["auto"] = changes_with_notice(
        "auto", "sums are taken in another order, so the last bits may differ"
    )
    objectives: tuple[str, ...] = ("mlm", "nsp")  # Pretraining objectives, whose losses are added
    objective_weights: tuple[float, ...] = ()  # Weights of the losses, one for each objective; empty: 1 (rtd: 50)
    seed: int = 0  # Seed of initial weights, pairs, masks and dropout
    log_every: int = may_change(100)  # Number of steps between log lines
    eval_every: int = may_change(10_000)  # Number of steps between evaluations on held-out text
    eval_rows: int = changes_with_notice(8_192, _OTHER_ROWS)  # Number of held-out rows in an evaluation
    checkpoint_every: int = may_change(5_000)  # Number of steps between checkpoints
    keep_last: int = may_change(2)  # Number of newest checkpoints to keep
    keep_every: int = may_change(0)  # Multiple of steps whose checkpoints are never deleted; 0: none
    max_skipped_updates: int = may_change(20)  # Number of non-finite updates in a row that stop the run
    verify_every: int = may_change(0)  # Period of steps that are computed twice to compare their bits; 0: never
    digest_every: int = may_change(0)  # Number of steps between comparisons of the replicas' bits; 0: never
    # Skipped batches as STEP+COUNT: from step STEP on, counted from 0, COUNT batches are left out
    skips: tuple[str, ...] = changes_with_notice((), "the batches differ from the changed step on")
    # Height of a loss spike in robust deviations above the loss before it; the run then goes back to the checkpoint
    # before the spike and skips its batches, which it records in training.skips. 0: never.
    spike_deviations: float = changes_with_notice(0.0, "loss spikes from here on are handled differently")

    @property
    def microbatches(self) -> int:
        """The number of microbatches in a step. Raises ValueError while it is `auto` (see training/memory_fit.py)."""
        if self.grad_accum_steps == "auto":
            raise ValueError(
                "training.grad_accum_steps='auto' is decided when a run or a plan begins, but not here; give a number"
            )
        return self.grad_accum_steps

    @property
    def rows_at_a_time(self) -> int:
        """The number of rows in a microbatch, over all devices. Raises ValueError as `microbatches` does."""
        return self.global_batch_size // self.microbatches


TRAINING_BOUNDS = {
    "steps": COUNT,
    "global_batch_size": COUNT,
    "grad_accum_steps": COUNT,
    "log_every": COUNT,
    "eval_every": COUNT,
    "eval_rows": COUNT,
    "checkpoint_every": COUNT,
    "keep_last": COUNT,
    "keep_every": NOT_NEGATIVE,
    "max_skipped_updates": COUNT,
    "verify_every": NOT_NEGATIVE,
    "digest_every": NOT_NEGATIVE,
    "spike_deviations": NOT_NEGATIVE,
}


def check_training(training: TrainingConfig) -> None:
    """Raise ValueError for a value outside its bounds, or for options that exclude each other."""
    check_bounds(training, "training", TRAINING_BOUNDS)
    if training.grad_accum_steps != "auto" and training.global_batch_size % training.grad_accum_steps:
        raise ValueError(
            f"training.global_batch_size={training.global_batch_size} is not divisible by "
            f"training.grad_accum_steps={training.grad_accum_steps}; change one of them"
        )
    if training.budget:
        budget_seconds(training.budget)
    parse_skips(training.skips)
    if training.spike_deviations and training.budget:
        raise ValueError(
            f"training.spike_deviations={training.spike_deviations:g} excludes training.budget={training.budget!r}, "
            "which leaves no time for repeated steps; give training.steps instead, or leave it 0"
        )


@dataclass(frozen=True)
class DistillationConfig:
    """The frozen network that a run learns from, if one of its objectives needs one."""

    # Teacher: RUN, hf:DIR, hf:NAME or tf1:DIR; a run resumes only with the same weights
    teacher: str = may_change("")
    temperature: float = 2.0  # Temperature at which the probabilities of both networks are compared


@dataclass(frozen=True)
class ProbeConfig:
    """Optional measurements at evaluations, besides held-out losses."""

    pairs: tuple[str, ...] = may_change(())  # Files or folders of minimal pairs in the format of BLiMP
    attention: bool = may_change(False)  # Measurement of six attention patterns in held-out text
    tags: str = may_change("")  # File of tagged words, to fit a linear classifier on every layer
    sample: int = may_change(200)  # Largest number of pairs and sentences; a fifth of it for tagged sentences
    share: float = may_change(0.03)  # Share of the run's time for probes; evaluations beyond it skip them

    @property
    def time_share(self) -> float:
        """The share of the run's time that its probes may take; 0 if there are none."""
        return self.share if self.pairs or self.attention or self.tags else 0.0


DISTILLATION_BOUNDS = {
    "temperature": POSITIVE,
}
PROBE_BOUNDS = {
    "sample": Bounds(2),
    "share": Bounds(0, 1, above=True),
}


@dataclass(frozen=True)
class StageConfig:
    """A later stage of the run; None keeps the value of the stage before it. The optimizer state continues."""

    start: int  # First step of this stage, which ends where the next begins
    sequence_length: int | None = None  # Row length in tokens in this stage
    objectives: tuple[str, ...] | None = None  # Pretraining objectives in this stage, such as clm before mlm
    objective_weights: tuple[float, ...] | None = None  # Weights of the losses in this stage, one for each objective
    rows: RowKind | None = None  # Kind of rows in this stage
    pairs_per_row: int | None = None  # Largest number of pairs or texts in a packed row in this stage
    max_predictions: int | None = None  # Largest number of masked positions in a pair or text in this stage
    masking: str | None = None  # Unit of masking in this stage
    ngram_shares: tuple[float, ...] | None = None  # Shares of n-grams in this stage (masking ngrams)
    mask_probability: float | None = None  # Share of the tokens that are masked in this stage
    keep_share: float | None = None  # Share of masked positions that keep their token in this stage
    random_share: float | None = None  # Share of masked positions replaced by a random token in this stage
    mask_count: str | None = None  # Rule for the number of masked tokens in this stage
    weights: tuple[float, ...] | None = None  # Shares of the sources in this stage; 0 leaves a source out
    temperature: float | None = None  # Power of a source's tokens that gives its share in this stage
    active_sources: tuple[str, ...] | None = None  # Those of data.sources that this stage reads; empty: all
    global_batch_size: int | None = None  # Number of rows in a step of this stage, over all devices
    grad_accum_steps: int | Literal["auto"] | None = None  # Number of microbatches in a step of this stage, or auto
    learning_rate: float | None = None  # Peak of a new schedule that begins here; None continues the old one
    warmup_steps: int | None = None  # Number of warm-up steps of the new schedule
    decay_steps: int | None = None  # Number of decay steps of the new schedule (warmup_stable_decay)
    final_share: float | None = None  # Share of the peak at which the new schedule ends; 1 without warm-up: constant
    # Base of the rotation angles in this stage (context extension): of the layers without a window where
    # model.rope_theta_local is set, else of all layers
    rope_theta: float | None = None

    def changed_data(self, data: DataConfig) -> DataConfig:
        """The data of this stage, given the data of the stage before it."""
        shared = {field.name for field in dataclasses.fields(self)} & {
            field.name for field in dataclasses.fields(DataConfig)
        }
        changes = {name: value for name in shared if (value := getattr(self, name)) is not None}
        return dataclasses.replace(data, **changes)


@dataclass(frozen=True)
class Config:
    """All settings of a run. `data`, `optimizer` and `training` hold until the first of `stages` begins."""

    name: str = may_change("bert")  # Name of the run
    run_dir: str = may_change("")  # Folder or URL of the run; empty: runs/NAME
    # Model whose weights start this run at step 0: RUN, hf:DIR, hf:NAME or tf1:DIR
    init_from: str = changes_with_notice("", _ONLY_AT_STEP_0)
    # Layers of init_from that become this model's layers, from 0; empty: all, if both have as many
    init_layers: tuple[int, ...] = changes_with_notice((), _ONLY_AT_STEP_0)
    # Checkpoint to resume from; previous: the one before the newest, if that is damaged
    restore: Literal["newest", "previous"] = may_change("newest")
    log: tuple[str, ...] = may_change(("tensorboard",))  # Loggers besides metrics.jsonl: tensorboard, wandb, mlflow
    hooks: tuple[str, ...] = may_change(())  # Hooks that plug-ins registered, by name; called between steps
    # Plug-ins: files (my_file.py) and modules (my_package.module) that register objectives, sources, families, ...
    plugins: tuple[str, ...] = changes_with_notice((), "their code may compute something else")
    profile: str = may_change("")  # Steps to profile, as FIRST:LAST; a trace of them is written
    # Equal bits in every run on a GPU, which costs speed; other platforms always have them
    deterministic: bool = changes_with_notice(False, "the last bits of steps before and after may differ")
    compilation_cache: str = may_change("data/compiled")  # Folder for compiled programs; empty: no cache
    model: ModelConfig = field(default_factory=ModelConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    data: DataConfig = field(default_factory=DataConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    stages: tuple[StageConfig, ...] = ()  # Later stages of the run, each with other rows or another schedule

    @property
    def directory(self) -> str:
        """The directory of the run: a folder, or a URL in object storage."""
        return self.run_dir or f"runs/{self.name}"

    @property
    def stage_data(self) -> list[DataConfig]:
        """The data of each stage in order, beginning with `data`."""
        return list(itertools.accumulate(self.stages, lambda data, stage: stage.changed_data(data), initial=self.data))

    @property
    def stage_objectives(self) -> list[tuple[str, ...]]:
        """The objectives of each stage in order, beginning with `training.objectives`."""
        first = self.training.objectives
        return list(itertools.accumulate(self.stages, lambda names, stage: stage.objectives or names, initial=first))


C = TypeVar("C", bound=Config)


def validate(config: C) -> C:
    """Return the config if its values are valid together, on any machine.

    Raises ValueError for the first rule that is broken, with the key, its value and what to do: credentials in a URL,
    then the rules of each part, then those between parts.
    """
    refuse_credentials_within(dataclasses.asdict(config))
    check_model(config.model)
    check_execution(config.execution)
    check_data(config.data)
    check_optimizer(config.optimizer)
    check_training(config.training)
    check_bounds(config.distillation, "distillation", DISTILLATION_BOUNDS)
    check_bounds(config.probe, "probe", PROBE_BOUNDS)
    _check_rows(config)
    _check_schedule(config)
    if config.training.budget and config.probe.time_share == 1:
        raise ValueError(
            f"probe.share={config.probe.share:g} with training.budget={config.training.budget!r}: probes may take all "
            "of the time; lower the share"
        )
    if config.init_layers and not (config.init_from and len(config.init_layers) == config.model.num_hidden_layers):
        raise ValueError(
            f"init_layers={config.init_layers} requires init_from, and one layer for each of model.num_hidden_layers="
            f"{config.model.num_hidden_layers}; init_from={config.init_from!r}"
        )
    return config


def _check_rows(config: Config) -> None:
    """Check that the model can read the rows."""
    data, model = config.data, config.model
    if data.sequence_length > model.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length={data.sequence_length} is beyond the model's positions "
            f"(model.max_position_embeddings={model.max_position_embeddings}); shorten the rows or raise it"
        )
    if model.global_tokens == "first" and data.packing != "none":
        raise ValueError(
            f"model.global_tokens='first' excludes data.packing={data.packing!r}, because the starts of a row's "
            "sequences are unknown on the device; set data.packing='none', or model.global_tokens='marked', which "
            "marks no token in pretraining"
        )
    widest = (5 + 2 * model.random_blocks) * model.attention_block
    if model.attention_block and data.packing != "none" and data.sequence_length > widest:
        raise ValueError(
            f"data.packing={data.packing!r} excludes model.attention_block={model.attention_block} with "
            f"data.sequence_length={data.sequence_length}: blocks are counted from the start of a row, so a packed "
            "sequence would see other tokens than when it is alone; set data.packing='none' "
            "(data.rows='full_sentences' fills rows with one sequence)"
        )
    if (data.predict == "next") != model.causal:
        raise ValueError(
            f"data.predict={data.predict!r} with model.causal={model.causal}: a token must not see the tokens that it "
            "predicts; use 'next' with a causal model, 'masked' with any other"
        )
    masks_units = data.masking != DataConfig.masking or any(stage.masking for stage in config.stages)
    for name, default in (("segmenter", "none"), ("units", "")):
        value = getattr(data, name)
        if value != default and not masks_units:
            raise ValueError(
                f"data.{name}={value!r} has no effect with data.masking={data.masking!r}; mask whole words or units, "
                f"or leave data.{name} at {default!r}"
            )


def _check_schedule(config: Config) -> None:
    """Check that the phases of the schedule fit into the run."""
    optimizer, steps = config.optimizer, config.training.steps
    if optimizer.warmup_steps >= steps:
        raise ValueError(
            f"optimizer.warmup_steps={optimizer.warmup_steps} must be below training.steps={steps}; shorten the "
            "warm-up or train longer"
        )
    if optimizer.decay_steps and optimizer.warmup_steps + optimizer.decay_steps > steps:
        raise ValueError(
            f"optimizer.warmup_steps={optimizer.warmup_steps} and optimizer.decay_steps={optimizer.decay_steps} are "
            f"more than the {steps} steps of the schedule; shorten one of them or train longer"
        )


@dataclass(frozen=True)
class TaskConfig:
    """The task of fine-tuning. Recipes of the known tasks are in bertjax/finetune/tasks.py."""

    name: str = may_change("")  # Task: a known one (sst2, squad, ...) or a kind (classification, tagging, ...)
    data: str = may_change("")  # Folder of a known task's files, or tfds:glue/NAME
    train: str = may_change("")  # File of training examples
    dev: str = may_change("")  # File of development examples; empty: some of the training examples
    test: str = may_change("")  # File of test examples
    from_text: tuple[str, ...] = may_change(())  # Sources of plain text for vectors, as in data.sources
    # Rules for pairs from text: dropout, repetition, crops, ...; empty: noise for denoising; for vectors dropout, or
    # deletion if the model has no dropout
    positives: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()  # Sizes to which vectors may be cut (Matryoshka), besides the full size
    text: tuple[str, ...] = may_change(())  # Columns of the text: one, two, or a beginning and its endings
    label: str = may_change("")  # Column of the label
    id: str = may_change("")  # Column of the examples' ids
    labels: tuple[str, ...] = ()  # Labels in the order of the network's outputs; empty: those of the data, sorted
    class_weights: tuple[float, ...] = ()  # Weights of the loss, one for each label; empty: all 1
    balanced: bool = False  # Class weights that give every label the same total weight
    epochs: float = may_change(3.0)  # Number of passes over the training examples
    warmup: float = may_change(0.1)  # Share of the steps over which the learning rate rises from 0
    examples: int = may_change(0)  # Number of training examples to use, drawn by the seed; 0: all
    layer_decay: float = 1.0  # Factor from each layer's learning rate to that of the layer below
    # Number of evaluations without improvement after which training stops and keeps the best; 0: no early stopping
    patience: int = 0
    strict_length: bool = may_change(False)  # Refusal of texts longer than a row, instead of cutting or splitting them
    doc_stride: int = may_change(128)  # Number of tokens from one window of a text to the next
    max_query: int = may_change(64)  # Largest number of tokens in a question
    max_answer: int = may_change(30)  # Largest number of tokens in an answer
    n_best: int = may_change(20)  # Number of answers to keep for a question, and of starts and ends to try
    null_threshold: float = may_change(0.0)  # Margin in score by which "no answer" must beat the best answer
    temperature: float = 0.05  # Temperature of the contrastive loss
    distil: Literal["predictions", "layers"] = "predictions"  # Target of distillation, where there is a teacher

    @property
    def no_answer_threshold(self) -> float | None:
        """The null threshold of a task whose questions may have no answer; None if every question has one."""
        return self.null_threshold if self.name == "squad2" else None


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """A run that fine-tunes `init_from` for a task. training.steps=0 derives the steps from the task's epochs."""

    task: TaskConfig = field(default_factory=TaskConfig)
