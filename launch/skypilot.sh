#!/usr/bin/env bash
# Pretrains on GPUs of any cloud with a managed SkyPilot job, which replaces preempted machines and resumes the run.
#   ./launch/skypilot.sh --gpus H100:8 --nodes 2 configs/bert_base.py \
#       --run-dir s3://BUCKET/runs/bert --data.root s3://BUCKET/data --data.sources 'text:s3://BUCKET/text/*.txt'
# Options, before the recipe: --name bert, --nodes 1, --on-demand (instead of spot), --dry-run prints the task;
# --extras wandb --env WANDB_API_KEY,WANDB_PROJECT adds packages, and variables of this machine, on the hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

name=bert gpus='' nodes=1 env='' on_demand=no
read_arguments 'name gpus nodes env' on-demand "$@"
needs_recipe
needs gpus
needs_object_storage
needs_environment

installed=$(extras_for cuda)
spot=true
[[ $on_demand == no ]] || spot=false

# shellcheck disable=SC2016 # the hosts expand it
hosts='--hosts.cluster address --hosts.coordinator "$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):8476" \
    --hosts.processes "$SKYPILOT_NUM_NODES" --hosts.process "$SKYPILOT_NODE_RANK" \
    --hosts.devices $((SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE))'

task() {
  cat <<END
name: $name
workdir: .
num_nodes: $nodes
resources:
  accelerators: $gpus
  use_spot: $spot
  job_recovery:
    recover_on_exit_codes: [75]
setup: |
  # A managed job gets its files through a bucket, which loses links and modes.
  [ -e bertjax/recipes ] || ln -s ../configs bertjax/recipes
  bash ./launch/run.sh '$installed'
run: |
  exec bash ./launch/run.sh '$installed' $(quoted python launch/keep_running.py --hand-back bertjax pretrain "${pretrain[@]}") \\
    $hosts
END
}

if [[ $dry_run == no ]]; then
  mkdir -p build
  task >build/skypilot.yaml
else
  note 'build/skypilot.yaml'
  task
  note 'on this machine'
fi
secrets=()
for variable in ${env//,/ }; do secrets+=(--secret "$variable"); done
perform sky jobs launch --name "$name" --yes ${secrets[@]+"${secrets[@]}"} build/skypilot.yaml
