"""A run directory in object storage: checkpoints are complete, verified by digests, and owned by one job."""

import itertools
import re
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.futures import future as signals
from save_on_hosts import STATE
from several_processes import Group, as_words
from test_checkpoint import abstract, mesh_of, metadata, same, state_at

from bertjax.run.checkpoint import Checkpoints, DamagedCheckpoint, read_metadata, restore_params
from bertjax.run.telemetry import METRICS_FILE, open_telemetry, read_metrics
from bertjax.storage import remote
from bertjax.storage import remote_run as mirror
from bertjax.storage.remote import RemoteError, RemotePath
from bertjax.storage.remote_run import OWNER_FILE, Claim, LostClaim, Mirror, staging_dir

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


_NUMBERS = itertools.count()
_LONG_S3 = pytest.param("s3", marks=pytest.mark.long)
ON_BOTH = pytest.mark.parametrize("bucket", ["memory", _LONG_S3], indirect=True)


@pytest.fixture
def bucket(request):
    """The URL of an empty bucket, in memory by default."""
    kind = getattr(request, "param", "memory")
    return request.getfixturevalue("s3") if kind == "s3" else f"memory://{next(_NUMBERS)}"


@pytest.fixture
def run(bucket):
    return RemotePath(f"{bucket}/runs/one")


@pytest.fixture
def staging(run, tmp_path):
    with staging_dir(run, str(tmp_path / "cache"), process=0) as staging:
        staging.claim.take()
        yield staging


def save(run, staging, *steps, **retention):
    split = NamedSharding(mesh_of(2, 2), PartitionSpec("data"))
    with Checkpoints(run / "checkpoints", **{"keep_last": 9} | retention, staging=staging) as checkpoints:
        for step in steps:
            assert checkpoints.save(step, state_at(step, split), metadata())
    return Checkpoints(run / "checkpoints", **{"keep_last": 9} | retention, staging=staging)


def damage(run, step, name):
    """Change a byte in an array's largest piece."""
    folder = run / "checkpoints" / str(step) / "state" / name.replace("/", ".")
    sizes = folder.sizes()
    piece = folder / max(sizes, key=sizes.get)
    content = bytearray(piece.read_bytes())
    content[len(content) // 2] ^= 1
    piece.write_bytes(bytes(content))


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)  # the tests below restore from memory
def test_checkpoint_is_restored_on_another_mesh(run, staging):
    saved = save(run, staging, 3, 5)
    assert saved.steps() == [3, 5]
    for sharding in (NamedSharding(mesh_of(8), PartitionSpec("data")), NamedSharding(mesh_of(1), PartitionSpec())):
        expected = state_at(5, sharding)
        restored = saved.restore(abstract(expected), metadata())
        assert restored.step == 5 and same(restored.state, expected)
    assert read_metadata(run)["step"] == 5 and read_metadata(f"{run}/checkpoints/3")["step"] == 3
    assert not list(staging.folder.iterdir()), "staged and copied files are not needed any more"


def test_processes_send_no_signals_on_own_folders(run, staging, monkeypatch):
    """All processes share the names of Orbax's signals, so one would wait for a signal that another withdraws, or that
    is about another folder."""
    sent = []
    monkeypatch.setattr(signals, "set_signals", lambda words, **_: sent.extend(words))
    monkeypatch.setattr(signals.AwaitableSignalsContract, "add_to_awaitable_signals_contract", sent.extend)
    monkeypatch.setattr(signals.AwaitableSignalsContract, "remove_all_awaitable_signals", sent.append)
    save(run, staging, 3)
    assert sent == []


