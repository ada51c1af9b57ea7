#!/usr/bin/env bash
# Creates a GKE cluster with TPU slices and JobSet, for ./launch/gke.sh. Existing resources are not changed.
#   ./launch/gke_cluster.sh --cluster bert --zone us-west4-a --machine ct5lp-hightpu-4t --topology 4x4
# Options: --slices 1, --on-demand (instead of spot), --dry-run prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh
source launch/gke_slices.sh

cluster=bert zone='' machine='' topology='' slices=1 on_demand=no
read_arguments 'cluster zone machine topology slices' on-demand "$@"
needs zone machine topology

# unless_there DESCRIBE... -- COMMAND...
unless_there() {
  local describe=()
  while [[ $1 != -- ]]; do
    describe+=("$1")
    shift
  done
  shift
  if [[ $dry_run == no ]] && "${describe[@]}" >/dev/null 2>&1; then
    say "already exists: ${describe[*]}"
  else
    perform "$@"
  fi
}

unless_there gcloud container clusters describe "$cluster" --location="$zone" -- \
  gcloud container clusters create "$cluster" --location="$zone" --machine-type=e2-standard-4 --num-nodes=1

tier=() shape=(--tpu-topology="$topology") hosts=$(hosts_of_slice)
if [[ $machine == tpu7x-* ]]; then
  # A slice of several TPU7x hosts requires a workload policy of the region; one host does not.
  shape=()
  if ((hosts > 1)); then
    policy=tpu7x-$topology region=${zone%-*}
    unless_there gcloud compute resource-policies describe "$policy" --region="$region" -- \
      gcloud compute resource-policies create workload-policy "$policy" --region="$region" \
      --type=HIGH_THROUGHPUT --accelerator-topology="$topology"
    shape=(--placement-policy="$policy")
  fi
fi
[[ $on_demand == yes ]] || tier=(--spot)
for ((slice = 0; slice < slices; slice++)); do
  pool=(--cluster="$cluster" --location="$zone")
  unless_there gcloud container node-pools describe "slice-$slice" "${pool[@]}" -- \
    gcloud container node-pools create "slice-$slice" "${pool[@]}" --machine-type="$machine" \
    ${shape[@]+"${shape[@]}"} --num-nodes="$hosts" --scopes=cloud-platform ${tier[@]+"${tier[@]}"}
done
perform gcloud container clusters get-credentials "$cluster" --location="$zone"
perform kubectl apply --server-side \
  -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml
