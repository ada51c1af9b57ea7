"""Process numbers from the variables of each cluster, compared with JAX's detection if it has one."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace

import jax._src.clusters as jax_clusters
import pytest

from bertjax.config import HostsConfig
from bertjax.runtime import clusters
from bertjax.runtime.clusters import ALONE, ProcessInfo, find_process, split_address

SLURM = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "node[007-009,012],other",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}
GKE = {"TPU_WORKER_HOSTNAMES": "t-0.job,t-1.job,t-2.job,t-3.job", "TPU_WORKER_ID": "2"}
SLICES = GKE | {
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "s-0.job:8080",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node007", "node007"),
        ("node1,other", "node1"),
        ("node[001-015],other", "node001"),
        ("n[3,7-9]", "n3"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]-x", "rack1-x"),
    ],
)
def test_slurm_variables_match_jax(monkeypatch: pytest.MonkeyPatch, nodes: str, first: str) -> None:
    variables = SLURM | {"SLURM_STEP_NODELIST": nodes}
    info = find_process(HostsConfig(), variables)
    assert info == ProcessInfo("slurm", f"{first}:{61_440 + 123_456 % 4096}", 8, 5)
    if first != "rack1-x":  # which JAX truncates
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        theirs = jax_clusters.SlurmCluster
        address = theirs.get_coordinator_address(timeout_secs=1, override_coordinator_port=None)
        assert (info.coordinator, info.processes, info.process) == (
            address,
            theirs.get_process_count(),
            theirs.get_process_id(),
        )


@pytest.mark.parametrize(
    ("visible", "tasks", "devices"),
    [
        ("0,1,2,3", "4(x2)", (1,)),
        ("0,1,2,3,4,5,6,7", "4(x2)", (2, 3)),
        ("0,1,2,3", "1(x2)", None),
        (None, "4", None),
    ],
)
def test_slurm_tasks_share_the_gpus_of_a_node(visible: str | None, tasks: str, devices: tuple[int, ...] | None) -> None:
    variables = SLURM | {"SLURM_STEP_TASKS_PER_NODE": tasks} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    assert find_process(HostsConfig(), variables).local_devices == devices
    assert find_process(HostsConfig(), variables | {"SLURM_GPUS_PER_TASK": "2"}).local_devices is None


@pytest.mark.parametrize("visible", ["2", "0,1,2"])
def test_uneven_gpus_per_task_are_refused(visible: str) -> None:
    with pytest.raises(ValueError, match=rf"CUDA_VISIBLE_DEVICES={visible} for 2 tasks .*--gpus-per-task"):
        find_process(HostsConfig(), SLURM | {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize("variables", [GKE, SLICES])
def test_tpu_variables_match_jax(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    monkeypatch.setattr(clusters, "_has_tpu", lambda _: True)
    info = find_process(HostsConfig(), variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    theirs = jax_clusters.GkeTpuCluster
    monkeypatch.setattr(theirs, "wait_for_coordinator", lambda *_: None)
    monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.get_metadata", lambda _: ("", 404))
    address = theirs.get_coordinator_address(timeout_secs=1, override_coordinator_port=str(clusters.PORT))
    assert info == ProcessInfo("tpu", address, theirs.get_process_count(), theirs.get_process_id())


@pytest.fixture
def metadata() -> Iterator[tuple[str, dict[str, str]]]:
    """Address and attributes of a server that acts like the metadata server of a Google machine."""
    attributes: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            value = attributes.get(self.path.rpartition("/")[2])
            self.send_response(404 if value is None or self.headers["Metadata-Flavor"] != "Google" else 200)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", attributes
        server.shutdown()


@pytest.mark.parametrize("endpoints", ["w0:0:10.0.0.4,w1:1:10.0.0.5", "10.0.0.4,10.0.0.5"])
def test_tpu_metadata_gives_process_and_slices(
    monkeypatch: pytest.MonkeyPatch, metadata: tuple[str, dict[str, str]], endpoints: str
) -> None:
    monkeypatch.setattr(clusters, "_has_tpu", lambda _: True)
    server, attributes = metadata
    attributes |= {"worker-network-endpoints": endpoints, "agent-worker-number": "1", "tpu-env": "ZONE: 'z'\n"}
    assert find_process(HostsConfig(), {"GCE_METADATA_IP": server}) == ProcessInfo("tpu", "10.0.0.4:8476", 2, 1)
    attributes["tpu-env"] += "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    attributes["tpu-env"] += "MEGASCALE_COORDINATOR_ADDRESS: '10.9.0.1:8080'\n"
    assert find_process(HostsConfig(), {"GCE_METADATA_IP": server}) == ProcessInfo("tpu", "10.9.0.1:8476", 4, 3)


def test_kubernetes_pod_name_gives_the_coordinator() -> None:
    named = POD | {"BERTJAX_POD_NAME": "bert-workers-0-3.bert.default.svc.cluster.local"}
    four = HostsConfig(processes=4)
    assert find_process(four, named) == ProcessInfo(
        "kubernetes", "bert-workers-0-0.bert.default.svc.cluster.local:8476", 4, 3
    )
    assert find_process(replace(four, coordinator="c:1"), POD).coordinator == "c:1"
    with pytest.raises(ValueError, match="does not tell a pod the number of pods"):
        find_process(HostsConfig(), named)
    with pytest.raises(ValueError, match="cannot be derived from the pod's name"):
        find_process(four, POD | {"BERTJAX_POD_NAME": "somewhere"})


def test_address_from_keys_or_variables() -> None:
    keys = HostsConfig(coordinator="10.0.0.2:8476", processes=3, process=1)
    assert find_process(keys, {}) == ProcessInfo("address", "10.0.0.2:8476", 3, 1)
    variables = {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
    assert find_process(HostsConfig(), variables) == ProcessInfo("address", "h:1", 2, 0)
    # The cluster provides the process number, the config the address of process 0.
    assert find_process(HostsConfig(coordinator="h:1"), SLURM).coordinator == "h:1"


def test_no_cluster_is_one_process() -> None:
    assert find_process(HostsConfig(), {}) == ALONE
    assert find_process(HostsConfig(cluster="one"), SLURM) == ALONE


@pytest.mark.parametrize(
    ("hosts", "variables", "message"),
    [
        (HostsConfig(processes=16), SLURM, "hosts.processes=16, but there are 8 processes"),
        (HostsConfig(processes=2), {}, "hosts.processes=2, but there are 1 processes"),
        (HostsConfig(process=2), SLURM, "hosts.process=2, but this is process 5"),
        (HostsConfig(coordinator="h:1"), {}, "no cluster provides the number of this process"),
        (HostsConfig(coordinator="h:1", processes=2, process=2), {}, "numbered from 0"),
        (HostsConfig(coordinator="h", processes=2, process=1), {}, "write it as HOST:PORT"),
        (HostsConfig(cluster="slurm"), {}, "start the processes by srun"),
        (HostsConfig(cluster="kubernetes"), {}, "an indexed Job sets"),
        (HostsConfig(cluster="address"), {}, "set hosts.coordinator"),
        (HostsConfig(cluster="tpu"), {"JAX_PLATFORMS": "cpu"}, "no TPU"),
    ],
)
def test_contradictory_settings_are_refused(hosts: HostsConfig, variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_process(hosts, variables)


def test_split_address_requires_host_and_port() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    for wrong in ("host", "host:", ":80", "host:x", "host:70000"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            split_address(wrong)
