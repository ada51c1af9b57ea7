"""How a network is computed: what changes speed, memory or the last bits, and never the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.resume import changes_with_notice, may_change

_OTHER_ORDER = "sums are taken in another order, so the last bits may differ"


@dataclass(frozen=True)
class ExecutionConfig:
    """Two runs that differ here alone train the same model."""

    # Of the computation; parameters, moments, LayerNorm statistics, softmax and losses are float32 in any case.
    dtype: Literal["float32", "bfloat16"] = changes_with_notice(
        "float32", "the steps from here on are computed in another precision"
    )
    remat: Literal["none", "dots", "full"] = may_change("none")  # what the backward pass recomputes
    scan_unroll: int = may_change(1)  # periods of layers per iteration of the scan; all of them unrolls it
    logits_chunk: int = changes_with_notice(1024, _OTHER_ORDER)  # predictions whose logits exist at a time
    # The attention back end; auto chooses by platform, row length and what the model asks.
    attention: Literal["auto", "xla", "cudnn", "splash"] = changes_with_notice("auto", _OTHER_ORDER)


DEFAULT_EXECUTION = ExecutionConfig()  # float32, the reference attention on a CPU, nothing recomputed
