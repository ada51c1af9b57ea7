import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint._src.path import async_path

from bertjax.config import Config, to_dict
from bertjax.run import checkpoint
from bertjax.run.checkpoint import (
    Checkpoints,
    containing_run,
    read_metadata,
    restore_params,
)
from bertjax.run.checkpoint_metadata import DamagedCheckpoint, make_document, run_metadata

P = PartitionSpec
# A failed read leaves Orbax's other reads unfinished, and Python warns when it collects them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A tree like a train state: scalars, nested dicts, and optax's named tuples."""

    step: Any
    params: Any
    opt_state: Any


def mesh_of(*shape: int) -> Mesh:
    axes = ("data", "fsdp", "tensor")[: len(shape)]
    count = int(np.prod(shape))
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(shape), devices=jax.devices()[:count])


def metadata(config: Config | None = None, tokenizer: str = "aa", data: str = "bb") -> dict[str, Any]:
    config = to_dict(config or Config())
    return run_metadata(config, tokenizer_fingerprint=tokenizer, data_fingerprint=data, mesh=mesh_of(1))


@functools.cache
def state_at(step: int, sharding: Any = None) -> State:
    """A state that is a function of its step, on `sharding`."""
    rng = np.random.default_rng(step)
    any_finite = rng.integers(0, 2**32, (3, 64, 32), np.uint32) & np.uint32(0xFF7FFFFF)
    kernel, mu, nu = any_finite.view(np.float32)
    params = {
        "embed": {"kernel": kernel},
        "layers": {"bias": rng.normal(size=(8, 4)).astype(jnp.bfloat16), "on": rng.normal(size=8) > 0},
    }
    moments = [{"embed": {"kernel": moment}} for moment in (mu, nu)]
    optimizer = (optax.EmptyState(), optax.ScaleByAdamState(np.int32(step), *moments))
    state = State(step=np.int32(step), params=params, opt_state=optimizer)
    return jax.tree.map(lambda x: jnp.asarray(x) if sharding is None else jax.device_put(x, placed(x, sharding)), state)


def placed(x: Any, sharding: NamedSharding) -> NamedSharding:
    return sharding if np.ndim(x) else NamedSharding(sharding.mesh, P())


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def same(one: Any, other: Any) -> bool:
    """Whether two trees have the same structure, shapes, dtypes and bits."""
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        x.shape == y.shape and x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def saved_at(directory: Path, *steps: int, **retention: int) -> Checkpoints:
    with Checkpoints(directory, **{"keep_last": 9} | retention) as checkpoints:
        for step in steps:
            assert checkpoints.save(step, state_at(step), metadata())
    return Checkpoints(directory, **{"keep_last": 9} | retention)


def flip(file: Path, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)


def largest(directory: Path) -> Path:
    return max((file for file in (directory / "state").rglob("*") if file.is_file()), key=lambda f: f.stat().st_size)


def damage_array(directory: Path) -> None:
    """Flip a bit in `params/embed/kernel`, whose random bytes are stored uncompressed."""
    stored = np.asarray(state_at(int(directory.name)).params["embed"]["kernel"]).tobytes()[:64]
    (file,) = [f for f in (directory / "state").rglob("*") if f.is_file() and stored in f.read_bytes()]
    flip(file, file.read_bytes().index(stored) * 8 + 3)


# Restore


def test_restore_returns_the_state_and_its_metadata(tmp_path):
    checkpoints = saved_at(tmp_path, 3)
    restored = checkpoints.restore(abstract(state_at(0)), metadata())
    assert restored.step == 3 and restored.notices == ()
    assert same(restored.state, state_at(3))
    saved = restored.metadata
    assert saved | metadata() == saved and saved["step"] == 3
    assert saved["mesh"] == {"data": 1} and saved["device_kind"] == "cpu"
    assert saved["versions"]["jax"] == jax.__version__
    kernel = saved["arrays"]["params/embed/kernel"]
    assert kernel["shape"] == [64, 32] and kernel["dtype"] == "float32" and len(kernel["digest"]) == 32
    assert saved["arrays"]["opt_state/1/mu/embed/kernel"]["digest"] != kernel["digest"]


