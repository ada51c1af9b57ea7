#!/usr/bin/env bash
# Sets everything up and runs the linter, the type checker and pytest. Arguments go to pytest: ./launch/test.sh tests/text
# `--unit` leaves out the tests that train a model or start a process.
# `--long [NAME...]` runs the long tests instead: see tests/long.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

prepare_environment '[test]'
# Threads of libraries would slow down tests that run on every core.
export OMP_NUM_THREADS=1

if [[ ${1:-} == --long ]]; then
  exec "$python" tests/long.py "${@:2}"
fi

failed=()
run() {
  local name=$1
  shift
  say "$name"
  "$@" || failed+=("$name")
}
run 'ruff check' "$python" -m ruff check --quiet .
run 'ruff format' "$python" -m ruff format --check --quiet .
# While pyright uses one core, another one compiles the modules that tests import; otherwise each worker would do it.
"$python" -m pytest --collect-only -qq "$@" >/dev/null 2>&1 &
run 'pyright' "$python" -m pyright --pythonpath "$python"
wait
# One process more than cores, because tests wait for subprocesses; at most four, each with whole files of tests.
workers=$("$python" -c 'import os; print(min(4, os.cpu_count() + 1))')
run 'pytest' "$python" -m pytest -ra --durations=10 \
  --numprocesses "$workers" --dist loadfile --no-loadscope-reorder "$@"

if ((${#failed[@]})); then
  die "failed: $(printf '%s  ' "${failed[@]}")"
fi
say "all passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
