"""A run: its devices and processes, its optimizer, its loop and stages, and all of it together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bertjax.config.data import DataConfig, RowKind
from bertjax.config.model import ExecutionConfig, ModelConfig
from bertjax.config.resume import changes_with_notice, may_change

_ONLY_AT_STEP_0 = "has no effect on a run that continues from its own checkpoint"


@dataclass(frozen=True)
class MeshConfig:
    """How many devices lie along each mesh axis; -1 takes what the others leave."""

    data: int = may_change(-1)
    fsdp: int = may_change(1)
    tensor: int = may_change(1)
    dcn_data: int = may_change(-1)  # of `data`, the factor that runs across slices; -1 takes what dcn_fsdp leaves
    dcn_fsdp: int = may_change(1)  # of `fsdp`, likewise; the product of both is the number of slices


@dataclass(frozen=True)
class HostsConfig:
    """How the processes of a run find each other, and how many there must be."""

    cluster: Literal["auto", "one", "tpu", "slurm", "kubernetes", "address"] = may_change("auto")  # one: no others
    coordinator: str = may_change("")  # HOST:PORT where process 0 listens; for `address`
    processes: int = may_change(0)  # that must join; 0: as many as the cluster says
    process: int = may_change(-1)  # the number of this one; -1: as the cluster says
    devices: int = may_change(0)  # that there must be in all; 0: any number
    join_seconds: int = may_change(300)  # for all processes to join
    heartbeat_seconds: int = may_change(20)  # after which a process that is silent is lost


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule; defaults are the paper's (appendix A.2) and google-research/bert's."""

    name: Literal["bert_adamw", "adamw", "lamb", "lamb_uncorrected", "stable_adamw"] = "bert_adamw"
    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    schedule: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "warmup_stable_decay"] = "linear"
    decay_power: float = 1.0  # of the polynomial schedule
    decay_steps: int = 0  # of warmup_stable_decay: the last steps, over which the rate falls to its end
    decay_shape: Literal["linear", "1-sqrt"] = "linear"  # of that fall (1-sqrt: ModernBERT)
    final_share: float = 0.0  # of the peak, at which every schedule ends
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_all: bool = False  # biases and LayerNorm parameters decay too (fairseq); the paper leaves them out
    clip_norm: float = 1.0  # of the global gradient; 0 = no clipping


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: how long, how much per step, and how often it logs, evaluates and saves (periods in steps)."""

    steps: int = changes_with_notice(1_000_000, "the learning rate decays to another end from here on")
    # Of time for the whole command (90s, 10m, 2h, 1d), from which the steps follow; empty: as many as `steps` says.
    budget: str = may_change("")
    # STEP:STEPS, from step STEP on the run ends at STEPS and the rest of the schedule is stretched to it.
    replans: tuple[str, ...] = changes_with_notice((), "the learning rate decays to another end from here on")
    global_batch_size: int = 256
    grad_accum_steps: int = changes_with_notice(1, "sums are taken in another order, so the last bits may differ")
    objectives: tuple[str, ...] = ("mlm", "nsp")
    objective_weights: tuple[float, ...] = ()  # of their losses in the total; empty: each its own (1; 50 for rtd)
    seed: int = 0
    log_every: int = may_change(100)
    eval_every: int = may_change(10_000)
    eval_rows: int = changes_with_notice(8_192, "evaluations before and after are over different rows")
    checkpoint_every: int = may_change(5_000)
    keep_last: int = may_change(2)
    keep_every: int = may_change(0)  # checkpoints whose step is a multiple are kept for good; 0 = none
    max_skipped_updates: int = may_change(20)  # non-finite updates in a row that stop the run
    verify_every: int = may_change(0)  # every so many steps one is computed again and its bits compared; 0 = never
    digest_every: int = may_change(0)  # every so many steps, and before saves, replicas are compared; 0 = never
    # STEP+COUNT, from step STEP on, counted from 0, the batches are those COUNT further on: COUNT are skipped.
    skips: tuple[str, ...] = changes_with_notice((), "the batches from the changed step on are others")
    # A mean loss between two log lines so many robust deviations above those before is a spike: the run goes back to
    # the checkpoint before it and skips its rows, which it records in `skips`; 0 = never.
    spike_deviations: float = changes_with_notice(0.0, "spikes from here on are answered otherwise")

    @property
    def rows_at_a_time(self) -> int:
        """Of a microbatch, over all devices."""
        return self.global_batch_size // self.grad_accum_steps


@dataclass(frozen=True)
class DistillationConfig:
    """The frozen network that a run learns from, if one of its objectives needs one."""

    # RUN, hf:DIR, hf:NAME or tf1:DIR. A run resumes with the weights that it began with, wherever they lie.
    teacher: str = may_change("")
    temperature: float = 2.0  # at which the probabilities of both networks are compared


@dataclass(frozen=True)
class ProbeConfig:
    """What is measured of the model at evaluations besides held-out losses; by default nothing."""

    pairs: tuple[str, ...] = may_change(())  # files of minimal pairs as BLiMP's, or folders of them
    attention: bool = may_change(False)  # how clearly some head shows each of six patterns in held-out text
    tags: str = may_change("")  # a file of tagged words, on which a linear classifier is fitted to every layer
    sample: int = may_change(200)  # pairs of a probe at most, sentences of held-out text, and a fifth of tagged ones
    share: float = may_change(0.03)  # of the time, as far as is expected; evaluations in between go without


@dataclass(frozen=True)
class StageConfig:
    """A later stretch of the run with other rows; None keeps what was. The optimizer's state goes on through it."""

    start: int  # the step it begins at; it ends where the next begins, or with the run
    sequence_length: int | None = None
    rows: RowKind | None = None
    pairs_per_row: int | None = None
    max_predictions: int | None = None
    masking: str | None = None
    global_batch_size: int | None = None
    grad_accum_steps: int | None = None
    learning_rate: float | None = None  # peak of a schedule that begins here; None continues with the one that runs
    warmup_steps: int | None = None  # of that schedule
    decay_steps: int | None = None  # of that schedule, where it is warmup_stable_decay
    final_share: float | None = None  # of that schedule; 1 with no warm-up is a constant rate
    # From here on `model.rope_theta`, the base of the angles: of the layers without a window where
    # `model.rope_theta_local` is set, else of all (context extension). No array depends on it.
    rope_theta: float | None = None


