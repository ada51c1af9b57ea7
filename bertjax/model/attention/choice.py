"""The choice of the attention backend: what each supports, and where it is faster.

Nothing here depends on the machine that runs it, because a step may be compiled for another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention import windows
from bertjax.model.attention.block_sparse import is_sparse
from bertjax.model.attention.kernels import (
    MOSAIC_BLOCKS,
    MOSAIC_HEAD_DIM,
    MOSAIC_LENGTHS,
    MOSAIC_LONGEST_RELATIVE,
    mosaic_memory,
)
from bertjax.model.attention.self_attention import layer_windows

FUSED_FROM = 512  # minimum tokens of a row; in shorter rows the probabilities are small and XLA is as fast
CUDNN_HEAD_DIM = 128  # maximum dims of a head; Hopper supports 256
CUDNN_PACKED_FROM = (0, 11, 2)  # first jax whose backward pass with a mask computes no gradient of the mask
CUDNN_CAPABILITY = (8, 0)  # minimum CUDA compute capability: Ampere
_PLAN_CAPABILITIES = {"H100": "9.0", "H200": "9.0", "B200": "10.0"}  # by a part of the device kind
ChosenBackend = Literal["xla", "cudnn", "mosaic"]
# By jax's name of the platform, best first.
FUSED: dict[str, tuple[ChosenBackend, ...]] = {"tpu": ("mosaic",), "gpu": ("cudnn",), "cuda": ("cudnn",)}


def compute_capability(device: Any) -> str | None:
    """The device property that `choose_attention` needs: the compute capability of a GPU, or the kind of a TPU.

    In jax the compute capability is a number like "9.0" for NVIDIA GPUs, and a name for others. It is None for other
    devices.
    """
    if device.platform == "tpu":
        return device.device_kind
    capability = getattr(device, "compute_capability", None)
    if capability is not None or device.platform not in ("gpu", "cuda"):
        return capability
    return next((number for name, number in _PLAN_CAPABILITIES.items() if name in device.device_kind), None)


@dataclass(frozen=True)
class AttentionChoice:
    """A backend and the reason for it."""

    backend: ChosenBackend
    reason: str

    def __str__(self) -> str:
        return f"{self.backend} ({self.reason})"


@dataclass(frozen=True)
class Hindrance:
    """Why a backend cannot be used, and what to change."""

    reason: str
    remedy: str


def choose_attention(
    model: ModelConfig,
    execution: ExecutionConfig,
    platform: str,
    length: int,
    packed: bool,
    capability: str | None,
    jax_version: tuple[int, ...] = jax.__version_info__,
) -> AttentionChoice:
    """Choose the backend for rows of `length` tokens in a step compiled for a platform (cpu, gpu or cuda, tpu).

    mosaic computes windows itself. With xla and cudnn (which lacks windows), layers with a window use XLA: in blocks if
    rows are longer than what a block sees, else as in `attend`. Global tokens use XLA, chosen blocks mosaic or XLA.
    `capability` is the `compute_capability` of the devices.
    Raises ValueError if `execution.attention` names a backend that cannot be used, with the reason and the remedy.
    """
    chosen = _choose(model, execution, platform, length, packed, capability, jax_version)
    if _sees_blocks(model, length, packed):
        return replace(chosen, reason=f"{chosen.reason}; blocks of {model.attention_block} tokens")
    if chosen.backend in FUSED["tpu"] or not any(
        window and windows.pays(length, window) for window in layer_windows(model)
    ):
        return chosen
    return replace(chosen, reason=f"{chosen.reason}; windows of {model.window} in XLA by blocks")


def _choose(
    model: ModelConfig,
    execution: ExecutionConfig,
    platform: str,
    length: int,
    packed: bool,
    capability: str | None,
    jax_version: tuple[int, ...],
) -> AttentionChoice:
    requested = execution.attention
    if requested == "xla":
        return AttentionChoice("xla", "set by execution.attention")
    candidates = FUSED.get(platform, ()) if requested == "auto" else (requested,)
    if not candidates:
        return AttentionChoice("xla", f"the only backend for {platform}")
    hindrances = []
    for backend in candidates:
        hindrance = _hindrance(backend, model, execution, platform, length, packed, capability, jax_version)
        if requested != "auto":
            if hindrance is not None:
                raise ValueError(
                    f"execution.attention={requested!r}: {hindrance.reason}; {hindrance.remedy}, or use 'auto'"
                )
            return AttentionChoice(backend, "set by execution.attention")
        if hindrance is not None:
            hindrances.append(hindrance.reason)
        elif length < FUSED_FROM:
            return AttentionChoice("xla", f"rows of {length} tokens; {backend} is for {FUSED_FROM} or more")
        else:
            return AttentionChoice(backend, f"rows of {length} tokens on {platform}")
    return AttentionChoice("xla", "; ".join(dict.fromkeys(hindrances)))


def _hindrance(
    backend: str,
    model: ModelConfig,
    execution: ExecutionConfig,
    platform: str,
    length: int,
    packed: bool,
    capability: str | None,
    jax_version: tuple[int, ...],
) -> Hindrance | None:
    """The first reason why a fused backend cannot be used, or None."""
    if backend not in FUSED.get(platform, ()):
        where = "an NVIDIA GPU" if backend == "cudnn" else "a TPU"
        return Hindrance(f"it runs on {where}, and this is compiled for {platform}", "set execution.attention='xla'")
    if model.attention_probs_dropout_prob > 0 and backend != "mosaic":
        return Hindrance(
            f"attention dropout {model.attention_probs_dropout_prob:g} needs the probabilities",
            "set model.attention_probs_dropout_prob=0",
        )
    if model.position_embedding in ("relative", "alibi") and backend != "mosaic":
        return Hindrance(
            f"model.position_embedding={model.position_embedding!r} adds to the scores; {backend} cannot do that",
            "set execution.attention='xla'",
        )
    if model.score_bias_buckets:
        return Hindrance(
            f"model.score_bias_buckets={model.score_bias_buckets} adds to the scores; {backend} cannot do that",
            "set execution.attention='xla'",
        )
    sees_blocks = _sees_blocks(model, length, packed)
    if model.global_tokens == "first" or (sees_blocks and backend != "mosaic"):
        return Hindrance(
            f"model.global_tokens={model.global_tokens!r} and model.attention_block={model.attention_block} in rows of "
            f"{length} tokens are computed by XLA",
            "set execution.attention='xla'",
        )
    if backend == "mosaic":
        return _mosaic_hindrance(model, execution, length, capability, sees_blocks)
    return _device_hindrance(capability) or _cudnn_hindrance(model, execution, length, packed, jax_version)


def _sees_blocks(model: ModelConfig, length: int, packed: bool) -> bool:
    """Whether tokens in such rows see chosen blocks and not all of their sequence."""
    block, random = model.attention_block, model.random_blocks
    return block > 0 and not packed and is_sparse(length, block, random)


def _device_hindrance(capability: str | None) -> Hindrance | None:
    number = re.fullmatch(r"(\d+)\.(\d+)", capability or "")
    if number and tuple(map(int, number.groups())) >= CUDNN_CAPABILITY:
        return None
    needed = ".".join(map(str, CUDNN_CAPABILITY))
    return Hindrance(
        f"cudnn needs an NVIDIA GPU of compute capability {needed} or more, and this one has {capability or 'none'}",
        "set execution.attention='xla'",
    )


def _mosaic_hindrance(
    model: ModelConfig, execution: ExecutionConfig, length: int, device_kind: str | None, sees_blocks: bool
) -> Hindrance | None:
    if sees_blocks and model.attention_block not in MOSAIC_BLOCKS:
        known = " or ".join(map(str, MOSAIC_BLOCKS))
        return Hindrance(
            f"mosaic takes blocks of {known} tokens, not {model.attention_block}", "change model.attention_block"
        )
    memory, relative = mosaic_memory(device_kind), model.position_embedding == "relative"
    whole = memory.longest_whole(4 if execution.dtype == "float32" else 2)
    longest = min(MOSAIC_LONGEST_RELATIVE, whole) if relative else whole if sees_blocks else memory.longest
    if length % MOSAIC_LENGTHS or length > longest:
        return Hindrance(
            f"mosaic takes rows of a multiple of {MOSAIC_LENGTHS} tokens up to {longest:,}, not {length}",
            "change data.sequence_length",
        )
    head_dim = model.hidden_size // model.num_attention_heads
    if head_dim > MOSAIC_HEAD_DIM:
        return Hindrance(
            f"mosaic takes heads of at most {MOSAIC_HEAD_DIM} dims, not {head_dim}", "change model.num_attention_heads"
        )
    return None


def _cudnn_hindrance(
    model: ModelConfig, execution: ExecutionConfig, length: int, packed: bool, jax_version: tuple[int, ...]
) -> Hindrance | None:
    head_dim = model.hidden_size // model.num_attention_heads
    if all(layer_windows(model)):
        # jax.nn.dot_product_attention refuses a window to the right (jax 0.10.2); with a mask it computes every score.
        return Hindrance(
            f"model.window={model.window}: cudnn does not support two-sided windows", "set execution.attention='xla'"
        )
    if execution.dtype != "bfloat16":
        return Hindrance(f"cudnn computes in bfloat16, not {execution.dtype}", "set execution.dtype='bfloat16'")
    if head_dim % 8 or head_dim > CUDNN_HEAD_DIM:
        return Hindrance(
            f"cudnn takes heads of a multiple of 8 and at most {CUDNN_HEAD_DIM} dims, not {head_dim}",
            "change model.num_attention_heads",
        )
    if packed and jax_version < CUDNN_PACKED_FROM:
        installed, required = (".".join(map(str, version)) for version in (jax_version, CUDNN_PACKED_FROM))
        return Hindrance(
            f"with packed rows cudnn needs jax {required}, and this is {installed}",
            "update jax or set data.packing='none'",
        )
    if packed and length % 2:
        return Hindrance(f"cudnn takes packed rows of an even length only, not {length}", "change data.sequence_length")
    return None