@pytest.mark.long
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_several_processes_write_every_object_once(bucket, run, server, tmp_path):
    """Google's storage refuses more than one write of an object per second, and a restart reads every object."""
    script = [sys.executable, Path(__file__).with_name("save_on_hosts.py"), str(run), tmp_path]

    with Group(script, 2, tmp_path / "saved.log", devices=4, address=as_words) as group:
        group.finish()
    written = server.writes(bucket)
    assert {name: times for name, times in written.items() if times > 1} == {"runs/one/owner.json": 2}
    arrays = "params.bias/.zarray params.kernel/.zarray", "step/.zarray"
    assert f"uploads {arrays[0]} params.kernel/0.0 {arrays[1]}\n" in group.logs[0], "one object an array"
    assert "uploads params.bias/0 step/0\n" in group.logs[1], "the largest come from different processes"
    downloads = [sum(int(amount) for amount in re.findall(r"^downloads (\d+)$", log, re.M)) for log in group.logs]
    whole = sum(size for name, size in (run / "sharded").sizes().items() if re.search(r"/kernel/[\d.]+$", name))
    assert all("restored\n" in log for log in group.logs)
    assert downloads == pytest.approx([whole / 2] * 2, rel=0.01), "each process its own shards"
    expected = jax.device_put(STATE, jax.devices()[0])
    assert same(Checkpoints(run / "checkpoints", keep_last=1).restore(abstract(expected), metadata()).state, expected)


def test_only_requested_arrays_are_copied(run, staging, monkeypatch):
    save(run, staging, 7)
    copied = []
    download = RemotePath.download_all
    monkeypatch.setattr(RemotePath, "download_all", lambda *a: (copied.extend(a[2]), download(*a)))
    expected = state_at(7).params
    assert same(restore_params(str(run), abstract(expected)), expected)
    assert any(name.startswith("params.embed.kernel/") for name in copied)
    assert not any(name.startswith("opt_state") for name in copied)


def test_old_checkpoints_go_and_permanent_ones_stay(run, staging):
    saved = save(run, staging, *range(1, 8), keep_last=2, keep_every=3)
    assert saved.steps() == [3, 6, 7]
    assert {name.partition("/")[0] for name in (run / "checkpoints").sizes()} == {"3", "6", "7"}


