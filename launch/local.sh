#!/usr/bin/env bash
# Pretrains with several processes on this machine that share its devices; resumes if one of them is killed.
#   ./launch/local.sh --processes 2 --fake-devices 4 configs/quickstart.py     (simulated CPU devices)
#   ./launch/local.sh --processes 2 --gpus 4 configs/bert_base.py ...          (GPUs 0-3 and 4-7)
# Options, before the recipe: --port P (default: a free one), --dry-run prints the command of each process.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
source launch/arguments.sh

processes=2 fake_devices='' gpus='' port=''
read_arguments 'processes fake-devices gpus port' '' "$@"
needs_recipe
launcher=(launch/local.py --processes "$processes")
installed=$(extras_for '')
[[ -z $fake_devices ]] || launcher+=(--fake-devices "$fake_devices")
[[ -z $gpus ]] || launcher+=(--gpus "$gpus") installed=$(extras_for cuda)
[[ -z $port ]] || launcher+=(--port "$port")
[[ $installed != '[]' ]] || installed=''
if [[ $dry_run == yes ]]; then
  exec python3 -B "${launcher[@]}" --dry-run "${pretrain[@]}"
fi
exec ./launch/run.sh "$installed" python "${launcher[@]}" "${pretrain[@]}"