def test_restore_without_a_checkpoint_returns_none(tmp_path):
    assert Checkpoints(tmp_path / "none", keep_last=1).restore(abstract(state_at(0)), metadata()) is None
    with pytest.raises(ValueError, match="no checkpoint there; give a run's directory"):
        read_metadata(tmp_path)


@pytest.mark.parametrize(
    "target",
    [
        NamedSharding(mesh_of(8), P("data")),
        NamedSharding(mesh_of(2, 2, 2), P(("data", "tensor"))),
        NamedSharding(mesh_of(2, 4), P("fsdp")),
        None,
    ],
)
def test_restore_onto_another_mesh(tmp_path, target):
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(5, state_at(5, NamedSharding(mesh_of(8), P("data"))), metadata())
    shapes = abstract(state_at(0, target))
    restored = Checkpoints(tmp_path, keep_last=1).restore(shapes, metadata())
    assert same(restored.state, state_at(5))
    assert [x.sharding for x in jax.tree.leaves(restored.state)] == [x.sharding for x in jax.tree.leaves(shapes)]


def test_restore_without_shardings_uses_one_device(tmp_path):
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state_at(0))
    restored = saved_at(tmp_path, 2).restore(shapes, metadata())
    assert same(restored.state, state_at(2))


def test_buffers_may_be_donated_right_after_save(tmp_path):
    advance = jax.jit(lambda tree: jax.tree.map(lambda x: x * 3 + 1, tree), donate_argnums=0)
    state = {"params": {"w": jnp.arange(1_000_000, dtype=jnp.float32), "v": jnp.ones((512, 512))}}
    before = jax.tree.map(np.array, state)
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(1, state, metadata())
        donated = []
        for _ in range(5):
            old, state = state, advance(state)
            donated.append(old["params"]["w"].is_deleted())
        assert any(donated)  # a buffer that is currently read is copied instead of donated
    assert same(checkpoints.restore(abstract(state), metadata()).state, before)


# Retention


def test_keep_last_and_keep_every_retain_checkpoints(tmp_path):
    checkpoints = saved_at(tmp_path, *range(1, 8), keep_last=2, keep_every=3)
    assert checkpoints.steps() == [3, 6, 7]
    assert checkpoints.restore(abstract(state_at(0)), metadata()).step == 7


def test_saving_a_step_again_changes_nothing(tmp_path):
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        assert checkpoints.save(4, state_at(4), metadata())
        assert not checkpoints.save(4, state_at(5), metadata())
    assert same(checkpoints.restore(abstract(state_at(0)), metadata()).state, state_at(4))


def test_save_refuses_a_state_that_is_not_finite(tmp_path):
    checkpoints = saved_at(tmp_path, 1)
    state = state_at(2)
    broken = replace(state, params={"embed": {"kernel": jnp.full((64, 32), jnp.nan)}})
    with pytest.raises(ValueError, match=r"step 2 has NaN or infinity in params/embed/kernel \(2048 elements\)"):
        checkpoints.save(2, broken, metadata())
    assert checkpoints.steps() == [1]


# Damage


def test_damaged_newest_checkpoint_is_skipped_only_on_request(tmp_path):
    checkpoints = saved_at(tmp_path, 1, 2, 3)
    damage_array(tmp_path / "3")
    with pytest.raises(DamagedCheckpoint) as error:
        checkpoints.restore(abstract(state_at(0)), metadata())
    assert f"checkpoint {tmp_path / '3'} is damaged: digest mismatch in params/embed/kernel" in str(error.value)
    assert "add --restore previous to resume from an older one (1, 2)" in str(error.value)
    assert checkpoints.steps() == [1, 2, 3]

    restored = checkpoints.restore(abstract(state_at(0)), metadata(), "previous")
    assert restored.step == 2 and same(restored.state, state_at(2))
    assert [note.split("; ")[-1] for note in restored.notices] == [f"set aside as {tmp_path / '3.damaged'}"]
    assert (tmp_path / "3.damaged" / "state").is_dir()

    assert checkpoints.save(3, state_at(3), metadata())
    checkpoints.close()
    assert checkpoints.steps() == [1, 2, 3]
    again = checkpoints.restore(abstract(state_at(0)), metadata(), "previous")
    assert again.step == 3 and same(again.state, state_at(3)) and again.notices == ()


