"""The Apache Beam runner: the same bytes as other runners, each unit once, and errors that name the file."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from small_corpus import changed, content

from bertjax.__main__ import main
from bertjax.storage.progress import no_progress
from bertjax.text import beam, shards
from bertjax.text import prepare as module
from bertjax.text.corpus import Corpus, Unit
from bertjax.text.prepare import prepare, prepare_share
from bertjax.text.sources.source import SourceFile
from bertjax.text.trained_vocabulary import prepare_vocabulary

pytestmark = pytest.mark.run

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None,
    reason="needs Apache Beam: pip install 'bertjax[beam]'",
)

UNITS = [Unit(number, 0, (SourceFile("text", f"part{number}.txt"),), 1) for number in range(5)]


def by_beam(folder, *options):
    return partial(beam.run_units, options=("--runner=DirectRunner", *options), folder=Path(folder))


def test_dask_runner_has_a_short_name_and_small_tasks():
    dask = "apache_beam.runners.dask.dask_runner.DaskRunner"
    assert beam._with_defaults(["--runner=DaskRunner"]) == [f"--runner={dask}", "--dask_partition_size=1"]
    assert beam._with_defaults(["--runner", "DaskRunner", "--dask_npartitions=8"]) == [
        "--runner",
        dask,
        "--dask_npartitions=8",
    ]
    assert beam._with_defaults(["--runner=FlinkRunner"]) == ["--runner=FlinkRunner"]


@pytest.mark.long
@needs_beam
def test_dask_cluster_that_loses_a_worker_gives_same_bytes(data, tmp_path):
    distributed = pytest.importorskip("distributed")
    data = changed(data, root=str(tmp_path / "dask"))
    alone = prepare(changed(data, root=str(tmp_path / "alone")))
    killed = []

    def kill_first_worker(cluster, folder):
        while not killed:
            if list(folder.glob("store-*.partial/unit-*.json")):
                worker = cluster.workers[0]
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
            time.sleep(0.002)

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        killer = threading.Thread(target=kill_first_worker, args=(cluster, Path(data.root)), daemon=True)
        killer.start()
        options = ("--runner=DaskRunner", f"--dask_client_address={cluster.scheduler_address}")
        store = prepare(data, runner=partial(beam.run_units, options=options, folder=Path(data.root)))
        killer.join(60)
        with contextlib.suppress(ValueError):  # Beam leaves its client open
            distributed.default_client().close()
    assert killed and content(store) == content(alone)


def prepared_by_beam(data, *options):
    return prepare(data, runner=by_beam(data.root, *options))


@needs_beam
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="one", marks=pytest.mark.long),  # the suite has it in `test_prepare_command_runs_on_beam`
        pytest.param(("--direct_num_workers=2", "--direct_running_mode=multi_threading"), id="threads"),
    ],
)
def test_same_bytes_from_every_runner(data, tmp_path, options):
    """Compares the store and the vocabulary that is trained for it."""
    roots = [changed(data, vocab="", vocab_size=60, root=str(tmp_path / name)) for name in ("beam", "pool", "shards")]
    stores = [prepared_by_beam(roots[0], *options), prepare(roots[1])]
    for index in range(3):
        prepare_share(roots[2], index, 3)
    stores.append(prepare(roots[2]))
    assert content(stores[0]) == content(stores[1]) == content(stores[2])
    assert len(content(stores[0])) > 30
    vocabularies = [content(prepare_vocabulary(root).parent) for root in roots]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
    assert [path.name.partition("-")[0] for path in sorted(Path(roots[0].root).iterdir()) if path.is_dir()] == [
        "digests",
        "store",
        "vocab",
    ]


SCRIPT = """
import os, sys
from functools import partial
from pathlib import Path
from bertjax.config import DataConfig
from bertjax.text import beam, corpus, prepare, shards
corpus.UNIT_BYTES, corpus.MAX_UNITS = 2500, 1000
def hang_at_four(unit, job):
    if unit.number >= 4:
        import time
        time.sleep(600)
    return shards.make_shards(unit, job)
prepare.make_shards = hang_at_four
if __name__ == "__main__":
    data = DataConfig(**{values!r})
    prepare.prepare(data, runner=partial(beam.run_units, options=["--runner=DirectRunner"], folder=Path(data.root)))
