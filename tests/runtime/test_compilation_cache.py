"""Compiled programs are kept where the config says, unless the environment says something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from several_processes import Group, as_words

from bertjax.runtime.compilation import ENVIRONMENT, keep_compiled_programs

PROGRAM = """
import jax, sys
from bertjax.runtime.compilation import keep_compiled_programs
print(keep_compiled_programs(sys.argv[1]))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x * 2 + 1)(1.0)
"""


def kept(folder: Path, asked: str, **environment: str) -> tuple[str, int]:
    """What a process of its own says where its programs go, and how many files there are in a folder then."""
    inherited = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, asked], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), sum(path.is_file() for path in folder.rglob("*"))


def test_programs_are_kept_by_processor_below_the_folder(tmp_path: Path) -> None:
    where, files = kept(tmp_path, f"{tmp_path}/")
    assert Path(where).parent == tmp_path and files > 0
    assert kept(tmp_path, str(tmp_path)) == (where, files), "the second process found what the first had compiled"


def test_the_environment_wins(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    where, files = kept(folder, str(tmp_path / "ours"), **{ENVIRONMENT: str(folder)})
    assert where == str(folder) and files > 0 and not (tmp_path / "ours").exists()


def test_no_folder_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT)
    assert keep_compiled_programs("") == ""


OF_SEVERAL = """
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
    print("keeps" if jax.config.jax_enable_compilation_cache else "keeps nothing", flush=True)
"""


@pytest.mark.parametrize(("folder", "keeps"), [("shared", True), ("of-NUMBER", False)])
def test_several_processes_keep_programs_only_where_all_read_them(folder: str, keeps: bool, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(OF_SEVERAL)

    with Group([sys.executable, script, tmp_path / folder], 2, tmp_path / "kept.log", address=as_words) as group:
        group.finish(60)
    assert all(f"keeps{'' if keeps else ' nothing'}\n" in log for log in group.logs), group.output()
    assert ("compiled programs are not kept: process 1 (" in group.logs[0]) != keeps, group.output()
    assert not list(tmp_path.glob("*/*/shared-*"))
