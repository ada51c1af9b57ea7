"""The sides of a train step benchmark, bertjax and transformers with torch, each in its own process.

Both have the same batches and do forward, backward, clip and update, with parameters in float32.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import numpy as np

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, MeshConfig, ModelConfig, OptimizerConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.runtime.host_memory import keep_freed_memory
from bertjax.text.pool import cores
from bertjax.training.objectives import choose
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.state import draw_blueprint, init_state
from bertjax.training.step import make_train_step

# The settings of `keep_freed_memory` as environment variables of glibc.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 62), "MALLOC_TOP_PAD_": str(64 << 20)}

Run = Callable[[int], None]  # runs that many steps and waits for them

# The first module of the MLM head of transformers' classes, for families whose head can be restricted to some
# positions. (ModernBERT has an option for that; ELECTRA samples from all logits.)
HEADS = {
    "bert": "cls.predictions",
    "albert": "predictions",
    "distilbert": "vocab_transform",
    "longformer": "lm_head",
    "bigbird": "cls",
    "deberta": "lm_predictions",
}


@dataclass(frozen=True)
class Work:
    """The model, batch and settings of a train step."""

    model: ModelConfig
    rows: int
    objectives: tuple[str, ...] = ("mlm", "nsp")
    length: int = 128
    predictions: int = 20  # slots per row; one in twenty is unused
    pairs: int = 1  # packed sentence pairs per row
    filled: float = 1.0  # average share of text in a row; the rest is padding
    device: str = "cpu"  # for torch; jax uses its default device
    compiled: bool = False  # with torch.compile
    gathered: bool = False  # torch's MLM head computes only predicted positions, like ours
    deterministic: bool = False
    execution: ExecutionConfig = DEFAULT_EXECUTION

    @property
    def tokens(self) -> int:
        """The real tokens of a batch."""
        return int(self.batch()["sequence_ids"].astype(bool).sum())

    def batch(self) -> dict[str, np.ndarray]:
        """Random ids in rows of one or several pairs of segments."""
        rng = np.random.default_rng(0)
        rows, length = self.rows, self.length
        used = np.full((rows, 1), length)
        if self.filled < 1:
            least = max(8 * self.pairs, round(length * (2 * self.filled - 1)))
            used = rng.integers(least, length + 1, (rows, 1))
        place = np.arange(length)
        sequence_ids = np.where(place < used, 1 + place * self.pairs // length, 0)
        begins, two_types = np.arange(self.pairs) * length // self.pairs, self.model.type_vocab_size > 1
        inside = place - begins[np.maximum(sequence_ids, 1) - 1]
        ids = np.where(sequence_ids > 0, rng.integers(1000, self.model.vocab_size, (rows, length)), 0)
        candidates = np.tile(np.arange(1, min(length, int(used.min())) - 1), (rows, 1))
        positions = np.sort(rng.permuted(candidates, axis=1)[:, : self.predictions], axis=1)
        weights = np.ones(positions.shape, np.float32)
        weights[:, :: max(20, positions.shape[1])] = 0
        integers = {
            "input_ids": ids,
            "token_type_ids": (sequence_ids > 0) & (inside >= length // self.pairs // 2) & two_types,
            "sequence_ids": sequence_ids,
            "mlm_positions": positions,
            "mlm_labels": np.take_along_axis(ids, positions, axis=1),
            "cls_positions": np.tile(begins, (rows, 1)),
            "pair_labels": rng.integers(0, 2, (rows, self.pairs)),
        }
        floats = {"mlm_weights": weights, "pair_weights": np.ones((rows, self.pairs), np.float32)}
        if "rtd" in self.objectives:
            floats["rtd_weights"] = (sequence_ids > 0).astype(np.float32)
            floats["rtd_draws"] = rng.integers(1 << 32, size=weights.shape, dtype=np.uint32)
        return {name: x.astype(np.int32) for name, x in integers.items()} | floats


def make_bertjax_run(work: Work) -> Run:
    """bertjax's train step on one device."""
    keep_freed_memory()  # as the trainer does
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    settings = OptimizerConfig()
    optimizer = make_optimizer(settings)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(work.model, optimizer, mesh, work.execution)
        state = init_state(blueprint, work.model, optimizer, 0)
        step = make_train_step(
            blueprint,
            choose(work.objectives),
            optimizer,
            make_schedule(settings, 1_000_000),
            clip_norm=1.0,
            grad_accum_steps=1,
            dropout_seed=0,
            deterministic=work.deterministic,
        )
        data = to_global(mesh, work.batch())

    def run(count: int) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            for _ in range(count):
                state, metrics = step(state, data)
            assert np.isfinite(float(metrics["loss"]))

    return run


