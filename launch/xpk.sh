#!/usr/bin/env bash
# Pretrains on a cluster of xpk (xpk cluster create), as an xpk workload.
#   ./launch/xpk.sh --build --cluster bert --image IMAGE --type v5litepod-16 configs/bert_base.py \
#       --run-dir gs://BUCKET/runs/bert --data.root gs://BUCKET/data --data.sources 'text:gs://BUCKET/text/*.txt'
# Options, before the recipe: --name bert, --slices 1, --project and --zone (those of gcloud's configuration), --build
# (build the image of this checkout and push it; otherwise it must exist), --dry-run prints the command; --extras wandb
# --env WANDB_API_KEY,WANDB_PROJECT adds packages, and variables of this machine, on the hosts.
# A workload that has ended keeps its name: run xpk workload delete --cluster CLUSTER --workload NAME before the next.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

name=bert cluster='' image='' type='' slices=1 project='' zone='' env='' build=no
read_arguments 'name cluster image type slices project zone env' build "$@"
needs_recipe
needs cluster image type
needs_object_storage
needs_environment
wait_for_slices

[[ $build == no ]] || build_image
environment=build/$name/environment
write_environment "$environment"
# Preempted and lost hosts exit with 75 or are killed (127-255 always restart); an error of the run ends the workload.
perform xpk workload create --cluster="$cluster" --workload="$name" --tpu-type="$type" --num-slices="$slices" \
  ${project:+--project="$project"} ${zone:+--zone="$zone"} \
  --docker-image="$image" ${env:+--env-file="$environment"} --restart-on-exit-codes=75 --max-restarts=1000 \
  --command="exec $(quoted python launch/keep_running.py --hand-back bertjax pretrain "${pretrain[@]}" --hosts.cluster tpu)"
