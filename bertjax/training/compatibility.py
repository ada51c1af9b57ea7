"""Which checkpoint may continue under which config: every key of a config is in exactly one of three classes.

The two dicts compared are metadata as `checkpoint.run_metadata` makes it: the config, and the fingerprints of the
tokenizer and of the data. What the data are is decided by the fingerprints, never by where they lie.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import differences, from_dict

FINGERPRINTS = ("tokenizer_fingerprint", "data_fingerprint")

# Another value makes it another run: other batches, another network, another update rule or schedule.
MUST_MATCH = frozenset(
    {
        "model.vocab_size",
        "model.hidden_size",
        "model.num_hidden_layers",
        "model.num_attention_heads",
        "model.intermediate_size",
        "model.hidden_act",
        "model.hidden_dropout_prob",
        "model.attention_probs_dropout_prob",
        "model.max_position_embeddings",
        "model.type_vocab_size",
        "model.position_embedding",
        "model.causal",
        "model.initializer_range",
        "model.layer_norm_eps",
        "model.vocab_pad_multiple",
        "model.head",
        "model.num_labels",
        "model.features",
        "model.lstm_size",
        "data.vocab_size",
        "data.vocab_temperature",
        "data.lowercase",
        "data.strip_accents",
        "data.unknown",
        "data.segmenter",
        "data.held_out",
        "data.sequence_length",
        "data.weights",
        "data.temperature",
        "data.rows",
        "data.packing",
        "data.pairs_per_row",
        "data.max_predictions",
        "data.predict",
        "data.mask_probability",
        "data.keep_share",
        "data.random_share",
        "data.short_sequence_probability",
        "data.masking",
        "data.ngram_shares",
        "data.span_p",
        "data.span_max",
        "data.mask_count",
        "data.mask_special",
        "data.replace_by",
        "data.random_ids",
        "optimizer.name",
        "optimizer.learning_rate",
        "optimizer.warmup_steps",
        "optimizer.schedule",
        "optimizer.decay_power",
        "optimizer.decay_steps",
        "optimizer.beta1",
        "optimizer.beta2",
        "optimizer.eps",
        "optimizer.weight_decay",
        "optimizer.clip_norm",
        "training.global_batch_size",
        "training.objectives",
        "training.seed",
        "stages",
        "task.labels",
        "task.class_weights",
        "task.balanced",
        "task.layer_decay",
        "task.patience",
        "task.temperature",
    }
)

# The run goes on, but its user should know: the effect of the change follows the key.
CHANGES_WITH_NOTICE = {
    "init_from": "has no effect on a run that goes on from its own checkpoint",
    "model.mlm_chunk": "sums are taken in another order, so the last bits may differ",
    "model.attention": "sums are taken in another order, so the last bits may differ",
    "deterministic": "the steps before and after need not have the same last bits",
    "model.dtype": "the steps from here on are computed in another precision",
    "data.sources": "the text is the same by its fingerprint",
    "data.tokenizer": "the vocabulary is the same by its fingerprint",
    "data.vocab": "the vocabulary is the same by its fingerprint",
    "training.steps": "the learning rate decays to another end from here on",
    "training.grad_accum_steps": "sums are taken in another order, so the last bits may differ",
    "training.eval_batches": "evaluations before and after are over different batches",
}

# Where things lie, how they are computed, how often something is reported or kept.
MAY_CHANGE = frozenset(
    {
        "name",
        "run_dir",
        "restore",
        "profile",
        "compilation_cache",
        "model.remat",
        "model.scan_unroll",
        "data.root",
        "data.cache_dir",
        "data.workers",
        "data.threads",
        "mesh.data",
        "mesh.fsdp",
        "mesh.tensor",
        "mesh.dcn_data",
        "mesh.dcn_fsdp",
        "hosts.cluster",
        "hosts.coordinator",
        "hosts.processes",
        "hosts.process",
        "hosts.devices",
        "hosts.join_seconds",
        "hosts.heartbeat_seconds",
        "training.log_every",
        "training.eval_every",
        "training.checkpoint_every",
        "training.keep_last",
        "training.keep_every",
        "training.max_skipped_updates",
        # Of a task's data the fingerprint decides, of its length training.steps.
        "task.name",
        "task.data",
        "task.train",
        "task.dev",
        "task.test",
        "task.text",
        "task.label",
        "task.id",
        "task.epochs",
        "task.warmup",
        "task.examples",
        "task.strict_length",
        "task.doc_stride",
        "task.max_query",
        "task.max_answer",
        "task.n_best",
        "task.null_threshold",
    }
)


def check_compatible(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Whether a run described by `current` may go on from a checkpoint described by `saved`; returns lines to print.

    A key the checkpoint does not have is taken at its default. Raises ValueError with every key that differs and must
    not (a key in no class must not), and what to do.
    """
    changed = _changed(saved, current)
    notices = _only_microbatches(changed)
    refused = {key: pair for key, pair in changed.items() if key not in MAY_CHANGE and key not in CHANGES_WITH_NOTICE}
    if refused:
        refused |= {key: changed[key] for key in CHANGES_WITH_NOTICE if key in changed}
        raise ValueError(
            f"the checkpoint is of another run:\n{_listed(refused)}\n"
            "set these keys back, or give the new run a directory of its own (--run-dir), "
            "with --init-from if it is to start from these weights"
        )
    return notices + [
        f"{key}: checkpoint has {was!r}, config has {now!r}; {CHANGES_WITH_NOTICE[key]}"
        for key, (was, now) in changed.items()
        if key in CHANGES_WITH_NOTICE
    ]


def _changed(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (in the checkpoint, now), fingerprints first."""
    prints = {key: (saved[key], current[key]) for key in FINGERPRINTS if saved[key] != current[key]}
    return prints | differences(from_dict(current["config"]), from_dict(saved["config"]))


def _only_microbatches(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Take `stages` out of what changed if nothing but their microbatches did; what to say of it then."""
    was, now = changed.get("stages", ([], []))
    without = [[{**stage, "grad_accum_steps": None} for stage in stages] for stages in (was, now)]
    if not was or without[0] != without[1]:
        return []
    del changed["stages"]
    return [f"stages: grad_accum_steps changed; {CHANGES_WITH_NOTICE['training.grad_accum_steps']}"]


def _listed(changed: dict[str, tuple[Any, Any]]) -> str:
    return "\n".join(f"  {key}: checkpoint has {was!r}, config has {now!r}" for key, (was, now) in changed.items())
