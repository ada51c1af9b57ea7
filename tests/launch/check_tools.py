"""Check the commands in `golden/` with the parsers of their tools: gcloud, xpk and SkyPilot. None of them acts.

python tests/launch/check_tools.py

gcloud runs without an account and without a way out: it leaves with 2 for a flag that it does not know, and with 1 for
the lack of an account. xpk has a dry run of its own. SkyPilot, where `sky` can be imported, reads the task.
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
NOWHERE = {
    "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    "CLOUDSDK_CORE_PROJECT": "nobodys",
    "CLOUDSDK_PROXY_TYPE": "http",
    "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
    "CLOUDSDK_PROXY_PORT": "9",
}


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | NOWHERE | {"CLOUDSDK_CONFIG": folder}
        for tool, more, fine in (("gcloud", [], (1,)), ("xpk", ["--dry-run"], (0,))):
            if shutil.which(tool) is None:
                print(f"{tool}: not on the PATH, so not asked")
                continue
            for command in commands(tool):
                done = subprocess.run([*command, *more], env=environment, cwd=folder, capture_output=True, text=True)
                understood = done.returncode in fine
                wrong += not understood
                print(f"{'understood' if understood else 'WRONG'}: {shlex.join(command)[:100]}")
                if not understood:
                    print(done.stderr[-1000:] or done.stdout[-1000:])
        wrong += not task_is_read(Path(folder) / "task.yaml")
    return int(wrong > 0)


def commands(tool: str) -> list[list[str]]:
    """The commands of a tool in all dry runs, each once."""
    lines = {line for record in GOLDEN.glob("*.txt") for line in record.read_text().splitlines()}
    return [shlex.split(line) for line in sorted(lines) if line.startswith(f"{tool} ")]


def task_is_read(file: Path) -> bool:
    try:
        import sky
    except ModuleNotFoundError:
        print("sky: cannot be imported, so not asked")
        return True
    record = (GOLDEN / "skypilot.txt").read_text()
    file.write_text(record.partition("skypilot.yaml\n")[2].partition("\n# ")[0])
    task = sky.Task.from_yaml(str(file))
    print(f"understood: {task.num_nodes} x {task.resources}")
    return task.num_nodes == 2


if __name__ == "__main__":
    sys.exit(main())
