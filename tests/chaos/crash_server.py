"""Fork a process for each action whose system calls are counted; runs with `failing_calls.c` in LD_PRELOAD.

python crash_server.py LIBRARY

Reads one JSON object per line (subject, folder, call, how) and answers with another: the exit code, the number of calls
and the error message. All imports happen once, before anything starts threads.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

SECONDS = 600  # for one action, on a machine that others use too
UNEXPECTED = 2


def main() -> None:
    calls = ctypes.CDLL(sys.argv[1])
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.path += sorted(str(room) for room in Path(__file__).parent.parent.iterdir() if room.is_dir())
    import crash_subjects

    os.write(answers, b"ready\n")
    while line := sys.stdin.readline():
        job = json.loads(line)
        with tempfile.TemporaryFile("w+") as messages:
            child = os.fork()
            if child == 0:
                act(crash_subjects.SUBJECTS[job["subject"]].act, job, calls, messages)
            code = wait_for_exit(child)
            messages.seek(0)
            counted, _, message = messages.read().partition("\n")
        answer = {"code": code, "counted": int(counted or 0), "message": message.strip()}
        os.write(answers, json.dumps(answer).encode() + b"\n")


def act(action: object, job: dict, calls: ctypes.CDLL, messages: object) -> None:
    """Run the action with a failing call, and exit this process."""
    code, message = UNEXPECTED, ""
    try:
        calls.failing_calls_arm(job["folder"].encode(), ctypes.c_long(job["call"]), job["how"])
        action(Path(job["folder"]))
        code = 0
    except (OSError, ValueError) as error:
        code, message = 1, str(error)
    except BaseException:
        message = traceback.format_exc()
    messages.write(f"{calls.failing_calls_counted()}\n{message}\n")
    messages.flush()
    os._exit(code)


def wait_for_exit(child: int) -> int:
    """Return the exit code of a child; kill it if it takes too long."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


if __name__ == "__main__":
    main()
