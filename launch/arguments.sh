# Functions of all launchers, which source this file: their options, the recipe, and dry runs.
# shellcheck shell=bash

# read_arguments OPTIONS SWITCHES ARGUMENT...: stores each option of the launcher, up to the recipe, in the variable of
# its name, which must have a default; the recipe and its overrides in the array `pretrain`; yes or no in `dry_run`.
# Every launcher has --extras NAME,NAME: extras of setup.cfg to install beside those for the platform and the storage.
read_arguments() {
  # The underscores avoid hiding variables of the launchers.
  local _options=" $1 extras " _switches=" $2 dry-run help " _option
  dry_run=no help=no extras=''
  shift 2
  while [[ ${1-} == --* ]]; do
    _option=${1#--}
    if [[ $_switches == *" $_option "* ]]; then
      printf -v "${_option//-/_}" yes
      shift
    elif [[ $_options == *" $_option "* ]]; then
      (($# > 1)) || die "--$_option needs a value"
      printf -v "${_option//-/_}" %s "$2"
      shift 2
    else
      die "--$_option is not an option of $0; $0 --help shows the options, and keys of the run follow the recipe"
    fi
  done
  if [[ $help == yes ]]; then
    # Print the comment at the beginning of the launcher.
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
    exit
  fi
  pretrain=("$@")
}

# needs NAME...: ends with an error if one of these variables is empty.
needs() {
  local _name
  for _name; do
    [[ -n ${!_name} ]] || die "--${_name//_/-} is missing; $0 --help shows an example"
  done
}

needs_recipe() {
  ((${#pretrain[@]})) || die "which recipe? $0 [OPTIONS] configs/NAME.py [OVERRIDES]; $0 --help shows an example"
}

# The words of a command, quoted for a shell, in the most readable way.
quoted() {
  local word line=''
  for word; do
    if [[ $word == *\'* && $word == *[\"\$\`\\!]* || $word == *[$'\n\t']* ]]; then
      word=$(printf %q "$word")
    elif [[ $word == *\'* ]]; then
      word="\"$word\""
    elif [[ -z $word || $word == *[!a-zA-Z0-9_./:=,@%+-]* ]]; then
      word="'$word'"
    fi
    line+=" $word"
  done
  printf '%s' "${line# }"
}

# Runs a command that changes something; prints it in a dry run.
perform() {
  if [[ $dry_run == yes ]]; then
    quoted "$@"
    echo
  else
    "$@"
  fi
}

# The same for a command that replaces this shell, so that it receives signals.
perform_last() {
  [[ $dry_run == yes ]] || exec "$@"
  perform "$@"
}

# perform_with TEXT COMMAND...: the same for a command that reads TEXT from standard input.
perform_with() {
  local text=$1
  shift
  if [[ $dry_run == yes ]]; then
    printf '%s <<"END"\n%s\nEND\n' "$(quoted "$@")" "$text"
  else
    "$@" <<<"$text"
  fi
}

note() { printf '\n# %s\n' "$*"; }

# The values of a key in the overrides, one a line; --data.sources has several.
values_of() {
  local word taking=no
  for word in "${pretrain[@]:1}"; do
    case $word in
      "$1") taking=yes ;;
      "$1="*)
        taking=no
        printf '%s\n' "${word#*=}"
        ;;
      --*) taking=no ;;
      *) [[ $taking == no ]] || printf '%s\n' "$word" ;;
    esac
  done
}

# The value of a key with one value, such as --run-dir; the last one counts.
override_of() {
  local values
  values=$(values_of "$1")
  printf '%s' "${values##*$'\n'}"
}

# A preempted host loses its disk: data and runs must be in object storage, and the recipe in configs/.
needs_object_storage() {
  local key value
  for key in --run-dir --data.root; do
    [[ $(override_of $key) == *://* ]] ||
      die "add $key gs://BUCKET/... (or s3://): the disks of these hosts do not outlive a preemption"
  done
  for key in --data.vocab --data.units --data.similar-words --data.entity-map --init-from --distillation.teacher; do
    value=$(override_of $key)
    # hf:NAME is a repository of the Hugging Face Hub if there is no folder NAME.
    [[ -z $value || $value == *://* || ($value == hf:* && ! -e ${value#hf:}) ]] ||
      die "$key $value is a file of this machine; copy it to the bucket"
  done
  while IFS= read -r value; do
    # Sources other than URLs and these kinds are files of this machine.
    case $value in
      '' | *://* | docs | docs:* | novels | novels:* | generated | generated:* | generated_proteins | generated_proteins:*) ;;
      tfds:* | hf:*) ;;
      *) die "--data.sources '$value' names files of this machine; copy them to the bucket" ;;
    esac
  done < <(values_of --data.sources)
  # A name without a dot or slash is a recipe of the package.
  [[ ${pretrain[0]} == configs/* || ${pretrain[0]} != *[./]* ]] ||
    die "${pretrain[0]} is not copied to the hosts; put your recipe into configs/"
}

# Lets hosts wait a day for preempted slices: adds hosts.join_seconds to the array `pretrain` unless it is there.
wait_for_slices() {
  [[ -n $(override_of --hosts.join-seconds) ]] || pretrain+=(--hosts.join-seconds 86400)
}

# Requires a value of one line for each variable that --env names.
needs_environment() {
  local variable
  # shellcheck disable=SC2154 # set by what sources this file
  for variable in ${env//,/ }; do
    [[ -n ${!variable-} && ${!variable} != *$'\n'* ]] || die "--env $variable: this machine's environment has no line for it"
  done
}

# write_environment FILE: writes these variables as lines NAME=VALUE that only this user can read, and removes the file
# at the end of the script. A dry run prints only their names.
write_environment() {
  [[ -n $env ]] || return 0
  if [[ $dry_run == yes ]]; then
    note "$1: ${env//,/, } of this machine's environment"
    return
  fi
  # shellcheck disable=SC2064 # expand the name now
  trap "rm -f $(quoted "$1")" EXIT
  mkdir -p "$(dirname "$1")"
  (umask 077 && host_environment >"$1")
}

host_environment() {
  local variable
  for variable in ${env//,/ }; do printf '%s=%s\n' "$variable" "${!variable}"; done
}

# extras_for cuda: the extras for a platform, for the storage in the overrides, for models and data of the Hugging Face
# Hub and for Chinese words there or in the recipe, and from --extras, such as [cuda,gcs]
extras_for() {
  local names=$1 recipe=${pretrain[0]%%:*}
  [[ $recipe == *[./]* ]] || recipe=configs/$recipe.py
  if [[ ${pretrain[*]} == *gs://* ]]; then names+=,gcs; fi
  if [[ ${pretrain[*]} == *s3://* ]]; then names+=,s3; fi
  if [[ " ${pretrain[*]}" == *[\ =]hf:* || (-f $recipe && $(<"$recipe") == *'"hf:'*) ]]; then
    names+=,hf,parquet
  elif [[ " ${pretrain[*]}" == *[\ =]parquet:* ]]; then
    names+=,parquet
  fi
  if [[ " ${pretrain[*]}" == *segmenter[\ =]jieba* || (-f $recipe && $(<"$recipe") == *'segmenter="jieba"'*) ]]; then
    names+=,chinese
  fi
  names+=${extras:+,$extras}
  printf '[%s]' "${names#,}"
}

# Builds the container image `image` of this checkout and pushes it, for x86-64, which TPU hosts have.
build_image() {
  local installed
  installed=$(extras_for tpu)
  installed=${installed#[}
  # shellcheck disable=SC2154 # set by what sources this file
  perform docker build --platform linux/amd64 --push --build-arg "EXTRAS=${installed%]}" \
    --file launch/Dockerfile --tag "$image" .
}