def test_restore_previous_numbers_repeated_damage(tmp_path):
    for _ in range(2):
        checkpoints = saved_at(tmp_path, *({1, 2} - set(Checkpoints(tmp_path, keep_last=9).steps())))
        damage_array(tmp_path / "2")
        assert checkpoints.restore(abstract(state_at(0)), metadata(), "previous").step == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2.damaged", "2.damaged.2"]


def test_previous_skips_damaged_checkpoints_or_changes_nothing(tmp_path):
    checkpoints = saved_at(tmp_path, 1, 2, 3)
    for step in (2, 3):
        shutil.rmtree(tmp_path / str(step) / "state" / "d")
    assert checkpoints.restore(abstract(state_at(0)), metadata(), "previous").step == 1
    shutil.rmtree(tmp_path / "1" / "state")
    with pytest.raises(DamagedCheckpoint, match="there is no other checkpoint; replace it with an intact copy"):
        checkpoints.restore(abstract(state_at(0)), metadata(), "previous")
    assert checkpoints.steps() == [1]


def outcome(checkpoints: Checkpoints, step: int) -> str:
    """`same` for a correct restore, `named` for an error that names the checkpoint; fails otherwise."""
    try:
        restored = checkpoints.restore(abstract(state_at(0)), metadata())
    except DamagedCheckpoint as error:
        assert f"checkpoint {checkpoints.directory / str(step)} " in str(error)
        return "named"
    assert same(restored.state, state_at(step)), "a damaged checkpoint was restored silently"
    return "same"


def test_flipped_bit_is_never_restored_silently(tmp_path):
    checkpoints = saved_at(tmp_path, 7)
    files = sorted((f for f in tmp_path.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    rng, seen = random.Random(0), []
    for number in range(24):
        file = files[number % len(files)] if number % 2 else largest(tmp_path / "7")
        bit = rng.randrange(file.stat().st_size * 8)
        flip(file, bit)
        seen.append(outcome(checkpoints, 7))
        flip(file, bit)
    assert seen.count("named") > 12 and outcome(checkpoints, 7) == "same"


def test_damaged_file_is_never_restored_silently(tmp_path):
    checkpoints = saved_at(tmp_path, 6, 7)
    for file in [f for f in (tmp_path / "7").rglob("*") if f.is_file()]:
        raw, seen = file.read_bytes(), []
        file.unlink()
        seen.append(outcome(checkpoints, 7))
        for wrong in (raw[: len(raw) // 2], bytes(len(raw)), raw + b"\0"):
            file.write_bytes(wrong)
            seen.append(outcome(checkpoints, 7))
        file.write_bytes(raw)
        assert file != largest(tmp_path / "7") or seen[:2] == ["named", "named"]
    for item in ("state", "metadata"):
        shutil.copytree(tmp_path / "7" / item, tmp_path / "kept")
        shutil.rmtree(tmp_path / "7" / item)
        shutil.copytree(tmp_path / "6" / item, tmp_path / "7" / item)
        assert outcome(checkpoints, 7) == "named"
        shutil.rmtree(tmp_path / "7" / item)
        (tmp_path / "kept").rename(tmp_path / "7" / item)
    assert outcome(checkpoints, 7) == "same"


def test_swapped_arrays_of_one_shape_are_detected(tmp_path, monkeypatch):
    def swap(arrays):
        names = dict(arrays)
        one, other = "opt_state/1/mu/embed/kernel", "params/embed/kernel"
        names[one], names[other] = names[other], names[one]
        return nested(names)

    nested = checkpoint._nested
    monkeypatch.setattr(checkpoint, "_nested", swap)
    saved_at(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "_nested", nested)
    message = "digest mismatch in params/embed/kernel, opt_state/1/mu/embed/kernel"
    with pytest.raises(DamagedCheckpoint, match=message):
        Checkpoints(tmp_path, keep_last=1).restore(abstract(state_at(0)), metadata())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "metadata" / "metadata").unlink(), "metadata/metadata is missing"),
        (lambda d: (d / "metadata" / "metadata").write_text("{"), "metadata/metadata cannot be read"),
        (lambda d: (d / "metadata" / "metadata").write_text("{}"), "metadata/metadata cannot be read"),
        (lambda d: flip(d / "metadata" / "metadata", 801), "metadata/metadata"),
        (lambda d: shutil.rmtree(d / "state"), "state cannot be read"),
        (lambda d: d.rename(d.with_name("10")), "10 holds step 9; it was renamed or copied there"),
    ],
)
def test_restore_names_the_damaged_part(tmp_path, damage, message):
    checkpoints = saved_at(tmp_path, 9)
    damage(tmp_path / "9")
    with pytest.raises(DamagedCheckpoint, match=message):
        checkpoints.restore(abstract(state_at(0)), metadata())


