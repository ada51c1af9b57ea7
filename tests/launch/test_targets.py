"""Cluster launchers, with stand-ins for their tools that run the hosts' commands on this machine.

The hosts' scripts are real, in a copy of the checkout without the installation; `stand_in.py` replaces the run.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_dry_runs import DRY_RUNS, PREPARE, documented_launches

pytestmark = pytest.mark.run
REPOSITORY = Path(__file__).resolve().parent.parent.parent
STEPS = ["--training.steps", "20", "--training.checkpoint-every", "5"]
NO_INSTALLATION = "prepare_environment() { python=$BERTJAX_TEST_PYTHON; }\n"

# A queued resource is a file with its state; `ssh` and `scp` use a folder for each worker.
GCLOUD = """#!/usr/bin/env bash
set -euo pipefail
cd "$CLOUD"
echo "$*" >>calls
what="$3 $4" node=$5 command=''
for word; do [[ $word != --command=* ]] || command=${word#--command=}; done
case $what in
  'queued-resources create') [[ ! -e state ]] && echo ACTIVE >state ;;
  'queued-resources list') cat state 2>/dev/null || true ;;
  'queued-resources delete') rm -rf state hosts ;;
  'tpu-vm scp')
    sha256sum <"$OLDPWD/$5" >>sent
    target=${@:$#-3:1} files=("${@:5:$#-8}")
    for worker in 0 1; do cp "${files[@]/#/$OLDPWD/}" "hosts/${target%%:*}-$worker/${target#*:}"; done ;;
  'tpu-vm ssh')
    for worker in 0 1; do
      mkdir -p "hosts/$node-$worker"
      (cd "hosts/$node-$worker" && HOME=$PWD TPU_WORKER_ID=$worker env -u MY_KEY bash -c "$command")
    done ;;
  *) exit 1 ;;
esac
"""

# The batch script runs again while it requests a requeue; srun runs two tasks and returns the highest exit code.
SBATCH = """#!/usr/bin/env bash
cat >"$CLOUD/script"
export SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD
touch "$CLOUD/requeue"
while [[ -e $CLOUD/requeue ]]; do
  rm "$CLOUD/requeue"
  bash "$CLOUD/script"
done
"""
SRUN = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
for task in 0 1; do SLURM_PROCID=$task "$@" --hosts.process $task & done
code=0
for task in $(jobs -p); do wait "$task" || { own=$?; ((own > code)) && code=$own; }; done
exit $code
"""
SCONTROL = '#!/bin/sh\n[ "$*" = "requeue 1" ] && touch "$CLOUD/requeue"\n'

# Hosts run the task's script one after the other with SkyPilot's variables; exit code 75 restarts all.
SKY = """#!/usr/bin/env bash
run=$(sed -n '/^run:/,$p' "${@: -1}" | tail -n +2)
export SKYPILOT_NODE_IPS=$'10.0.0.1\\n10.0.0.2' SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=8
code=75
while ((code == 75)); do
  for rank in 0 1; do SKYPILOT_NODE_RANK=$rank bash -c "$run"; code=$?; ((code)) && break; done
done
exit $code
"""
# A JobSet is a file with its state.
KUBECTL = """#!/bin/sh
case $1 in
  get) cat "$CLOUD/jobset" 2>/dev/null || true ;;
  delete) rm "$CLOUD/jobset" ;;
  create) cat >"$CLOUD/secret" ;;
  apply)
    [ ! -e "$CLOUD/jobset" ] || exit 1
    echo "$*" >"$CLOUD/calls"
    cat >"$CLOUD/manifest" ;;
  *) exit 1 ;;
esac
"""
# A workload takes its variables from a file.
XPK = """#!/usr/bin/env bash
for word; do [[ $word != --env-file=* ]] || cp "${word#*=}" "$CLOUD/secret"; done
"""
TOOLS = {
    "xpk": XPK,
    "gcloud": GCLOUD,
    "sbatch": SBATCH,
    "srun": SRUN,
    "scontrol": SCONTROL,
    "sky": SKY,
    "kubectl": KUBECTL,
}


