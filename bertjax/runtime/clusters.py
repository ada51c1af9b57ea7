"""Find the number of a process in its job and the coordinator's address, from cluster variables and metadata.

`hosts.cluster=auto` takes the first match of: a coordinator's address, Slurm, a TPU pod, Kubernetes. Without a match
the process runs alone.
"""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertjax.config import HostsConfig

PORT = 8476  # of the coordinator, unless the cluster or JAX_COORDINATOR_PORT names another
_METADATA_SECONDS = 5


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job."""

    cluster: str  # source of this information
    coordinator: str  # HOST:PORT of process 0; empty for a single process
    processes: int
    process: int
    local_devices: tuple[int, ...] | None = None  # indices of this process's GPUs, where processes share a machine


ALONE = ProcessInfo("one", "", 1, 0)

Environment = Mapping[str, str]


def find_process(hosts: HostsConfig, environment: Environment | None = None) -> ProcessInfo:
    """Find the number of this process and its coordinator, from `hosts` and the environment.

    Raises ValueError naming the key or variable that is missing or contradicts another.
    """
    environment = os.environ if environment is None else environment
    if hosts.cluster == "one":
        info = ALONE
    elif read := _CLUSTERS.get(hosts.cluster):
        info = read(hosts, environment)
        if info is None:
            raise ValueError(f"hosts.cluster={hosts.cluster!r} was not found; {_REQUIREMENTS[hosts.cluster]}")
    else:
        candidates = (read(hosts, environment) for read in _CLUSTERS.values())
        info = next((info for info in candidates if info is not None), ALONE)
        if hosts.coordinator and info.cluster == "one":
            raise ValueError(
                f"hosts.coordinator={hosts.coordinator!r}, but no cluster provides the number of this process; "
                f"{_REQUIREMENTS['address']}"
            )
    origin = f"(hosts.cluster={hosts.cluster!r}, found: {info.cluster!r})"
    if hosts.processes and info.processes != hosts.processes:
        raise ValueError(
            f"hosts.processes={hosts.processes}, but there are {info.processes} processes {origin}; "
            "start that many, or leave the key out"
        )
    if not 0 <= info.process < info.processes:
        raise ValueError(
            f"this is process {info.process} of {info.processes} {origin}; processes are numbered from 0: "
            "set hosts.process and hosts.processes"
        )
    if hosts.process not in (-1, info.process):
        raise ValueError(f"hosts.process={hosts.process}, but this is process {info.process} {origin}; leave it out")
    if info.processes > 1:
        split_address(info.coordinator)
    return info


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises ValueError for other text."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"hosts.coordinator={address!r}: write it as HOST:PORT, as in 10.0.0.2:{PORT}")
    return host.strip("[]"), int(port)


def _address(hosts: HostsConfig, environment: Environment) -> ProcessInfo | None:
    """Read hosts.coordinator, hosts.processes and hosts.process, or JAX's variables for them."""
    coordinator = hosts.coordinator or environment.get("JAX_COORDINATOR_ADDRESS", "")
    if not coordinator or (hosts.cluster == "auto" and hosts.process < 0 and "JAX_PROCESS_ID" not in environment):
        return None  # a cluster may provide the process number
    process = hosts.process if hosts.process >= 0 else int(environment.get("JAX_PROCESS_ID", "-1"))
    processes = hosts.processes or int(environment.get("JAX_NUM_PROCESSES", "0"))
    if process < 0 or processes < 1:
        raise ValueError(
            f"hosts.coordinator={coordinator!r} with hosts.processes={hosts.processes} and hosts.process="
            f"{hosts.process}: set the number of processes, and the number of this one, from 0"
        )
    return ProcessInfo("address", coordinator, processes, process)