def test_restore_refuses_an_array_without_a_digest(tmp_path, monkeypatch):
    state, shapes = {"params": {"a": jnp.ones(3)}}, {"params": {"a": jnp.ones(3), "b": jnp.ones(3)}}
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        monkeypatch.setattr(checkpoint, "_nested", lambda arrays: {"params": {"a": jnp.ones(3), "b": jnp.ones(3)}})
        checkpoints.save(1, state, metadata())
        monkeypatch.undo()
    with pytest.raises(ValueError, match=r"params/b \(checkpoint: none, model: float32\[3\]\)"):
        checkpoints.restore(abstract(shapes), metadata())


# Another run's checkpoint


def test_checkpoint_of_another_run_is_refused_by_its_metadata(tmp_path):
    checkpoints = saved_at(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "2" / "state")
    with pytest.raises(ValueError, match="the data changed since this run began") as error:
        checkpoints.restore(abstract(state_at(0)), metadata(data="cc"), "previous")
    assert not isinstance(error.value, DamagedCheckpoint) and checkpoints.steps() == [1, 2]


def test_restore_reports_allowed_changes(tmp_path):
    longer = replace(Config(), training=replace(Config().training, steps=2_000_000))
    restored = saved_at(tmp_path, 1).restore(abstract(state_at(0)), metadata(longer))
    assert restored.notices[0].startswith("training.steps: checkpoint has 1000000, config has 2000000; ")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (jnp.zeros((64, 33)), r"params/embed/kernel \(checkpoint: float32\[64, 32\], model: float32\[64, 33\]\)"),
        (jnp.zeros((64, 32), jnp.bfloat16), r"\(checkpoint: float32\[64, 32\], model: bfloat16\[64, 32\]\)"),
        ({"more": jnp.zeros(3)}, r"params/embed/kernel \(checkpoint: float32\[64, 32\], model: none\), .*kernel/more"),
    ],
)
def test_restore_names_arrays_of_another_shape_or_dtype(tmp_path, kernel, message):
    state = state_at(0)
    target = replace(state, params={**state.params, "embed": {"kernel": kernel}})
    with pytest.raises(ValueError, match=message):
        saved_at(tmp_path, 1).restore(abstract(target), metadata(), "previous")


# Parameters only


def test_restore_params_from_a_run_or_a_checkpoint(tmp_path):
    saved_at(tmp_path / "run" / checkpoint.DIRECTORY, 1, 2)
    sharding = NamedSharding(mesh_of(2, 2, 2), P("fsdp"))
    shapes = abstract(state_at(0, sharding)).params
    for place, step in (("run", 2), ("run/checkpoints", 2), ("run/checkpoints/2", 2), ("run/checkpoints/1", 1)):
        params = restore_params(tmp_path / place, shapes)
        assert same(params, state_at(step).params) and params["embed"]["kernel"].sharding == sharding
        assert read_metadata(tmp_path / place)["step"] == step
    assert read_metadata(tmp_path / "run")["config"] == to_dict(Config())
    run = (tmp_path / "run").rename(tmp_path / "7")
    assert read_metadata(run)["step"] == 2 and containing_run(run) == run
    assert containing_run(run / "checkpoints" / "1") == run


def test_restore_params_refuses_damage_and_other_shapes(tmp_path):
    saved_at(tmp_path, 1)
    params = abstract(state_at(0).params)
    with pytest.raises(ValueError, match=r"params/layers/on \(checkpoint: bool\[8\], model: none\)"):
        restore_params(tmp_path, {"embed": params["embed"], "layers": {"bias": params["layers"]["bias"]}})
    damage_array(tmp_path / "1")
    with pytest.raises(DamagedCheckpoint, match=r"digest mismatch in params/embed/kernel\ngive"):
        restore_params(tmp_path, params)