@dataclass(frozen=True)
class Config:
    """One run, whole. `data`, `optimizer` and `training` describe it up to where the first of `stages` begins."""

    name: str = may_change("bert")
    run_dir: str = may_change("")  # a folder or a URL; empty: runs/<name>
    # RUN, hf:DIR, hf:NAME or tf1:DIR, whose weights start this run at step 0.
    init_from: str = changes_with_notice("", _ONLY_AT_STEP_0)
    # Of init_from, the layers that those of this model start as, counted from 0; empty: all of as many.
    init_layers: tuple[int, ...] = changes_with_notice((), _ONLY_AT_STEP_0)
    restore: Literal["newest", "previous"] = may_change("newest")  # previous: when the newest checkpoint is damaged
    log: tuple[str, ...] = may_change(("tensorboard",))  # besides metrics.jsonl; --log wandb, --log mlflow add others
    profile: str = may_change("")  # FIRST:LAST, the steps to write a trace of
    # On a GPU: the same bits in every run, at some cost; on other platforms they always are.
    deterministic: bool = changes_with_notice(False, "the steps before and after need not have the same last bits")
    compilation_cache: str = may_change("data/compiled")  # compiled programs are kept here; empty: nothing is kept
    model: ModelConfig = field(default_factory=ModelConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    data: DataConfig = field(default_factory=DataConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    stages: tuple[StageConfig, ...] = ()

    @property
    def directory(self) -> str:
        """Where the run lives: a folder, or a URL in object storage."""
        return self.run_dir or f"runs/{self.name}"


@dataclass(frozen=True)
class TaskConfig:
    """What a model is fine-tuned for. Recipes of the known tasks are in bertjax/finetune/tasks.py."""

    name: str = may_change("")  # a known task (sst2, squad, ...), or a kind of your own (classification, tagging, ...)
    data: str = may_change("")  # the folder of a known task's files, or tfds:glue/NAME
    train: str = may_change("")  # of one's own task: a file
    dev: str = may_change("")
    test: str = may_change("")
    text: tuple[str, ...] = may_change(())  # columns of that file: a text, two texts, or a beginning and its endings
    label: str = may_change("")
    id: str = may_change("")
    labels: tuple[str, ...] = ()  # in the order of the network's outputs; empty: those of the training data, sorted
    class_weights: tuple[float, ...] = ()  # of the loss, one for each label; empty: all weigh 1
    balanced: bool = False  # weights by which every label counts the same over the training data
    epochs: float = may_change(3.0)
    warmup: float = may_change(0.1)  # share of the steps
    examples: int = may_change(0)  # of the training data that many, drawn by the seed; 0: all
    layer_decay: float = 1.0  # the rate of each layer is that of the one above it times this
    patience: int = 0  # evaluations without a better one that end the training; the best is kept then. 0: no end
    strict_length: bool = may_change(False)  # refuse what is longer than a row, instead of cutting or splitting it
    doc_stride: int = may_change(128)  # tokens from one window of a text to the next
    max_query: int = may_change(64)  # tokens of a question
    max_answer: int = may_change(30)  # tokens of an answer
    n_best: int = may_change(20)  # of a question that many answers are kept, of as many likeliest starts and ends
    null_threshold: float = may_change(0.0)  # how much better no answer has to score than the best one
    temperature: float = 0.05  # of the contrastive loss
    distil: Literal["predictions", "layers"] = "predictions"  # what is learned from a teacher, if there is one

    @property
    def no_answer_threshold(self) -> float | None:
        """The null threshold of a task whose questions may have no answer; None where every text has one."""
        return self.null_threshold if self.name == "squad2" else None


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """A run that fine-tunes `init_from` for a task. With training.steps=0 they come from the task's epochs."""

    task: TaskConfig = field(default_factory=TaskConfig)
