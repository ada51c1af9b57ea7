#!/usr/bin/env bash
# Pretrains on the GPUs of this machine, one or several, with one process; resumes after a crash.
#   ./launch/gpu.sh configs/bert_base.py --data.sources 'text:corpus/*.txt' --data.vocab vocab.txt
# Options, before the recipe: --dry-run prints what would be run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

read_arguments '' '' "$@"
needs_recipe
if [[ $dry_run == no ]]; then
  nvidia-smi --list-gpus || die "no GPU was found: nvidia-smi must list it before jax can use it"
fi
perform_last ./launch/run.sh "$(extras_for cuda)" python launch/keep_running.py bertjax pretrain "${pretrain[@]}"