@ON_BOTH
def test_incomplete_checkpoint_is_ignored_and_removed(run, staging):
    """As left by a process that was killed while it uploaded a checkpoint, or removed an old one."""
    save(run, staging, 3, 5)
    (run / "checkpoints/5/metadata/metadata").unlink()
    (run / "checkpoints/6/state/params.embed.kernel/0.0").write_bytes(b"half")
    saved = Checkpoints(run / "checkpoints", keep_last=9, staging=staging)
    assert saved.steps() == [3]
    assert saved.restore(abstract(state_at(3)), metadata()).step == 3
    save(run, staging, 4)
    assert {name.partition("/")[0] for name in (run / "checkpoints").sizes()} == {"3", "4"}


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_save_with_a_failed_listing_deletes_nothing(run, staging, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    save(run, staging, 3)
    before, look_up = (run / "checkpoints").sizes(), s3fs.S3FileSystem._info

    async def fail(self, path, *arguments, **more):
        if path.endswith("/metadata/metadata"):
            raise OSError("the storage is busy")
        return await look_up(self, path, *arguments, **more)

    with monkeypatch.context() as patched, pytest.raises(RemoteError, match="the storage is busy"):
        patched.setattr(s3fs.S3FileSystem, "_info", fail)
        s3fs.S3FileSystem.clear_instance_cache()  # cached instances are bound to the original method
        save(run, staging, 4)
    s3fs.S3FileSystem.clear_instance_cache()
    assert (run / "checkpoints").sizes() == before


@ON_BOTH
def test_damaged_array_is_named_and_set_aside(run, staging):
    saved = save(run, staging, 3, 5)
    damage(run, 5, "params/embed/kernel")
    message = rf"{run}/checkpoints/5 is damaged: digest mismatch in params/embed/kernel\n.*previous"
    with pytest.raises(DamagedCheckpoint, match=message):
        saved.restore(abstract(state_at(5)), metadata())
    restored = saved.restore(abstract(state_at(3)), metadata(), "previous")
    assert restored.step == 3 and f"set aside as {run}/checkpoints/5.damaged" in restored.notices[0]
    assert saved.steps() == [3]
    assert (run / "checkpoints/5.damaged/metadata/metadata").is_file()
    assert not (run / "checkpoints/5").exists()


def test_missing_pieces_are_damage(run, staging):
    saved = save(run, staging, 5)
    (run / "checkpoints/5/state/params.embed.kernel").rmtree()
    with pytest.raises(DamagedCheckpoint, match="5 is damaged: params/embed/kernel cannot be read"):
        saved.restore(abstract(state_at(5)), metadata())


def test_latest_job_owns_the_run(run, staging, tmp_path):
    saved = save(run, staging, 3)
    assert saved.save(4, state_at(4), metadata())
    saved.wait()
    with staging_dir(run, str(tmp_path / "elsewhere"), process=0) as younger:
        assert saved.save(5, state_at(5), metadata()) and not saved.wait()
        assert "did not end cleanly" in younger.claim.take()
        with pytest.raises(LostClaim, match=f"{run}: another job trains there now") as error:
            saved.save(6, state_at(6), metadata())
        assert error.value.exit_code == 2, "launch/keep_running.py does not restart after this"
        logs = staging.folder / "logs"
        logs.mkdir()
        (logs / "late").write_text("late")
        with pytest.raises(LostClaim, match="stops and writes nothing more"):
            Mirror(logs, run, staging.claim).publish()
        assert saved.steps() == [3, 4, 5] and not (run / "late").exists()
        save(run, younger, 6)
    assert saved.steps() == [3, 4, 5, 6]
    with staging_dir(run, str(tmp_path / "third"), process=0) as third:
        assert third.claim.take() is None, "the previous job ended cleanly"


def test_overtaken_job_publishes_no_checkpoint(run, staging, monkeypatch):
    upload = RemotePath.upload_all

    def overtaken(place, folder, names):
        upload(place, folder, names)
        Claim(run).take()

    saved = Checkpoints(run / "checkpoints", keep_last=2, staging=staging)
    monkeypatch.setattr(RemotePath, "upload_all", overtaken)
    saved.save(1, state_at(1), metadata())
    with pytest.raises(LostClaim, match="another job trains there now"):
        saved.wait()
    assert saved.steps() == []


def test_second_process_on_one_machine_is_refused(run, staging, tmp_path):
    with (
        pytest.raises(ValueError, match=f"{run}: another process is training there"),
        staging_dir(run, str(tmp_path / "cache"), process=0),
    ):
        pass
    with staging_dir(run, str(tmp_path / "cache"), process=1) as other:
        assert other.claim is None and other.folder != staging.folder


def test_staging_of_a_killed_process_is_removed(run, tmp_path):
    with staging_dir(run, str(tmp_path), process=0) as staging:
        folder = staging.folder
    folder.mkdir()
    (folder / "left").write_bytes(bytes(100))
    with staging_dir(run, str(tmp_path), process=0):
        assert not list(folder.iterdir())
    assert not folder.exists()


def test_two_directories_are_written_at_the_same_time(run, staging, monkeypatch):
    """A run with early stopping saves its best weights next to its checkpoints, possibly at the same step."""
    upload, begun = RemotePath.upload_all, threading.Event()

    def wait_and_upload(place, folder, names):
        begun.wait(60)
        upload(place, folder, names)

    monkeypatch.setattr(RemotePath, "upload_all", wait_and_upload)
    state = state_at(3)
    both = [Checkpoints(run / name, keep_last=1, staging=staging) for name in ("checkpoints", "best")]
    for saved in both:
        assert saved.save(3, state, metadata())
    begun.set()
    for saved in both:
        saved.close()
        assert same(saved.restore(abstract(state), metadata()).state, state)


def test_failed_save_is_named_and_the_next_one_works(run, staging, monkeypatch):
    saved = Checkpoints(run / "checkpoints", keep_last=2, staging=staging)
    with monkeypatch.context() as patched:

        def refused(place, folder, names):
            raise remote.RemoteError(f"{place}: cannot be written")

        patched.setattr(RemotePath, "upload_all", refused)
        saved.save(1, state_at(1), metadata())
        with pytest.raises(OSError, match=f"{run}/checkpoints/1 was not written: .*cannot be written.*continues from"):
            saved.wait()
    assert saved.steps() == []
    assert saved.save(2, state_at(2), metadata())
    saved.close()
    assert saved.steps() == [2]


def test_removed_run_is_named(run, staging):
    saved = save(run, staging, 1)
    run.rmtree()
    with pytest.raises(LostClaim, match=rf"{run}/{OWNER_FILE}.* was removed"):
        saved.save(2, state_at(2), metadata())


def test_copy_with_too_little_room_is_refused(run, staging, monkeypatch):
    saved = save(run, staging, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(OSError, match=r"downloading it to .* needs [\d,]+ bytes and 100 are\s+free; make room"):
        saved.restore(abstract(state_at(1)), metadata())
    with pytest.raises(OSError, match=r"checkpoints/2 needs .* 100 free; nothing was written"):
        saved.save(2, state_at(2), metadata())


def steps_in(run):
    return [record["step"] for record in read_metrics(run / METRICS_FILE)]


@ON_BOTH
def test_curves_reach_the_run_whole(run, staging):
    """Curves published before a kill stay, up to the step where the run resumes."""
    telemetry = open_telemetry(run, 0, staging=staging)
    for step in (1, 2, 3):
        telemetry.write(step, {"train/mlm_loss": 1.0})
    assert not (run / METRICS_FILE).exists(), "lines are not uploaded one by one"
    telemetry.publish()
    telemetry.write(4, {"train/mlm_loss": 1.0})
    assert steps_in(run) == [1, 2, 3]
    for file in (staging.folder / "logs").rglob("*"):  # the process is killed here, and its machine is lost
        if file.is_file():
            file.unlink()
    for folder in ("tensorboard", ""):
        (staging.folder / "logs" / folder).rmdir()
    time.sleep(1.1)  # TensorBoard's file names have the time in seconds
    with open_telemetry(run, 2, staging=staging) as resumed:
        resumed.write(3, {"train/mlm_loss": 2.0})
    assert steps_in(run) == [1, 2, 3]
    assert [record["train/mlm_loss"] for record in read_metrics(run / METRICS_FILE)] == [1.0, 1.0, 2.0]
    assert len([name for name in (run / "tensorboard").sizes() if "tfevents" in name]) == 2


def test_mirror_uploads_only_changed_files(run, staging, monkeypatch):
    sent = []
    upload = RemotePath.upload_all
    monkeypatch.setattr(RemotePath, "upload_all", lambda *a: (sent.append(list(a[2])), upload(*a)))
    folder = staging.folder / "logs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "deep/b").write_text("2")
    mirrored = Mirror(folder, run, staging.claim)
    mirrored.publish()
    mirrored.publish()
    (folder / "a").write_text("11")
    mirrored.publish()
    assert sent == [["a", "deep/b"], ["a"]]
    assert (run / "a").read_text() == "11" and (run / "deep/b").read_text() == "2"


def test_logs_are_uploaded_in_the_background(run, staging, monkeypatch):
    """Between saves, lines are uploaded after some time; a failed upload is retried by the next `publish`."""
    monkeypatch.setattr(mirror, "UPLOAD_SECONDS", 0.0)
    telemetry = open_telemetry(run, 0, loggers=(), staging=staging)
    telemetry._mirror._seconds = 0.0
    upload, broken = RemotePath.upload_all, threading.Event()

    def fails_once(place, folder, names):
        if not broken.is_set():
            broken.set()
            raise remote.RemoteError("the network is away")
        upload(place, folder, names)

    monkeypatch.setattr(RemotePath, "upload_all", fails_once)
    deadline = time.monotonic() + 120
    step = 0
    while not (run / METRICS_FILE).exists():
        assert time.monotonic() < deadline
        step += 1
        telemetry.write(step, {"train/mlm_loss": 1.0})
        time.sleep(0.02)
    assert broken.is_set()
    telemetry.close()
    assert steps_in(run) == list(range(1, step + 1))
