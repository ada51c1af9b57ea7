#!/usr/bin/env bash
# Pretrains on GPU nodes of a Slurm cluster, one process a node. Run it on a login node, in a folder shared by all nodes.
#   ./launch/slurm.sh --nodes 2 --gpus 8 configs/bert_base.py --data.sources 'text:corpus/*.txt' --data.vocab vocab.txt
# Options, before the recipe: --name bert, --nodes 1, --gpus 8 and --cpus (8 a GPU) of each node, --time 24:00:00,
# --partition P, --account A, --dry-run prints the batch script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

name=bert nodes=1 gpus=8 cpus='' time=24:00:00 partition='' account=''
read_arguments 'name nodes gpus cpus time partition account' '' "$@"
needs_recipe
: "${cpus:=$((8 * gpus))}"

# Two minutes before the time limit, and at a preemption, Slurm sends SIGTERM to the processes: they save and exit with
# 75, and this script requeues the job. Slurm itself requeues it after a node failure. --requeue allows both.
batch_script() {
  cat <<END
#!/usr/bin/env bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=$gpus
#SBATCH --cpus-per-task=$cpus
#SBATCH --time=$time
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --output=$name-%j.log
#SBATCH --open-mode=append
${partition:+#SBATCH --partition=$partition
}${account:+#SBATCH --account=$account
}cd "\$SLURM_SUBMIT_DIR"
export PATH=\$PWD/.venv/bin:\$PATH
code=0
python launch/keep_running.py --hand-back srun --cpus-per-task=$cpus --kill-on-bad-exit=0 \\
  $(quoted bertjax pretrain "${pretrain[@]}" --hosts.cluster slurm \
    --hosts.processes "$nodes" --hosts.devices $((nodes * gpus))) || code=\$?
if ((code == 75)); then
  scontrol requeue "\$SLURM_JOB_ID"
fi
exit "\$code"
END
}

perform env -u VIRTUAL_ENV ./launch/run.sh "$(extras_for cuda)"
perform_with "$(batch_script)" sbatch
