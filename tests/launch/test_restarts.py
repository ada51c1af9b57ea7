"""Restarts: the effect of exit codes and signals, and when a job is given up. A stand-in replaces the run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiers import long_unless

from bertjax.storage.remote import RemotePath

pytestmark = pytest.mark.run
REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(REPOSITORY / "launch"))
import keep_running  # noqa: E402

QUICK = ["--pause", "0.02"]


def command(launcher: str, run: Path, *options: str, steps: int = 12, every: int = 5) -> list[str]:
    """The command line of a launcher, for a stand-in that saves every few steps."""
    run_keys = ["--run-dir", str(run), "--training.steps", str(steps), "--training.checkpoint-every", str(every)]
    bertjax = ["bertjax", "pretrain"] if launcher == "keep_running.py" else []
    recipe = str(REPOSITORY / "configs" / "quickstart.py")
    return [sys.executable, str(REPOSITORY / "launch" / launcher), *QUICK, *options, *bertjax, recipe, *run_keys]


def launch(launcher: str, run: Path, environment: dict[str, str], *options: str, **steps: int) -> tuple[int, str]:
    done = subprocess.run(
        command(launcher, run, *options, **steps), env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


TWO = ["--processes", "2", "--fake-devices", "1"]


@pytest.mark.parametrize(
    ("codes", "steps", "expected"),
    [
        ([0], [], 0),
        ([75, 0], [5], 0),
        ([75, 75, 75, 75, 0], [None] * 4, 0),
        ([137, 0], [5], 0),
        ([1, 1, 1, 1, 0], [None, None, 5, 5], 0),  # a new checkpoint counts as progress
        ([1, 1, 1], [None] * 3, 1),
        ([75] * 10, [None] * 10, 1),
        ([130], [], 130),
        ([2], [], 2),
        ([76], [], 76),
    ],
)
def test_exit_codes_decide_restarts(codes: list[int], steps: list[int | None], expected: int) -> None:
    """Runs end with these codes; all but the last leave these latest checkpoints."""
    ends, newest = iter(codes), iter([None, *steps])
    restarts = keep_running.Restarts(lambda: next(newest), 0.0)
    assert keep_running.keep_running(lambda: next(ends), keep_running.SignalForwarder(), restarts) == expected
    assert not [*ends], "the run was not restarted"


@pytest.mark.parametrize(
    ("faults", "expected", "starts"),
    long_unless(
        lambda faults, expected, starts: faults in ("0:7:75", "0:7:kill"),
        [
            ("", 0, [0]),
            ("0:7:75", 0, [0, 5]),
            ("0:7:kill", 0, [0, 5]),
            ("0:1:1 0:2:1 0:7:1 0:8:1", 0, [0, 0, 0, 5, 5]),
            ("0:always:1", 1, [0, 0, 0]),
            ("0:always:75", 1, [0] * 10),
            ("0:3:2", 2, [0]),
        ],
    ),
)
def test_ended_processes_are_restarted(
    faults: str, expected: int, starts: list[int], with_stand_in: dict[str, str], tmp_path: Path
) -> None:
    environment = with_stand_in | {"STAND_IN": faults}
    code, output = launch("keep_running.py", tmp_path / "run", environment, "--pause", "0.001")
    assert code == expected, output
    assert [int(line.split()[-1]) for line in output.splitlines() if "begins at step" in line] == starts, output


def test_hand_back_does_not_resume_here(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    environment = with_stand_in | {"STAND_IN": "0:1:1 0:7:75"}
    code, output = launch("keep_running.py", tmp_path / "run", environment, "--hand-back")
    assert (code, output.count("begins at step")) == (75, 2), output


@pytest.mark.parametrize("place", ["folder", "url"])
def test_hand_back_gives_up_without_progress(place: str, tmp_path: Path) -> None:
    run, counter = tmp_path / "run", tmp_path / "run" / "resumes.json"
    recipe = str(REPOSITORY / "configs" / "quickstart.py")
    pretrain = [recipe, "--run-dir", f"file://{run}" if place == "url" else str(run)]
    counter.parent.mkdir()

    def exit_code(count: int, step: int | None, **variables: str) -> int:
        counter.write_text(json.dumps({"step": step, "resumes": count}))
        handed_back = keep_running.HandedBack(pretrain, keep_running.is_first_process(pretrain, variables))
        restarts = keep_running.Restarts(lambda: None)
        return keep_running.keep_running(lambda: 75, keep_running.SignalForwarder(), restarts, handed_back)

    assert exit_code(8, None) == 75 and json.loads(counter.read_text()) == {"step": None, "resumes": 9}
    assert exit_code(9, None) == 1
    assert (
        exit_code(9, None, TPU_WORKER_ID="1") == 1 and json.loads(counter.read_text())["resumes"] == 9
    )  # process 0 writes
    assert exit_code(9, 5) == 75 and json.loads(counter.read_text()) == {"step": None, "resumes": 1}


def test_options_of_the_verb_are_not_config_keys() -> None:
    words = ["--show-config", "quickstart", "--log", "tensorboard", "--training.steps", "30", "--run-dir", "r"]
    config = keep_running.read_config(words)
    assert (config.training.steps, config.run_dir) == (30, "r")


@pytest.mark.parametrize("bucket", ["memory", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_unfinished_upload_is_not_a_checkpoint(bucket: str) -> None:
    checkpoints = RemotePath(f"{bucket}/run/checkpoints")
    pretrain = [str(REPOSITORY / "configs" / "quickstart.py"), "--run-dir", f"{bucket}/run"]
    assert keep_running.newest_checkpoint(pretrain) is None
    (checkpoints / "7/state/params.kernel/0.0").write_bytes(b"1")
    assert keep_running.newest_checkpoint(pretrain) is None
    for step in (5, 10):
        (checkpoints / f"{step}/state/params.kernel/0.0").write_bytes(b"1")
    (checkpoints / "5/metadata/metadata").write_bytes(b"{}")
    assert keep_running.newest_checkpoint(pretrain) == 5


def test_storage_error_at_the_start_is_survived(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([None, 5, 5, 5])

    def newest() -> int:
        if (step := next(answers)) is None:
            raise OSError("503 slow down")
        return step

    restarts = keep_running.Restarts(newest, 0.0)
    assert "cannot look for a new checkpoint (OSError: 503 slow down)" in capsys.readouterr().out
    assert [restarts.pause_after(1) for _ in range(3)] == [0.0, 0.0, None]


def test_unknown_key_ends_before_any_start(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    arguments = [*command("keep_running.py", tmp_path / "run"), "--training.stepps", "3"]
    done = subprocess.run(arguments, env=with_stand_in, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "begins" not in done.stdout and "training.stepps" in done.stdout + done.stderr


def test_killed_process_restarts_all(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    environment = with_stand_in | {"STAND_IN": "1:7:kill"}
    code, output = launch("local.py", tmp_path / "run", environment, *TWO)
    assert code == 0, output
    assert "process 1 ended with exit code 137; ending the others" in output
    starts = [line for line in output.splitlines() if "begins at step" in line]
    assert sorted(line[:3] for line in starts) == ["[0]", "[0]", "[1]", "[1]"], output
    assert [line.split()[-1] for line in starts[:2]] == ["0", "0"] and "0" not in [x.split()[-1] for x in starts[2:]]


def test_failed_process_is_named_after_all_ended(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    environment = with_stand_in | {"STAND_IN": "0:7:75 1:7:kill"}
    process = subprocess.Popen(
        command("local.py", tmp_path / "run", *TWO), env=environment, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGSTOP)  # the launcher continues when both have ended
    children = ["ps", "-o", "stat=", "--ppid", str(process.pid)]
    end = time.monotonic() + 300
    while [state[0] for state in subprocess.check_output(children, text=True).split()] != ["Z", "Z"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "process 1 ended with exit code 137; ending the others" in output


def test_repeated_error_ends_the_job(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    environment = with_stand_in | {"STAND_IN": "1:always:1"}
    code, output = launch("local.py", tmp_path / "run", environment, *TWO, steps=4000, every=10_000)
    assert code == 1 and output.count("[1] process 1 of 2") == 3, output
    assert "ended 3 times without a new checkpoint" in output


@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    long_unless(
        lambda launcher, number, code: (launcher == "local.py") == (number == signal.SIGTERM),
        [
            (launcher, number, code)
            for launcher in ("keep_running.py", "local.py")
            for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130))
        ],
    ),
)
def test_signal_reaches_all_and_ends_the_job(
    launcher: str, number: int, code: int, with_stand_in: dict[str, str], tmp_path: Path
) -> None:
    options = TWO if launcher == "local.py" else []
    arguments = command(launcher, tmp_path / "run", *options, steps=2000, every=1000)
    process = subprocess.Popen(arguments, env=with_stand_in, stdout=subprocess.PIPE, text=True)
    output = [process.stdout.readline() for _ in range(2 if options else 1)]
    process.send_signal(number)
    more, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    assert more.count("saved step") == (2 if options else 1) and "begins" not in more


def test_processes_end_with_a_killed_launcher(with_stand_in: dict[str, str], tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs Linux, which signals the death of a parent")
    run = tmp_path / "run"
    arguments = command("local.py", run, *TWO, steps=2000, every=1000)
    process = subprocess.Popen(arguments, env=with_stand_in, stdout=subprocess.PIPE, text=True)
    process.stdout.readline(), process.stdout.readline()
    process.kill()
    process.wait(10)
    process.stdout.close()
    end = time.monotonic() + 300
    while not (run / "checkpoints").is_dir() and time.monotonic() < end:
        time.sleep(0.05)
    assert (run / "checkpoints").is_dir()
