# Hosts and chips of a TPU slice on GKE; reads the variables `machine` (ct5lp-hightpu-4t), `topology` (4x4) and `slices`.
# shellcheck shell=bash

chips_of_host() {
  # shellcheck disable=SC2154 # set by what sources this file
  local chips=${machine##*-}
  [[ $chips =~ ^[1-9][0-9]*t$ ]] || die "--machine $machine: a TPU machine type ends in its number of chips, as in ct5lp-hightpu-4t"
  echo "${chips%t}"
}

# In JAX each half of a TPU7x chip is a device.
devices_of_chip() {
  if [[ $machine == tpu7x-* ]]; then echo 2; else echo 1; fi
}

hosts_of_slice() {
  # shellcheck disable=SC2154
  [[ $topology =~ ^[0-9]+(x[0-9]+){1,2}$ ]] || die "--topology $topology: write it as in 4x4 or 4x4x4"
  local chips=$((${topology//x/*})) host
  host=$(chips_of_host)
  ((chips > 0 && chips % host == 0)) || die "--topology $topology: $chips chips do not fill hosts of $host ($machine)"
  # shellcheck disable=SC2154
  ((slices == 1 || chips > host)) ||
    die "--slices $slices of --topology $topology on $machine: each would be one host, and GKE connects slices of several" \
      "hosts only (Multislice); take a larger topology and one slice"
  echo $((chips / host))
}

# The accelerator label of the nodes of a machine type.
accelerator() {
  case $machine in
    ct4p-*) echo tpu-v4-podslice ;;
    ct5lp-*) echo tpu-v5-lite-podslice ;;
    ct5p-*) echo tpu-v5p-slice ;;
    ct6e-*) echo tpu-v6e-slice ;;
    tpu7x-*) echo tpu7x ;;
    *) die "--machine $machine: known are ct4p-, ct5lp-, ct5p-, ct6e- and tpu7x- machine types" ;;
  esac
}
