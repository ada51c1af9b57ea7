"""Defects to plant: a replacement in a source file, and the tests that must then fail."""

from __future__ import annotations

from typing import NamedTuple


class Sabotage(NamedTuple):
    """A defect that makes a test fail.

    `old` occurs exactly once in `file`, a path in bertjax/; `tests` are pytest's arguments, relative to tests/; `tier`
    is the first tier with a failing test: unit, run or long.
    """

    file: str
    old: str
    new: str
    tests: str
    tier: str = "unit"


SABOTAGES = (
    # update rules and schedules
    Sabotage(
        "training/optimizer.py",
        "m / (jnp.sqrt(v) + eps), mu, nu), Bert",
        "m / jnp.sqrt(v + eps), mu, nu), Bert",
        "training/test_optimizer.py",
    ),
    Sabotage(
        "training/optimizer.py",
        "beta2 * v + (1 - beta2) * jnp",
        "beta2 * v + (1 - beta1) * jnp",
        "training/test_optimizer.py",
    ),
    Sabotage(
        "training/optimizer.py",
        'not in ("bias", "scale")',
        'not in ("bias",)',
        "training/test_optimizer.py",
    ),
    Sabotage(
        "training/optimizer.py",
        'range(1 if "layers" in names else 0, param.ndim)',
        "range(param.ndim)",
        "training/test_optimizer.py",
    ),
    Sabotage(
        "training/optimizer.py",
        "(1 - beta ** (t - 1)) / (1 - beta**t)",
        "(1 - beta**t) / (1 - beta**t)",
        "training/test_optimizer.py",
    ),
    Sabotage(
        "training/optimizer.py",
        "clip_norm / jnp.maximum(norm, clip_norm) if",
        "clip_norm / norm if",
        "training/test_optimizer.py::test_clip_factors_only_scale_down",
    ),
    Sabotage(
        "training/step.py",
        "jnp.where(finite, new, old)",
        "jnp.where(finite, old, new)",
        "training/test_step.py::test_nonfinite_update_is_skipped_and_counted",
        "run",
    ),
    Sabotage(
        "training/schedules.py",
        "jnp.maximum(total - step, 0.0) / total\n",
        "jnp.maximum(total - step, 0.0) / (total - config.warmup_steps)\n",
        "training/test_schedules.py",
    ),
    Sabotage(
        "training/schedules.py",
        "jnp.where(step < config.warmup_steps,",
        "jnp.where(step <= config.warmup_steps,",
        "training/test_schedules.py",
    ),
    Sabotage(
        "training/schedules.py",
        "0.5 * (1.0 + jnp.cos",
        "0.5 * (1.0 - jnp.cos",
        "training/test_schedules.py",
    ),
    # the step
    Sabotage(
        "training/step.py",
        "x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)",
        "x.reshape(count, x.shape[0] // count, *x.shape[1:])",
        "training/test_step.py::test_microbatches_are_strided",
        "run",
    ),
    Sabotage(
        "training/step.py",
        "step, rows)",
        "step, 0 * rows)",
        "training/test_step_keys.py",
    ),
    Sabotage(
        "training/step.py",
        "step, rows)",
        "step * 0, rows)",
        "training/test_step_keys.py",
    ),
    Sabotage(
        "training/step.py",
        "p - learning_rate * u",
        "p + learning_rate * u",
        "training/test_step.py::test_losses_fall_when_batches_repeat",
        "run",
    ),
    Sabotage(
        "training/evaluate.py",
        "return jax.lax.psum(figures, BATCH_AXES)\n\n    return _per_shard(blueprint, local, P(), packed,",
        "return figures\n\n    return _per_shard(blueprint, local, P(), packed,",
        "training/test_step.py::test_eval_step_sums_what_the_train_step_averages",
        "run",
    ),
    Sabotage(
        "training/step.py",
        "reduce_gradients(grads, self.blueprint), jax.lax.psum(sums, BATCH_AXES)",
        "grads, jax.lax.psum(sums, BATCH_AXES)",
        "training/test_step.py::test_losses_equal_a_single_device",
        "run",
    ),
    Sabotage(
        "training/exchange.py",
        'remaining = axes_to_sum - {"fsdp"}',
        "remaining = set()",
        "training/test_step.py::test_losses_equal_a_single_device",
        "run",
    ),
    # the network
    Sabotage(
        "model/dropout.py",
        "x * (1.0 / (1.0 - rate))",
        "x * 1.0",
        "model/test_dropout.py",
    ),
    Sabotage(
        "model/dropout.py",
        "_mix(key ^ step.astype(jnp.uint32))",
        "_mix(key)",
        "model/test_dropout.py",
    ),
    Sabotage(
        "model/dropout.py",
        "jnp.asarray(number, jnp.uint32) * jnp.uint32(0x9E3779B9)",
        "jnp.asarray(0, jnp.uint32)",
        "model/test_dropout.py",
    ),
    Sabotage(
        "model/layers.py",
        "0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))",
        "0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(2.0)))",
        "model/test_network.py::test_layers_and_logits_match_transformers",
    ),
    Sabotage(
        "model/layers.py",
        "jax.lax.rsqrt(variance + epsilon)",
        "jax.lax.rsqrt(variance + 1e-5)",
        "model/test_network.py::test_layers_and_logits_match_transformers",
    ),
    Sabotage(
        "model/cpu.py",
        "_contract(g, x, dims=dims, dtype=x.dtype), -1, 0)",
        "_contract(g, x, dims=dims, dtype=x.dtype), 0, -1)",
        "model/test_product.py",
    ),
    Sabotage(
        "model/products.py",
        "jnp.sum(g, range(g.ndim - bias.ndim), dtype=jnp.float32)",
        "jax.lax.reduce(g, jnp.zeros((), g.dtype), jax.lax.add, range(g.ndim - bias.ndim))",
        "model/test_product.py",
    ),
    Sabotage(
        "model/layers.py",
        "+ wide * density",
        "- wide * density",
        "model/test_layers.py",
    ),
    Sabotage(
        "model/heads.py",
        "jnp.where(jnp.arange(bias_V.shape[0]) < vocab_size,",
        "jnp.where(jnp.arange(bias_V.shape[0]) <= vocab_size,",
        "model/test_vocabulary_loss.py",
    ),
    Sabotage(
        "model/attention/mosaic_blocks.py",
        "scalars.heads[first + head].astype",
        "jnp.int32(first + head).astype",
        "model/test_mosaic_attention.py::test_mosaic_numbers_heads_over_devices",
    ),
    Sabotage(
        "model/attention/mosaic_blocks.py",
        "products[head * settings.width : (head + 1) * settings.width]",
        "products[: settings.width]",
        "model/test_mosaic_attention.py::test_mosaic_matches_reference",
    ),
    Sabotage(
        "model/attention/backends.py",
        "sequence_ids[:, :, None] == sequence_ids[:, None, :]",
        "sequence_ids[:, :, None] >= sequence_ids[:, None, :]",
        "model/test_network.py::test_packed_rows_equal_single_rows",
    ),
    Sabotage(
        "model/attention/backends.py",
        "k=-window - 1, dtype=bool",
        "k=-window, dtype=bool",
        "model/test_window_attention.py::test_windows_match_dense_mask",
    ),
    Sabotage(
        "model/attention/backends.py",
        "seen &= jnp.tri(length, dtype=bool)",
        "seen &= ~jnp.tri(length, dtype=bool)",
        "model/test_network.py::test_causal_token_sees_nothing_to_its_right",
    ),
    # rows of a batch
    Sabotage(
        "input/masking/rule.py",
        "(kind >= self.keep_share) & (kind <",
        "(kind >= 0) & (kind <",
        "input/test_masking.py",
    ),
    Sabotage(
        "input/masking/rule.py",
        'order_keys = fold_in(keys, "mask order")',
        "order_keys = keys",
        "input/test_golden_batches.py",
    ),
    Sabotage(
        "input/masking/rule.py",
        "rule.count.draw(available + special,",
        "rule.count.draw(available,",
        "input/test_masking.py input/test_golden_batches.py",
    ),
    Sabotage(
        "input/masking/rule.py",
        '"mlm_labels": np.where(is_used, labels, 0)',
        '"mlm_labels": labels',
        "input/test_masking.py input/test_batches.py",
    ),
    Sabotage(
        "input/layout.py",
        "maximum(max_tokens - lengths[:, ::-1], half)",
        "maximum(max_tokens - lengths, half)",
        "input/test_masking.py::test_truncated_lengths",
    ),
    Sabotage(
        "input/layout.py",
        "((column > between[:, -1:]) & is_inside)",
        "((column >= between[:, -1:]) & is_inside)",
        "input/test_layout.py",
    ),
    Sabotage(
        "input/packing.py",
        "values + first.astype(np.int32)[:, None] if key.is_position",
        "values if key.is_position",
        "input/test_packing.py",
    ),
    Sabotage(
        "input/packing.py",
        "(slot + 1).astype(np.int32)",
        "slot.astype(np.int32)",
        "input/test_packing.py",
    ),
    Sabotage(
        "input/packing.py",
        "room -= length",
        "room -= 1",
        "input/test_packing.py",
    ),
    Sabotage(
        "input/epochs.py",
        'derive_key(self._seed, "pack", number)',
        'derive_key(self._seed, "pack", 0)',
        "input/test_packing.py",
    ),
    Sabotage(
        "input/plan.py",
        'hash64(keys["coin"], number) >> 63 == 1',
        'hash64(keys["coin"], number) >> 63 == 0',
        "input/test_golden_batches.py",
    ),
    Sabotage(
        "input/plan.py",
        "np.where(is_random, a_end, chunk_end)",
        "chunk_end",
        "input/test_plan.py",
    ),
    Sabotage(
        "input/plan.py",
        '2 + below(hash64(derive_key(seed, "target", epoch), number), max_tokens - 1)',
        '2 + below(hash64(derive_key(seed, "target", epoch), number), max_tokens - 2)',
        "input/test_plan.py input/test_golden_batches.py",
    ),
    Sabotage(
        "input/randomness.py",
        "outside[walked >= size]",
        "outside[walked > size]",
        "input/test_randomness.py",
    ),
    Sabotage(
        "input/randomness.py",
        "(uniform(bits) * bound)",
        "(uniform(bits) * (bound - 1))",
        "input/test_randomness.py",
    ),
    Sabotage(
        "input/randomness.py",
        '"/".join(map(str, labels))',
        '"".join(map(str, labels))',
        "input/test_randomness.py",
    ),
    Sabotage(
        "input/tfrecords/record_files.py",
        "records[_digests(contents) != self.digests[records]]",
        "records[_digests(contents) == 0]",
        "input/test_record_files.py",
    ),
    # durability, and detection of damage
    Sabotage(
        "storage/files.py",
        "            os.fsync(file.fileno())\n",
        "",
        "storage/test_durable_files.py",
    ),
    Sabotage(
        "storage/files.py",
        "            os.fsync(stream.fileno())\n",
        "",
        "storage/test_durable_files.py",
    ),
    Sabotage(
        "storage/files.py",
        "        os.fsync(handle)\n",
        "        pass\n",
        "storage/test_durable_files.py",
    ),
    Sabotage(
        "convert/folder.py",
        "                sync(path)\n",
        "                pass\n",
        "storage/test_durable_files.py",
    ),
    Sabotage(
        "run/telemetry.py",
        "        os.fsync(self._file.fileno())\n\n    def close",
        "        pass\n\n    def close",
        "storage/test_durable_files.py",
    ),
    Sabotage(
        "storage/atomic_directories.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "storage/test_locks.py convert/test_folder.py",
        "run",
    ),
    Sabotage(
        "storage/atomic_directories.py",
        "        acquire(lock, shared)\n",
        "",
        "storage/test_locks.py",
        "run",
    ),
    Sabotage(
        "storage/sums.py",
        "sha256_of_file(path, done) != digest",
        "not digest",
        "storage/test_sums.py",
    ),
    Sabotage(
        "storage/sums.py",
        "int(count[1]) != len(digests)",
        "int(count[1]) > len(digests)",
        "storage/test_sums.py",
    ),
    Sabotage(
        "run/telemetry.py",
        'record["step"] <= resume_step',
        'record["step"] < resume_step',
        "run/test_telemetry.py",
        "run",
    ),
    Sabotage(
        "run/checkpoint.py",
        'digests[name].hex != saved["arrays"][name]["digest"]',
        "not digests[name].hex",
        "run/test_checkpoint.py::test_swapped_arrays_of_one_shape_are_detected",
        "run",
    ),
    Sabotage(
        "run/checkpoint.py",
        "if step in _agreed(self.steps()):",
        "if False:",
        "run/test_checkpoint.py::test_saving_a_step_again_changes_nothing",
        "run",
    ),
    Sabotage(
        "run/checkpoint_metadata.py",
        'document["sha256"] != _sha256(content)',
        "False",
        "run/test_checkpoint_documents.py",
        "run",
    ),
    Sabotage(
        "run/checkpoint_metadata.py",
        'metadata["step"] != int(directory.name)',
        "False",
        "run/test_checkpoint_documents.py",
        "run",
    ),
    Sabotage(
        "training/digest.py",
        "index = _mix(_indices(x.shape))",
        "index = jnp.zeros(x.shape, jnp.uint32)",
        "training/test_digest.py",
    ),
    Sabotage(
        "text/store/blocks.py",
        "digest() == self._digest(block)",
        'digest() != b""',
        "text/test_store.py",
    ),
    Sabotage(
        "text/store/blocks.py",
        "digest() != self._digest(block)",
        'digest() == b""',
        "storage/test_remote.py",
        "run",
    ),
    Sabotage(
        "input/windows.py",
        "np.flatnonzero(window_numbers == place)",
        "np.flatnonzero(window_numbers <= place)",
        "input/test_windows.py",
    ),
    Sabotage(
        "input/windows.py",
        'derive_key(seed, "parts", epoch)',
        'derive_key(seed, "parts")',
        "input/test_windows.py",
    ),
    Sabotage(
        "text/store/format.py",
        'np.searchsorted(self._first_token, starts, side="right") - 1',
        'np.searchsorted(self._first_token, starts, side="left") - 1',
        "text/test_store.py",
    ),
    Sabotage(
        "text/store/manifest.py",
        'content_fingerprint(manifest) != manifest["fingerprint"]',
        "False",
        "text/test_store.py",
    ),
    # figures, readers, pages
    Sabotage(
        "run/hooks/early_stopping.py",
        "better = value > self._best",
        "better = value >= self._best",
        "run/test_early_stopping.py",
        "run",
    ),
    Sabotage(
        "training/evaluate.py",
        "self.batch_size + within >= self.rows",
        "self.batch_size + within > self.rows",
        "training/test_evaluate.py",
    ),
    Sabotage(
        "search/evaluation.py",
        "np.log2(np.arange(2, len(gains) + 2))",
        "np.log2(np.arange(1, len(gains) + 1) + 2)",
        "search/test_evaluation.py",
    ),
    Sabotage(
        "search/rankings.py",
        "_RANK_OFFSET + 1 + np.arange",
        "_RANK_OFFSET + np.arange",
        "search/test_rankings.py",
    ),
    Sabotage(
        "finetune/metrics/squad.py",
        "shared / len(ours), shared / len(theirs)",
        "shared / len(theirs), shared / len(theirs)",
        "finetune/test_squad_metrics.py",
        "run",
    ),
    Sabotage(
        "convert/huggingface/torch_reader.py",
        "(elements and last >= flat.size)",
        "(elements and last > flat.size)",
        "convert/test_weights_readers.py",
    ),
    Sabotage(
        "convert/huggingface/safetensors_reader.py",
        "if first != end:",
        "if first < end:",
        "convert/test_weights_readers.py",
    ),
    Sabotage(
        "storage/lines.py",
        "end > cap - 4 and line[end] & 0xC0 == 0x80",
        "False",
        "text/test_sources.py::test_lines_do_not_depend_on_chunk_size",
    ),
    Sabotage(
        "tokenization/wordpiece.py",
        "MAX_WORD_CHARACTERS = 200",
        "MAX_WORD_CHARACTERS = 100",
        "tokenization/test_wordpiece_parity.py::test_table",
    ),
    Sabotage(
        "report/page.py",
        "html.escape(str(value))",
        "str(value)",
        "report/test_page_policy.py",
    ),
    Sabotage(
        "report/page.py",
        "default-src 'none'; base-uri",
        "default-src *; base-uri",
        "report/test_page_policy.py",
    ),
)
