"""Check the commands in `golden/` with the parsers of their tools: gcloud, xpk and SkyPilot. None of them acts.

python tests/launch/check_tools.py

gcloud runs without an account and without network access: it exits with 2 for an unknown flag, and with 1 for the
missing account. xpk has its own dry run. SkyPilot reads the task, if `sky` can be imported.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
OFFLINE = {
    "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    "CLOUDSDK_CORE_PROJECT": "nobodys",
    "CLOUDSDK_PROXY_TYPE": "http",
    "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
    "CLOUDSDK_PROXY_PORT": "9",
}


def main() -> int:
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | OFFLINE | {"CLOUDSDK_CONFIG": folder}
        for tool, options, valid_codes in (("gcloud", [], (1,)), ("xpk", ["--dry-run"], (0,))):
            if shutil.which(tool) is None:
                print(f"{tool}: skipped, not on the PATH")
                continue
            for command in commands(tool):
                done = subprocess.run([*command, *options], env=environment, cwd=folder, capture_output=True, text=True)
                is_valid = done.returncode in valid_codes
                failures += not is_valid
                print(f"{'valid' if is_valid else 'INVALID'}: {shlex.join(command)[:100]}")
                if not is_valid:
                    print(done.stderr[-1000:] or done.stdout[-1000:])
        failures += not is_task_valid(Path(folder) / "task.yaml")
    return int(failures > 0)


def commands(tool: str) -> list[list[str]]:
    """The distinct commands of a tool in all dry runs."""
    lines = {line for record in GOLDEN.glob("*.txt") for line in record.read_text().splitlines()}
    return [shlex.split(line) for line in sorted(lines) if line.startswith(f"{tool} ")]


def is_task_valid(file: Path) -> bool:
    try:
        import sky
    except ModuleNotFoundError:
        print("sky: skipped, cannot be imported")
        return True
    record = (GOLDEN / "skypilot.txt").read_text()
    file.write_text(record.partition("skypilot.yaml\n")[2].partition("\n# ")[0])
    task = sky.Task.from_yaml(str(file))
    print(f"valid: {task.num_nodes} x {task.resources}")
    return task.num_nodes == 2


if __name__ == "__main__":
    sys.exit(main())
