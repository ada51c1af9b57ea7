#!/usr/bin/env bash
# Installs bertjax with EXTRAS and runs a command: ./launch/run.sh '[gcs]' bertjax prepare CONFIG ...
# Without a command it only installs. EXTRAS may be ''.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

(($#)) || die "which extras? $0 '[cuda]' COMMAND...; '' for none"
prepare_environment "$1"
shift
(($#)) || exit 0

PATH=$(dirname "$python"):$PATH
say "$*"
exec "$@"
