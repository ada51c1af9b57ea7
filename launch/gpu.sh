#!/usr/bin/env bash
# Pretrains on the GPUs of this machine with one process; resumes after a crash.
#   ./launch/gpu.sh configs/bert_base.py --data.sources 'text:corpus/*.txt' --data.vocab vocab.txt
# Options, before the recipe: --dry-run prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

read_arguments '' '' "$@"
needs_recipe
if [[ $dry_run == no ]]; then
  nvidia-smi --list-gpus || die "no GPU: nvidia-smi must list it before JAX can use it"
fi
perform_last ./launch/run.sh "$(extras_for cuda)" python launch/keep_running.py bertjax pretrain "${pretrain[@]}"
