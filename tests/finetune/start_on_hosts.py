"""One of several processes that read a model in Hugging Face's layout to fine-tune it.

python start_on_hosts.py SOURCE PROCESS PROCESSES COORDINATOR
"""

from __future__ import annotations

import hashlib
import sys

import jax

from bertjax.config import HostsConfig
from bertjax.pipeline.finetuning import read_start
from bertjax.runtime.processes import join


def main() -> None:
    source, process, processes, coordinator = sys.argv[1:]
    with join(HostsConfig(coordinator=coordinator, processes=int(processes), process=int(process))) as together:
        params = read_start(source).params
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(params))).hexdigest()
        print(f"read {together.gather('digest', digest)}", flush=True)


if __name__ == "__main__":
    main()
