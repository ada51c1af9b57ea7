#!/usr/bin/env bash
# Pretrains on TPU slices of a GKE cluster, as a JobSet: a job per slice, a pod per host. If one ends early, all start
# again and resume.
#   ./launch/gke.sh --build --image IMAGE --machine ct5lp-hightpu-4t --topology 4x4 configs/bert_base.py \
#       --run-dir gs://BUCKET/runs/bert --data.root gs://BUCKET/data --data.sources 'text:gs://BUCKET/text/*.txt'
# Options, before the recipe: --name bert, --slices 1, --on-demand (instead of spot), --build (build the image of this
# checkout and push it; otherwise it must exist), --dry-run prints the manifest; --extras wandb --env
# WANDB_API_KEY,WANDB_PROJECT adds packages, and variables of this machine as a secret, on the hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh
source launch/gke_slices.sh

name=bert image='' machine='' topology='' slices=1 env='' on_demand=no build=no
read_arguments 'name image machine topology slices env' 'on-demand build' "$@"
needs_recipe
needs image machine topology
needs_object_storage
needs_environment
wait_for_slices

chips=$(chips_of_host)
hosts=$(hosts_of_slice)
label=$(accelerator)
spot="
                cloud.google.com/gke-spot: \"true\""
[[ $on_demand == no ]] || spot=''
processes=$((slices * hosts))
secret=$name-environment from_secret=''
[[ -z $env ]] || from_secret="
                  envFrom: [{secretRef: {name: $secret}}]"

# Exit code 75 and the loss of a node fail a job by the pod failure policy and do not count as restarts. So do 2 and 76,
# which end the run: the message of the failed job distinguishes them. Other failures count, so that a permanent error
# ends the run. keep_running.py turns repeated 75 without progress into a failure.
manifest() {
  cat <<END
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  network:
    enableDNSHostnames: true
  failurePolicy:
    maxRestarts: 3
    rules:
      - name: final
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
        onJobFailureMessagePatterns: ["exit code (2|76) matching FailJob rule"]
      - name: preempted
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: $slices
      template:
        spec:
          parallelism: $hosts
          completions: $hosts
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: bertjax, operator: In, values: [75]}
              - action: FailJob
                onPodConditions: [{type: DisruptionTarget, status: "True"}]
              - action: FailJob
                onExitCodes: {containerName: bertjax, operator: In, values: [2, 76]}
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 60
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $label
                cloud.google.com/gke-tpu-topology: $topology$spot
              containers:
                - name: bertjax
                  image: $image$from_secret
                  ports: [{containerPort: 8471, protocol: TCP}, {containerPort: 8431, protocol: TCP}]
                  command: [bash, -c]
                  args:
                    - |
                      exec $(quoted python launch/keep_running.py --hand-back bertjax pretrain "${pretrain[@]}" \
                        --hosts.cluster tpu --hosts.processes "$processes" --hosts.devices $((processes * chips * $(devices_of_chip))))
                  resources:
                    requests: {google.com/tpu: $chips}
                    limits: {google.com/tpu: $chips}
END
}

# Stores the variables of --env as a secret; the manifest has only its name.
keep_environment() {
  local create=(kubectl create secret generic "$secret" --from-env-file=/dev/stdin --dry-run=client --output=yaml)
  if [[ $dry_run == yes ]]; then
    echo "$(quoted "${create[@]}") | kubectl apply -f -"
    note "with ${env//,/, } of this machine's environment; then"
  else
    host_environment | "${create[@]}" | kubectl apply -f -
  fi
}

log=(kubectl logs --follow --tail=-1 --selector
  "jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0")

# Deletes a JobSet that has ended: it keeps its name, and would not start when applied again.
delete_ended() {
  local jobset
  jobset=$(kubectl get jobset "$name" --ignore-not-found --output='jsonpath={.kind} {.status.terminalState}') ||
    die "kubectl cannot look up the JobSet $name"
  case $jobset in
    '') ;;
    'JobSet ') die "the JobSet $name is already running; follow it with: $(quoted "${log[@]}")
  or end it with: kubectl delete jobset $name" ;;
    *)
      say "the JobSet $name has ended (${jobset#* }); deleting it; the run continues from its newest checkpoint"
      kubectl delete jobset "$name"
      ;;
  esac
}

[[ $dry_run == yes ]] || delete_ended
[[ $build == no ]] || build_image
[[ -z $env ]] || keep_environment
perform_with "$(manifest)" kubectl apply -f -
[[ $dry_run == yes ]] || say "output of process 0: $(quoted "${log[@]}")"