# Failing and killed writers


def test_save_names_the_bytes_needed_on_a_full_disk(tmp_path, monkeypatch):
    checkpoints = saved_at(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=1_000))
    with pytest.raises(OSError, match=rf"{tmp_path}/2 needs [0-9,]+ bytes and the disk has 1,000 free; "):
        checkpoints.save(2, state_at(2), metadata())
    assert checkpoints.steps() == [1]


def test_failed_background_save_is_raised_by_wait(tmp_path, monkeypatch, caplog):
    checkpoints = saved_at(tmp_path / "c", 1)
    rename = async_path.rename

    async def fail_to_rename(source, target):
        source.rmtree()
        await rename(source, target)

    monkeypatch.setattr(async_path, "rename", fail_to_rename)  # the last action of a save
    checkpoints.save(2, state_at(2), metadata())
    with pytest.raises(OSError, match=r"checkpoint .*/c/2 was not written: .*Written before: 1"):
        checkpoints.wait()
    assert not [one for one in caplog.records if one.exc_info], "the error must be raised, not logged"


WRITER = """
import sys
import jax.numpy as jnp
from test_checkpoint import Checkpoints, metadata, writer_state
checkpoints = Checkpoints(sys.argv[1], keep_last=2)
for step in range(1, 500):
    checkpoints.save(step, writer_state(step), metadata())
    print(step, flush=True)
"""


def writer_state(step: int) -> dict[str, Any]:
    return {"params": {f"w{i}": jnp.arange(60_000, dtype=jnp.float32) + step * i for i in range(8)}}


def test_killed_writer_leaves_a_complete_newest_checkpoint(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    printed_steps = [int(writer.stdout.readline()) for _ in range(3)]
    writer.send_signal(signal.SIGKILL)
    printed_steps += [int(line) for line in writer.stdout.read().splitlines()]
    writer.wait()
    restored = Checkpoints(tmp_path, keep_last=2).restore(abstract(writer_state(0)), metadata())
    assert same(restored.state, writer_state(restored.step))
    # A save first waits for the one before it, so all but the last one are complete.
    assert printed_steps[-2] <= restored.step <= printed_steps[-1] + 1


WRONG = [None, 0.5, {"a": 1}]


def test_forged_metadata_is_read_or_refused_by_name(tmp_path):
    """Forged metadata has a correct SHA-256."""
    saved_at(tmp_path, 1)
    file = tmp_path / "1" / "metadata" / "metadata"
    content, refusals = json.loads(file.read_bytes())["content"], 0

    def change(holder, key):
        nonlocal refusals
        before = holder.pop(key)
        for value in [*WRONG, "missing"]:
            if value != "missing":
                holder[key] = value
            file.write_text(json.dumps(make_document(content)))
            try:
                read_metadata(tmp_path)["config"]["model"]["vocab_size"]
            except ValueError as error:
                refusals += 1
                assert str(tmp_path / "1") in str(error), error
            holder.pop(key, None)
        holder[key] = before
        if isinstance(before, dict) and key != "config":
            for inner in list(before):
                change(before, inner)

    for key in list(content):
        change(content, key)
    for section in ("model", "training"):
        change(content["config"], section)
    assert refusals > 30


def test_other_library_versions_are_reported(tmp_path):
    checkpoints, unknown = saved_at(tmp_path, 1), "does not record its bertjax, jax, jaxlib, orbax-checkpoint"
    file, current = tmp_path / "1" / "metadata" / "metadata", metadata()
    assert checkpoints.restore(abstract(state_at(0)), current).notices == ()
    content = json.loads(file.read_bytes())["content"]
    for versions, message in (
        (content["versions"] | {"jax": "0.9.0"}, f"was written with jax 0.9.0 (here: {jax.__version__}); from"),
        ({}, unknown),
        (None, unknown),
    ):
        changed = {key: value for key, value in content.items() if key != "versions"}
        changed |= {} if versions is None else {"versions": versions}
        file.write_text(json.dumps(make_document(changed)))
        (notice,) = checkpoints.restore(abstract(state_at(0)), current).notices
        assert message in notice
