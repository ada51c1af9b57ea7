"""A local S3 server for tests of remote paths."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter

MISSING = [name for name in ("s3fs", "moto", "flask") if importlib.util.find_spec(name) is None]


class Server:
    """A running server, on which every requested bucket is new."""

    def __init__(self, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = log
        with open(log, "w") as output:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._buckets = 0
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def environment(self):
        """Environment variables that direct clients to the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def bucket(self):
        """Create a bucket and return its URL."""
        import fsspec

        self._buckets += 1
        fsspec.filesystem("s3").mkdir(f"bucket-{os.getpid()}-{self._buckets}")
        return f"s3://bucket-{os.getpid()}-{self._buckets}"

    def writes(self, bucket):
        """Object name -> number of writes, in a bucket."""
        below = re.escape(bucket.removeprefix("s3:/"))
        return Counter(re.findall(rf'"PUT {below}/(\S+) HTTP', self._log.read_text()))

    def stop(self):
        self._process.kill()
        self._process.wait()

    def _answers(self):
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self._port)) == 0
