#!/usr/bin/env bash
# Installs bertjax and pretrains a small BERT on eight novels in the public domain.
# Arguments override the recipe: ./launch/quickstart.sh --training.steps 100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

prepare_environment ''

say 'bertjax pretrain configs/quickstart.py'
exec "$python" -m bertjax pretrain configs/quickstart.py "$@"
