#!/usr/bin/env bash
# Pretrains on Cloud TPU VMs: requests a queued resource, waits for it, installs, starts all workers, and watches them.
# After a preemption it requests another TPU, where the run resumes with the same code. If the TPU exists already, it
# watches that one.
#   ./launch/tpu_vm.sh --name bert --zone us-west4-a --type v5litepod-16 configs/bert_base.py \
#       --run-dir gs://BUCKET/runs/bert --data.root gs://BUCKET/data --data.sources 'text:gs://BUCKET/text/*.txt'
# Options, before the recipe: --slices 1, --runtime VERSION (default: by type), --on-demand (instead of spot), --poll 60
# (seconds between two polls), --dry-run prints all commands, and the command of each host; --extras wandb --env
# WANDB_API_KEY,WANDB_PROJECT adds packages, and variables of this machine, on the hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

name=bert zone='' type='' slices=1 runtime='' on_demand=no poll=60 env=''
read_arguments 'name zone type slices runtime poll env' on-demand "$@"
needs_recipe
needs zone type
needs_object_storage
needs_environment

# The size in a type is the number of chips for v5litepod and v6e, which are devices, and of cores for the others; two
# cores of v4 and v5p are one device.
devices=${type##*-} known=
[[ $devices =~ ^[1-9][0-9]*$ ]] || die "--type $type: write the size at the end, as in v5litepod-16"
case $type in
  v5litepod-*) known=v2-alpha-tpuv5-lite ;;
  v6e-*) known=v2-alpha-tpuv6e ;;
  v5p-*) known=v2-alpha-tpuv5 devices=$((devices / 2)) ;;
  v4-*) known=tpu-ubuntu2204-base devices=$((devices / 2)) ;;
  v[23]-*) known=tpu-ubuntu2204-base ;;
  *) die "--type $type: known are v2- to v4-, v5litepod-, v5p- and v6e- types; later TPUs are available in GKE only" ;;
esac
pretrain+=(--hosts.cluster tpu --hosts.devices $((devices * slices)))
((slices == 1)) || wait_for_slices

nodes=("$name")
resource=(--node-id="$name")
if ((slices > 1)); then
  nodes=()
  for ((slice = 0; slice < slices; slice++)); do nodes+=("$name-$slice"); done
  resource=(--node-count="$slices" --node-prefix="$name")
fi
[[ $on_demand == yes ]] || resource+=(--spot)

tpus() { perform gcloud compute tpus "$@" --zone="$zone" --quiet; }

# The command of each worker.
on_host=(./launch/run.sh "$(extras_for tpu)" python launch/keep_running.py bertjax pretrain "${pretrain[@]}")

# gcloud refuses to connect to several workers if the ssh agent has keys but lacks gcloud's.
needs_key_in_agent() {
  local key=~/.ssh/google_compute_engine
  ssh-add -l >/dev/null 2>&1 || return 0 # no agent, or one without keys
  [[ -f $key.pub ]] && ssh-add -L | grep -qF "$(cut -d ' ' -f 2 "$key.pub")" && return
  die "the ssh agent lacks the key with which gcloud connects to all workers of a TPU. If $key exists: ssh-add $key
  If not: ssh-keygen -t rsa -N '' -f $key && ssh-add $key"
}

request() {
  tpus queued-resources create "$name" "${resource[@]}" --accelerator-type="$type" --runtime-version="${runtime:-$known}"
}

release() { tpus queued-resources delete "$name" --force; }

request_another() {
  say "$1; requesting another one"
  release || true
  started=no requested=yes
}

# One package a job: a run that resumes on other workers, or under another start of this script, has the same code.
package=build/$name/bertjax.tgz environment=build/$name/environment

pack() {
  perform mkdir -p "build/$name"
  perform tar -czf "$package.part" --exclude=__pycache__ pyproject.toml setup.cfg README.md bertjax configs launch
  perform mv "$package.part" "$package"
}

# Does not change workers on which the command already runs.
start_workers() {
  local node unpack='{ ./launch/detached.sh status 2>/dev/null | grep -qx state:.running || tar -xzf bertjax.tgz; }'
  [[ -f $package || $dry_run == yes ]] || pack
  write_environment "$environment"
  for node in "${nodes[@]}"; do
    on_workers "$node" 'mkdir -p bertjax' || return
    tpus tpu-vm scp "$package" ${env:+"$environment"} "$node:bertjax/" --worker=all || return
    on_workers "$node" "cd bertjax && $unpack && ./launch/detached.sh start $(quoted "${on_host[@]}")" || return
  done
}

on_workers() { tpus tpu-vm ssh "$1" --worker=all --command="$2"; }

# One of ACTIVE, WAITING_FOR_RESOURCES, PROVISIONING, SUSPENDED ...; empty if the resource does not exist.
state() {
  gcloud compute tpus queued-resources list --zone="$zone" --filter="name~/$name\$" --format='value(state.state)'
}

status() {
  local node
  for node in "${nodes[@]}"; do
    on_workers "$node" './bertjax/launch/detached.sh status' || return
  done
}

# Starts the workers if they are not started on this TPU, and ends the script when the job has ended.
check_workers() {
  local output
  if [[ $started == no ]]; then
    say 'the TPU is ready; installing and starting its workers'
    if start_workers; then
      started=yes attempts=0
      return
    fi
    ((++attempts < 10)) || die "not all workers could be started. The TPU still exists and is billed; to release it:
  $delete"
    say 'not all workers could be started; trying again'
    return
  fi
  output=$(status) || { say 'a worker does not answer'; return; }
  [[ $output == "$last_output" ]] || echo "${output%%$'\n'*}"
  last_output=$output
  if [[ $output == *'state: 75'* ]]; then
    started=no # a worker was switched off or received a signal
  elif [[ $output != *'state: running'* ]]; then
    finish "$(sed -n 's/^state: //p' <<<"$output" | sort -n | tail -n 1)"
  fi
}

finish() {
  rm -f "$package"
  if [[ $1 == 0 ]]; then
    release
    say "done; everything is in $(override_of --run-dir)"
    exit
  fi
  on_workers "${nodes[0]}" 'tail -n 30 bertjax/build/detached/log' || true
  die "workers ended with exit code $1. The TPU still exists and is billed; to release it:
  $delete"
}

if [[ $dry_run == yes ]]; then
  note 'on this machine: request the TPU, and start its workers when it is active'
  pack
  request
  start_workers
  note 'each host then runs, until it is done'
  quoted "${on_host[@]}"
  note 'on this machine: after a preemption, before all of the above; and at the end'
  release
  exit
fi

delete="gcloud compute tpus queued-resources delete $name --zone=$zone --force"
started=no requested=no last_output='' was_active=no failures=0 attempts=0
needs_key_in_agent
while true; do
  if ! now=$(state); then
    now='unknown'
  fi
  case $now in
    '')
      [[ $requested == yes ]] || pack
      request || [[ $requested == yes ]] || die 'the TPU could not be requested'
      requested=yes
      ;;
    ACTIVE)
      was_active=yes failures=0
      check_workers
      ;;
    SUSPENDED) request_another 'the TPU was preempted' ;;
    FAILED)
      # A request that failed after the TPU was active is repeated; one that failed before is not.
      if [[ $was_active == no ]] || ((++failures > 5)); then
        die "the request has failed: gcloud compute tpus queued-resources describe $name --zone=$zone gives the reason; before
  the next request: $delete"
      fi
      request_another 'the TPU is lost'
      ;;
    *) say "state of the queued resource: $now" ;;
  esac
  sleep "$poll"
done