def dense_labels(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """The labels of a batch for transformers, int64 [B, L]; -100 without a prediction."""
    labels = np.full(batch["input_ids"].shape, -100)
    rows, slots = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    return labels


def make_transformers_run(work: Work) -> Run:
    """The train step of transformers' class with SDPA and torch's AdamW; bfloat16 by autocast."""
    import torch
    from their_pretraining import predict_where_labelled, pretraining

    keep_freed_memory()  # helps both sides
    batch = work.batch()
    assert work.pairs == 1, "transformers does not support packed rows"
    network, loss_of = pretraining(work.model)
    network = network.to(work.device).train()
    torch.set_num_threads(cores())  # overrides OMP_NUM_THREADS
    torch.set_float32_matmul_precision("high")
    # Fused, as in transformers' Trainer. Even on a CPU an unfused update takes several times as long.
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    forward = torch.compile(loss_of) if work.compiled else loss_of
    inputs = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "labels": dense_labels(batch),
        "pair_labels": batch["pair_labels"][:, 0],
    }
    if (batch["sequence_ids"] == 0).any():  # SDPA is fastest without a mask
        inputs["attention_mask"] = batch["sequence_ids"]
    inputs = {name: torch.tensor(x, dtype=torch.long, device=work.device) for name, x in inputs.items()}
    if work.gathered:
        inputs["labels"] = predict_where_labelled(network, work.model.family, inputs["labels"])

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast(work.device, torch.bfloat16, enabled=work.execution.dtype == "bfloat16"):
                loss = forward(inputs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        assert np.isfinite(loss.item())

    return run


SIDES = {"bertjax": make_bertjax_run, "transformers": make_transformers_run}


class Side:
    """A side in its own process, so that the sides do not share threads and memory."""

    def __init__(self, side: str, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(side, work, child_end), daemon=True)
        self.process.start()
        child_end.close()
        self.times: list[float] = []  # seconds per step of each turn

    def ready(self) -> str:
        """Wait until the step is compiled; returns the device's name. Raises EOFError if the process died."""
        return self.pipe.recv()

    def turn(self, steps: int) -> float:
        """Run `steps` steps; returns the seconds per step."""
        self.pipe.send(steps)
        self.times.append(self.pipe.recv() / steps)
        return self.times[-1]

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


def write_work(work: Work, path: Path, *, keeps_memory: bool = False) -> None:
    """Write the input of their_keras.py: the arrays of the batch, the sizes of the network, and settings."""
    sizes = {f"size_{name}": value for name, value in vars(work.model).items() if type(value) is int}
    settings = {"dropout": work.model.hidden_dropout_prob, "bfloat16": work.execution.dtype == "bfloat16"}
    np.savez(path, **work.batch(), **sizes, **settings, keeps_memory=keeps_memory)


class KerasSide(Side):
    """KerasHub on jax, in a separate interpreter, with or without our allocator settings.

    Raises ValueError for another model than BERT, and for an interpreter without KerasHub.
    """

    def __init__(self, python: str, work: Work, *, keeps_memory: bool) -> None:
        if work.model.family != "bert" or work.objectives != ("mlm", "nsp"):
            raise ValueError(f"KerasHub is compared with BERT for MLM and NSP, not with {work.model.family}")
        imports = "import keras_hub, jax"
        if subprocess.run([python, "-c", imports], capture_output=True, check=False).returncode:
            raise ValueError(f"{python} cannot `{imports}`; install them there: {python} -m pip install keras-hub jax")
        self._folder = tempfile.TemporaryDirectory(prefix="bertjax-keras-")
        write_work(work, Path(self._folder.name, "work.npz"), keeps_memory=keeps_memory)
        environment = os.environ | (_KEEP_FREED_MEMORY if keeps_memory else {}) | {"KERAS_HOME": self._folder.name}
        script = str(Path(__file__).with_name("their_keras.py"))
        self.program = subprocess.Popen(
            [python, script, f"{self._folder.name}/work.npz"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in environment.items() if key != "PYTHONPATH"},
        )
        self.times = []

    def ready(self) -> str:
        """Wait until the step is compiled; returns the versions. Raises EOFError if the process died."""
        return self._line()

    def turn(self, steps: int) -> float:
        """Run `steps` steps; returns the seconds per step."""
        assert self.program.stdin is not None
        print(steps, file=self.program.stdin, flush=True)
        self.times.append(float(self._line()) / steps)
        return self.times[-1]

    def close(self) -> None:
        """End the process."""
        self.program.kill()
        self.program.wait()
        self._folder.cleanup()

    def _line(self) -> str:
        assert self.program.stdout is not None
        if line := self.program.stdout.readline():
            return line.strip()
        raise EOFError("KerasHub's process has ended")


def _serve(side: str, work: Work, pipe: Connection) -> None:
    run = SIDES[side](work)
    run(2)
    pipe.send(jax.devices()[0].device_kind if side == "bertjax" else work.device)
    while True:
        steps = pipe.recv()
        start = time.perf_counter()
        run(steps)
        pipe.send(time.perf_counter() - start)
