"""The numbers that single keys of a config may have."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_MOST = sys.float_info.max
LARGEST_VOCABULARY = 1 << 22  # entries; the largest published vocabulary of an encoder has 501,153


@dataclass(frozen=True)
class Bounds:
    """The numbers that a key may have, as `low <= value <= high`; NaN is in no bounds."""

    low: float
    high: float = _MOST
    above: bool = False  # `low` itself is not allowed
    below: bool = False  # nor is `high`

    def hold(self, value: float) -> bool:
        """Whether a value lies inside."""
        is_low = value > self.low if self.above else value >= self.low
        return is_low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == _MOST:
            return f"a finite number above {self.low:g}" if self.above else f"a finite number of at least {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:,}, {self.high:,}{')' if self.below else ']'}"


_COUNT = Bounds(1)
_NOT_NEGATIVE = Bounds(0)
_SHARE = Bounds(0, 1)
_PROPER_SHARE = Bounds(0, 1, below=True)

BOUNDS: dict[str, Bounds] = {
    "model.hidden_size": _COUNT,
    "model.num_hidden_layers": _COUNT,
    "model.num_attention_heads": _COUNT,
    "model.intermediate_size": _COUNT,
    "model.max_position_embeddings": _COUNT,
    "model.type_vocab_size": _NOT_NEGATIVE,
    "model.task_type_vocab_size": _NOT_NEGATIVE,
    "model.embedding_size": _NOT_NEGATIVE,
    "model.layer_groups": _NOT_NEGATIVE,
    "model.window": _NOT_NEGATIVE,
    "model.global_every": _NOT_NEGATIVE,
    "model.attention_block": _NOT_NEGATIVE,
    "model.random_blocks": _NOT_NEGATIVE,
    "model.random_blocks_seed": Bounds(-1, (1 << 32) - 1),
    "model.rope_theta": Bounds(0, above=True),
    "model.rope_theta_local": _NOT_NEGATIVE,
    "model.generator_width": _SHARE,
    "model.generator_layers": _NOT_NEGATIVE,
    "model.relative_max": _NOT_NEGATIVE,
    "model.relative_buckets": _NOT_NEGATIVE,
    "model.conv_kernel": _NOT_NEGATIVE,
    "model.teacher_width": _NOT_NEGATIVE,
    "model.hidden_dropout_prob": _PROPER_SHARE,
    "model.classifier_dropout_prob": Bounds(-1, 1, below=True),
    "model.attention_probs_dropout_prob": _PROPER_SHARE,
    "model.initializer_range": Bounds(0, above=True),
    "model.layer_norm_eps": Bounds(0, above=True),
    "model.lstm_size": _NOT_NEGATIVE,
    "model.vocab_pad_multiple": _COUNT,
    "execution.scan_unroll": _COUNT,
    "execution.logits_chunk": _COUNT,
    "data.vocab_size": Bounds(1, LARGEST_VOCABULARY),
    "data.vocab_temperature": _SHARE,
    "data.temperature": _SHARE,
    "data.held_out": _PROPER_SHARE,
    "data.workers": _NOT_NEGATIVE,
    "data.pairs_per_row": _COUNT,
    "data.max_predictions": _COUNT,
    "data.mask_probability": _PROPER_SHARE,
    "data.span_p": Bounds(0, 1, above=True, below=True),
    "data.span_max": _COUNT,
    "data.keep_share": _SHARE,
    "data.random_share": _SHARE,
    "data.mask_power": _SHARE,
    "data.short_sequence_probability": _PROPER_SHARE,
    "data.threads": _COUNT,
    "optimizer.learning_rate": Bounds(0, above=True),
    "optimizer.warmup_steps": _NOT_NEGATIVE,
    "optimizer.decay_power": Bounds(0, above=True),
    "optimizer.decay_steps": _NOT_NEGATIVE,
    "optimizer.final_share": _SHARE,
    "optimizer.beta1": _PROPER_SHARE,
    "optimizer.beta2": _PROPER_SHARE,
    "optimizer.eps": Bounds(0, above=True),
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.clip_norm": _NOT_NEGATIVE,
    "distillation.temperature": Bounds(0, above=True),
    "probe.sample": Bounds(2),
    "probe.share": Bounds(0, 1, above=True),
    "training.steps": _COUNT,
    "training.global_batch_size": _COUNT,
    "training.grad_accum_steps": _COUNT,
    "training.log_every": _COUNT,
    "training.eval_every": _COUNT,
    "training.eval_rows": _COUNT,
    "training.checkpoint_every": _COUNT,
    "training.keep_last": _COUNT,
    "training.keep_every": _NOT_NEGATIVE,
    "training.max_skipped_updates": _COUNT,
    "training.verify_every": _NOT_NEGATIVE,
    "training.digest_every": _NOT_NEGATIVE,
    "training.spike_deviations": _NOT_NEGATIVE,
}