@pytest.fixture
def cloud(tmp_path: Path, with_stand_in: dict[str, str]) -> Callable[..., subprocess.Popen]:
    """Start a launcher from a copied checkout; the stand-ins keep their files in `tmp_path / "cloud"`."""
    checkout, world = tmp_path / "checkout", tmp_path / "cloud"
    world.mkdir()
    for folder in ("launch", "configs"):
        shutil.copytree(REPOSITORY / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.cfg", "README.md", "bertjax"):
        (checkout / name).symlink_to(REPOSITORY / name)
    with (checkout / "launch" / "environment.sh").open("a") as script:
        script.write(NO_INSTALLATION)
    for name, text in TOOLS.items():
        tool = tmp_path / "bin" / name
        tool.write_text(text)
        tool.chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = with_stand_in | {"CLOUD": str(world), "BERTJAX_TEST_PYTHON": str(python)}

    def start(launcher: str, *arguments: str, stand_in: str = "", **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [str(checkout / "launch" / launcher), *arguments],
            env=environment | variables | {"STAND_IN": stand_in},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def wait_for_output(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def test_slurm_job_requeues_and_resumes(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    keys = ["--run-dir", str(tmp_path / "run"), *STEPS]
    output = wait_for_output(cloud("slurm.sh", "--nodes", "2", "configs/quickstart.py", *keys, stand_in="0:7:75"))
    starts = [line for line in output.splitlines() if "begins at step" in line]
    assert len(starts) == 4 and "0" not in [line.split()[-1] for line in starts[2:]], output
    assert (tmp_path / "run" / "checkpoints" / "20").is_dir()


@pytest.mark.long  # the suite covers Slurm, and SkyPilot's dry run
def test_skypilot_job_recovers_and_resumes(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "s3://mine/data", *STEPS]
    launcher = ["skypilot.sh", "--gpus", "H100:8", "--nodes", "2", "configs/quickstart.py"]
    output = wait_for_output(cloud(*launcher, *keys, stand_in="0:7:75"))
    starts = [line for line in output.splitlines() if "begins at step" in line]
    assert starts[0] == "process 0 of 2 at 10.0.0.1:8476 begins at step 0"
    assert [line.split()[1] for line in starts] == ["0", "0", "1"] and starts[1].endswith("step 5")


def test_gke_dry_run_prints_the_input_of_kubectl(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    launcher, *arguments = DRY_RUNS["gke"]
    arguments.remove("--build")
    printed = wait_for_output(cloud(launcher, "--dry-run", *arguments))
    wait_for_output(cloud(launcher, *arguments))
    world = tmp_path / "cloud"
    assert (
        printed == f'kubectl {(world / "calls").read_text().strip()} <<"END"\n{(world / "manifest").read_text()}END\n'
    )


@pytest.mark.parametrize("name", ["gke_tpu7x", "xpk"])
def test_env_values_reach_the_cluster(name: str, cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    launcher, *arguments = DRY_RUNS[name]
    wait_for_output(cloud(launcher, "--env", "MY_KEY,MY_PROJECT", *arguments, MY_KEY="open sesame", MY_PROJECT="bert"))
    assert (tmp_path / "cloud" / "secret").read_text() == "MY_KEY=open sesame\nMY_PROJECT=bert\n"
    assert not list((tmp_path / "checkout").rglob("build/*/*"))


@pytest.mark.parametrize("state", ["Completed", "Failed", ""])
def test_ended_jobset_is_replaced(state: str, cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    launcher, *arguments = DRY_RUNS["gke_tpu7x"]
    (tmp_path / "cloud" / "jobset").write_text(f"JobSet {state}")
    process = cloud(launcher, *arguments)
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, (tmp_path / "cloud" / "manifest").exists()) == ((0, True) if state else (1, False)), (
        output
    )
    assert ("has ended" if state else "the JobSet mine is already running") in output
    assert "kubectl logs --follow --tail=-1 --selector jobset.sigs.k8s.io/jobset-name=mine,jobset" in output


TPU = ["--name", "mine", "--zone", "z", "--type", "v5litepod-16", "--poll", "0.2", "configs/quickstart.py"]


def test_preempted_tpu_is_requested_again(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    run, world = tmp_path / "run", tmp_path / "cloud"
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "gs://mine/data", *STEPS]
    process = cloud("tpu_vm.sh", "--env", "MY_KEY", *TPU, *keys, stand_in="0:7:wait", MY_KEY="open sesame")
    wait_for(lambda: (world / "sent").exists(), process)
    with (tmp_path / "checkout" / "configs" / "bert_base.py").open("a") as recipe:
        recipe.write("# changed while it runs\n")
    switch_off_hosts("SUSPENDED", world, run, process)
    output = wait_for_output(process)
    assert (run / "environment").read_text() == "open sesame"  # only --env passes it to a host
    first, second = (world / "sent").read_text().split("-\n")[:2]
    assert first == second  # the run's code, without later changes
    assert not list((tmp_path / "checkout" / "build" / "mine").iterdir())  # the next run builds its own package
    assert "the TPU was preempted; requesting another one" in output and "done; everything is in" in output
    calls = [" ".join(line.split()[2:4]) for line in (world / "calls").read_text().splitlines()]
    assert calls.count("queued-resources create") == 2 and calls.count("queued-resources delete") == 2
    assert (run / "checkpoints" / "20").is_dir() and not (world / "state").exists()


def test_tpu_that_was_never_active_is_not_requested_again(
    cloud: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "gs://mine/data", *STEPS]
    (tmp_path / "cloud" / "state").write_text("FAILED\n")
    process = cloud("tpu_vm.sh", *TPU, *keys)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "queued-resources delete mine --zone=z --force" in output, output


@pytest.mark.long  # the suite covers a preempted TPU
def test_lost_tpu_is_requested_again(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "gs://mine/data", *STEPS]
    process = cloud("tpu_vm.sh", *TPU, *keys, stand_in="0:7:wait")
    switch_off_hosts("FAILED", tmp_path / "cloud", tmp_path / "run", process)
    output = wait_for_output(process)
    assert "the TPU is lost; requesting another one" in output and "done; everything is in" in output


def test_tpu_needs_gclouds_key_in_the_ssh_agent(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    """Otherwise gcloud refuses to connect to several workers while the TPU is billed."""
    agent = tmp_path / "bin" / "ssh-add"
    agent.write_text("#!/bin/sh\necho ssh-ed25519 AAAAother me\n")
    agent.chmod(0o755)
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "gs://mine/data", *STEPS]
    process = cloud("tpu_vm.sh", *TPU, *keys)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "ssh-add" in output and "google_compute_engine" in output, output
    assert not (tmp_path / "cloud" / "calls").exists()


def test_tpu_of_a_failed_job_is_kept(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    keys = ["--run-dir", f"file://{tmp_path}/run", "--data.root", "gs://mine/data", *STEPS]
    process = cloud("tpu_vm.sh", *TPU, *keys, stand_in="0:always:2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "workers ended with exit code 2" in output, output
    assert "queued-resources delete mine --zone=z --force" in output and (tmp_path / "cloud" / "state").exists()


def switch_off_hosts(state: str, world: Path, run: Path, process: subprocess.Popen) -> None:
    """Take a TPU away while both hosts wait in the middle of the run, and let the next one continue."""
    wait_for(lambda: len(list(run.glob("waiting-*"))) == 2, process)
    assert (run / "checkpoints" / "5").is_dir()
    hosts = sorted((world / "hosts").iterdir())
    assert [host.name for host in hosts] == ["mine-0", "mine-1"]
    # Read first, because the launcher removes them as soon as it sees the state.
    leaders = [int((host / "bertjax" / "build" / "detached" / "pid").read_text()) for host in hosts]
    (world / "state").write_text(f"{state}\n")
    for leader in leaders:
        kill_session(leader)
    (run / "go").touch()


def kill_session(leader: int) -> None:
    """Kill all processes of a host, as if it was switched off."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    family = [leader]
    for pid in family:
        family += children.get(pid, [])
    for pid in family:
        with contextlib.suppress(ProcessLookupError):  # it may have ended with its parent
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.05)


def test_run_executes_the_command_of_the_page(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    (tmp_path / "bin" / "bertjax").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (command,) = (one for one in documented_launches() if "/run.sh" in one)
    assert [command] == [" ".join(line.split()) for line in PREPARE]
    launcher, *arguments = shlex.split(command)
    printed = wait_for_output(cloud(launcher.rpartition("/")[2], *arguments)).splitlines()
    assert arguments[:2] == ["[gcs]", "bertjax"] and printed[1:] == arguments[2:]


@pytest.mark.long
def test_quickstart_of_the_page_trains(cloud: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    assert "./launch/quickstart.sh" in documented_launches()
    run = tmp_path / "run"
    sizes = ["--training.steps", "2", "--training.eval-rows", "8", "--model.hidden-size", "16", "--run-dir", str(run)]
    sizes += ["--model.num-attention-heads", "2", "--model.num-hidden-layers", "1"]
    wait_for_output(cloud("quickstart.sh", *sizes))
    assert (run / "report.html").is_file()
