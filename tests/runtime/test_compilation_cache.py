"""The cache of compiled programs: its location, and that several processes use it only if all share it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from several_processes import Group, as_words
from threads import run_in_threads

from bertjax.runtime import compilation
from bertjax.runtime.compilation import ENVIRONMENT, disable_unshared_cache, set_compilation_cache

PROGRAM = """
import jax, sys
from bertjax.runtime.compilation import set_compilation_cache
print(set_compilation_cache(sys.argv[1]))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x * 2 + 1)(1.0)
"""


def compile_in_process(folder: Path, setting: str, *, program: str = PROGRAM, **environment: str) -> tuple[str, int]:
    """Compile in a new process; returns the cache's path and the number of files below `folder`."""
    inherited = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
    command = [sys.executable, "-c", program, setting]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), sum(path.is_file() for path in folder.rglob("*"))


@pytest.mark.run
def test_cache_has_a_folder_per_processor(tmp_path: Path) -> None:
    path, files = compile_in_process(tmp_path, f"{tmp_path}/")
    assert Path(path).parent == tmp_path and files > 0
    assert compile_in_process(tmp_path, str(tmp_path)) == (path, files), "the second process compiled again"


@pytest.mark.run
def test_environment_overrides_the_config(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    path, files = compile_in_process(folder, str(tmp_path / "config"), **{ENVIRONMENT: str(folder)})
    assert path == str(folder) and files > 0 and not (tmp_path / "config").exists()


@pytest.mark.run
def test_each_run_in_a_process_has_its_own_cache(tmp_path: Path) -> None:
    again = "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0); jax.jit(lambda x: x * 3 + 1)(1.0)\n"
    later = "".join(f"set_compilation_cache('{folder}'); {again}" for folder in (tmp_path / "second", ""))
    _, files = compile_in_process(tmp_path / "first", str(tmp_path / "first"), program=PROGRAM + later)
    assert files == sum(path.is_file() for path in (tmp_path / "second").rglob("*")) > 0


def test_empty_folder_disables_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT)
    assert set_compilation_cache("") == ""


class Pair:
    """A stand-in for `Processes` for two threads that gather values."""

    count = 2

    def __init__(self, number: int, values: list[str], barrier: threading.Barrier) -> None:
        self.first, self._number, self._values, self._barrier = number == 0, number, values, barrier

    def gather(self, what: str, value: str = "") -> list[str]:
        self._values[self._number] = value
        self._barrier.wait(60)
        values = list(self._values)
        self._barrier.wait(60)
        return values

    def describe(self, numbers: list[int]) -> str:
        return f"processes {numbers}"


@pytest.mark.parametrize(
    ("folders", "is_kept"),
    [(("shared", "shared"), True), (("own-0", "own-1"), False), (("", "own-1"), False), (("", ""), True)],
)
def test_only_a_shared_cache_is_kept(
    folders: tuple[str, str], is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[tuple[str, Any]] = []
    monkeypatch.setattr(compilation.jax.config, "update", lambda *update: updates.append(update))
    values, barrier = ["", ""], threading.Barrier(2)
    paths = [str(tmp_path / folder) if folder else "" for folder in folders]
    calls = [partial(disable_unshared_cache, paths[n], Pair(n, values, barrier)) for n in range(2)]
    lines = run_in_threads(calls)
    if is_kept:
        assert lines == ["", ""] and updates == []
    else:
        assert all(f"processes {[0, 1] if not folders[0] else [1]} cannot read" in str(line) for line in lines), lines
        assert updates == [("jax_enable_compilation_cache", False)] * 2
    assert not list(tmp_path.glob("**/shared-*"))


SESSION_PROGRAM = """
import os, sys
from dataclasses import replace
import jax
from bertjax.config import Config, HostsConfig
from bertjax.run.session import session
folder, number, count, coordinator = sys.argv[1:]
os.environ.pop("JAX_COMPILATION_CACHE_DIR")
hosts = HostsConfig(coordinator=coordinator, processes=int(count), process=int(number))
config = replace(Config(), hosts=hosts, compilation_cache=folder.replace("NUMBER", number))
with session(config, ends_process=True):
    print("cached" if jax.config.jax_enable_compilation_cache else "not cached", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(("folder", "is_kept"), [("shared", True), ("of-NUMBER", False)])
def test_processes_agree_on_a_shared_cache(folder: str, is_kept: bool, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SESSION_PROGRAM)
    command = [sys.executable, script, tmp_path / folder]
    with Group(command, 2, tmp_path / "program.log", address=as_words) as group:
        group.finish(60)
    assert all(f"\n{'' if is_kept else 'not '}cached\n" in f"\n{log}" for log in group.logs), group.output()
    assert ("compiled programs are not cached: process 1 (" in group.logs[0]) != is_kept, group.output()
    assert not list(tmp_path.glob("*/*/shared-*"))
