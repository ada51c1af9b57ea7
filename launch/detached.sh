#!/usr/bin/env bash
# Runs a command that continues after the connection closes, one at a time in this checkout.
#   ./launch/detached.sh start COMMAND...    starts it unless one runs; the output goes to build/detached/log
#   ./launch/detached.sh status              the last line of the log, and `state: running` or `state: EXIT CODE`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=build/detached
log=$folder/log

is_running() { [[ -f $folder/pid ]] && kill -0 "$(<$folder/pid)" 2>/dev/null; }

case ${1-} in
  start)
    shift
    mkdir -p $folder
    if is_running; then
      echo "already running, as process $(<$folder/pid)"
      exit
    fi
    rm -f $folder/exit_code
    if [[ -f environment ]]; then # the variables of the launcher's --env
      while IFS= read -r line; do export "${line?}"; done <environment
    fi
    # shellcheck disable=SC2016 # the inner shell expands them
    nohup setsid bash -c 'code=0; "$@" || code=$?; echo "$code" >build/detached/exit_code' _ "$@" \
      >>$log 2>&1 </dev/null &
    echo $! >$folder/pid
    ;;
  status)
    [[ ! -s $log ]] || tail -n 1 $log
    if is_running; then
      echo 'state: running'
    else
      # A host that was switched off has no exit code; its command must run again.
      echo "state: $(cat $folder/exit_code 2>/dev/null || echo 75)"
    fi
    ;;
  *)
    echo "error: $0 start COMMAND... | status" >&2
    exit 1
    ;;
esac