"""


@pytest.mark.long  # the suite kills the other runner, in test_prepare.py
@needs_beam
def test_killed_pipeline_reuses_finished_units(data, tmp_path, monkeypatch):
    expected = content(prepare(data))
    again = changed(data, root=str(tmp_path / "again"))
    (tmp_path / "script.py").write_text(SCRIPT.format(values=vars(again)))
    with open(tmp_path / "log", "w") as log:
        running = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while not (finished := list(Path(again.root).glob("store-*.partial/unit-*.json"))):
        assert running.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.01)
    running.kill()
    running.wait()
    finished = {path.stem for path in Path(again.root).glob("store-*.partial/unit-*.json")}
    assert len(list(Path(again.root).glob("beam-*.partial"))) == 1
    monkeypatch.setattr(module, "make_shards", make_and_record)
    assert content(prepared_by_beam(again)) == expected
    made_units = {f"unit-{number:05}" for number in MADE_NUMBERS}
    assert made_units == {f"unit-{unit.number:05}" for unit in Corpus.of(again).units} - finished
    assert finished and not list(Path(again.root).glob("*.partial"))


MADE_NUMBERS = []


def make_and_record(unit, job):
    MADE_NUMBERS.append(unit.number)
    return shards.make_shards(unit, job)


@needs_beam
def test_bad_text_is_reported_as_by_the_pool(data, tmp_path):
    (tmp_path / "text" / "31.txt").write_bytes(b"ELF\x00\xff\xfe\x80" * 99)
    messages = []
    for runner in (None, by_beam(data.root)):
        with pytest.raises(ValueError, match=r"31\.txt: not ") as error:
            prepare(data, runner=runner)
        messages.append(str(error.value))
        assert not list(Path(data.root).glob("beam-*.partial"))
    assert messages[0] == messages[1]


def fail_at_two(unit):
    if unit.number == 2:
        raise OSError("no more room")
    return unit.number


def run_without_result(unit, function, results):
    function(unit)


@needs_beam
def test_other_failures_name_the_files(tmp_path):
    assert (UNITS[4], [1, 1]) in by_beam(tmp_path)(partial(divmod_of, 3), UNITS, "testing")
    assert list(by_beam(tmp_path)(fail_at_two, [], "testing")) == []
    with pytest.raises(RuntimeError, match=r"^testing: OSError: no more room \(in one of: part2\.txt\); run"):
        list(by_beam(tmp_path)(fail_at_two, UNITS, "testing"))
    assert not list(tmp_path.iterdir())


def divmod_of(by, unit):
    return divmod(unit.number, by)


@needs_beam
def test_folder_that_is_not_shared_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(beam, "_run_unit", run_without_result)
    with pytest.raises(RuntimeError, match=r"testing: .* left nothing in .*beam-.*; set data\.root to a folder"):
        list(by_beam(tmp_path)(partial(divmod_of, 3), UNITS, "testing"))


@needs_beam
def test_prepare_command_runs_on_beam(data, tmp_path, capsys):
    recipe = Path(__file__).parents[2] / "configs" / "quickstart.py"
    fixed = ["--data.sources", *data.sources, "--data.vocab", data.vocab, "--data.held-out", "0.25"]
    roots = [str(tmp_path / name) for name in ("beam", "pool")]
    by_beam = ["--runner", "beam", "--", "--runner=DirectRunner", "--direct_num_workers=1"]
    for root, options in zip(roots, (by_beam, []), strict=True):
        assert main(["prepare", str(recipe), *fixed, "--data.root", root, *options]) == 0
    stores = [next(Path(root).glob("store-*")) for root in roots]
    assert content(stores[0]) == content(stores[1])
    assert f"token store: {stores[0]}" in capsys.readouterr().out


def test_beam_refuses_shards(data, capsys):
    recipe = Path(__file__).parents[2] / "configs" / "quickstart.py"
    fixed = ["--data.sources", *data.sources, "--data.vocab", data.vocab, "--data.root", data.root]
    assert main(["prepare", str(recipe), *fixed, "--runner", "beam", "--shard", "0/2"]) == 1
    assert "--shard runs in processes of this machine; leave out --runner" in capsys.readouterr().err


def test_two_processes_may_make_one_unit(data):
    """The slower or later process replaces the other's files by equal ones."""
    prepare_share(changed(data), 0, 1)
    folder = next(Path(data.root).glob("store-*.partial"))
    record = json.loads((folder / "unit-00001.json").read_bytes())
    corpus = Corpus.of(data)
    _, job, _ = module._plan_store(data, corpus, no_progress, module.processes(1))
    before = content(folder)
    (folder / "unit-00001-left").mkdir()
    unit = corpus.units[1]
    with open(folder / "train-00001.tokens", "rb") as opened:
        assert shards.make_shards(unit, job) == record
        assert os.fstat(opened.fileno()).st_nlink == 0  # replaced, not overwritten while somebody reads it
    (folder / "unit-00001-left").rmdir()
    assert content(folder) == before
    (folder / "unit-00001-left").mkdir()
    assert not [name for name in content(prepare(data)) if name.startswith("unit")]