def _slurm(hosts: HostsConfig, environment: Environment) -> ProcessInfo | None:
    """Read the variables of a Slurm task that srun started."""
    if not {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"} <= environment.keys():
        return None
    processes, node = int(environment["SLURM_NTASKS"]), _first_node(environment["SLURM_STEP_NODELIST"])
    # Two jobs may share a node, so each takes its own port among the 4096 highest.
    port = environment.get("JAX_COORDINATOR_PORT") or str(61_440 + int(environment["SLURM_JOB_ID"]) % 4096)
    tasks_here = environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")[0].partition("(")[0]
    devices = _share_of_gpus(int(tasks_here), environment)
    return ProcessInfo(
        "slurm", hosts.coordinator or f"{node}:{port}", processes, int(environment["SLURM_PROCID"]), devices
    )


def _share_of_gpus(tasks: int, environment: Environment) -> tuple[int, ...] | None:
    """Indices of this task's GPUs if all tasks of the node see the same GPUs, else None."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if tasks < 2 or not visible or "SLURM_GPUS_PER_TASK" in environment:
        return None  # the task sees only its own GPUs
    share, rest = divmod(len(visible.split(",")), tasks)
    if rest or not share:
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES={visible} for {tasks} tasks on this node (SLURM_STEP_TASKS_PER_NODE) cannot be "
            "shared evenly; start one task per GPU, or give each task its own GPUs with srun --gpus-per-task"
        )
    local = int(environment["SLURM_LOCALID"])
    return tuple(range(local * share, (local + 1) * share))


def _first_node(nodes: str) -> str:
    """The first node of a Slurm node list, such as `a,b`, `a[1-4,7],b` or `a[01,07]`."""
    prefix, bracket, numbers = nodes.partition("[")
    if not bracket or "," in prefix:
        return prefix.partition(",")[0]
    number, tail = numbers.partition("]")[0], numbers.partition("]")[2]
    return prefix + number.partition(",")[0].partition("-")[0] + tail.partition(",")[0]


def _tpu(hosts: HostsConfig, environment: Environment) -> ProcessInfo | None:
    """Read the variables (GKE, queued resources) or the metadata (TPU VM) of a worker on one or more TPU slices."""
    if not _has_tpu(environment):
        return None
    workers = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if workers is not None and "TPU_WORKER_ID" in environment:
        names, worker = workers.split(","), int(environment["TPU_WORKER_ID"])
    elif "TPU_SKIP_MDS_QUERY" in environment:
        return None
    else:
        endpoints = _metadata("worker-network-endpoints", environment).split(",")
        # Each is a name, or name:id:address in the older format.
        names = [endpoint.split(":")[-1] for endpoint in endpoints]
        worker = int(_metadata("agent-worker-number", environment))
    attributes = {} if "MEGASCALE_NUM_SLICES" in environment or workers is not None else _tpu_env(environment)
    attributes |= environment
    slices, number = int(attributes.get("MEGASCALE_NUM_SLICES") or 1), int(attributes.get("MEGASCALE_SLICE_ID") or 0)
    host = (attributes.get("MEGASCALE_COORDINATOR_ADDRESS") or names[0]).partition(":")[0]
    return ProcessInfo(
        "tpu",
        hosts.coordinator or f"{host}:{environment.get('JAX_COORDINATOR_PORT', PORT)}",
        len(names) * slices,
        worker + number * len(names),
    )


def _has_tpu(environment: Environment) -> bool:
    if environment.get("JAX_PLATFORMS", "tpu").split(",")[0] not in ("tpu", ""):
        return False
    if not [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]:
        return False
    maker = Path("/sys/class/dmi/id/product_name")
    is_google_machine = maker.exists() and "Google" in maker.read_text(errors="replace")
    return "TPU_WORKER_ID" in environment or Path("/usr/share/tpu").exists() or is_google_machine


def _metadata(key: str, environment: Environment) -> str:
    """Read an attribute of a Google machine from its metadata server. Raises OSError."""
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/attributes/{key}", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=_METADATA_SECONDS) as answer:  # noqa: S310
        return answer.read().decode().strip()


def _tpu_env(environment: Environment) -> dict[str, str]:
    """Parse the attribute `tpu-env` of a TPU VM, which has lines of the form `KEY: 'value'`."""
    lines = (line.partition(":") for line in _metadata("tpu-env", environment).splitlines())
    return {key.strip(): value.strip().strip("'") for key, colon, value in lines if colon}


def _kubernetes(hosts: HostsConfig, environment: Environment) -> ProcessInfo | None:
    """Read the index of a pod of an indexed Job or JobSet, whose host name is `<job>-<index>.<subdomain>...`."""
    if not {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environment.keys():
        return None
    process = int(environment["JOB_COMPLETION_INDEX"])
    processes = hosts.processes or int(environment.get("JAX_NUM_PROCESSES", "0"))
    if not processes:
        raise ValueError(
            "hosts.processes=0, but Kubernetes does not tell a pod the number of pods; set hosts.processes, or "
            "hosts.cluster=one"
        )
    coordinator = hosts.coordinator or environment.get("JAX_COORDINATOR_ADDRESS", "")
    if not coordinator and processes > 1:
        name, _, domain = environment.get("BERTJAX_POD_NAME", socket.getfqdn()).partition(".")
        stem, _, index = name.rpartition("-")
        if index != str(process) or not domain:
            raise ValueError(
                f"hosts.coordinator is empty and cannot be derived from the pod's name {name}.{domain}; "
                "give the job a headless service as its subdomain, or set hosts.coordinator"
            )
        coordinator = f"{stem}-0.{domain}:{environment.get('JAX_COORDINATOR_PORT', PORT)}"
    return ProcessInfo("kubernetes", coordinator, processes, process)


_CLUSTERS: dict[str, Callable[[HostsConfig, Environment], ProcessInfo | None]] = {
    "address": _address,
    "slurm": _slurm,
    "tpu": _tpu,
    "kubernetes": _kubernetes,
}
_REQUIREMENTS = {
    "address": "set hosts.coordinator, hosts.processes and hosts.process",
    "slurm": "start the processes by srun, which sets SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS and SLURM_PROCID",
    "tpu": "this machine has no TPU, or is not a worker of a slice (TPU_WORKER_HOSTNAMES, TPU_WORKER_ID or metadata)",
    "kubernetes": "an indexed Job sets KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX",
}
