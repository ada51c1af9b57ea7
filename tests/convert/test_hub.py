"""Models on the Hugging Face Hub, from a local server that implements its protocol."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported_models import trained_model
from hub_stand_in import TEAM, TOKEN, Hub
from several_processes import child_environment, free_port, zygote

import bertjax
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import require_source, write_run
from bertjax.run.run_directory import load_run

pytestmark = pytest.mark.run

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'bertjax[hf]'")

WEIGHTS = "model.safetensors"
LOADED = """
import json, sys, warnings
import bertjax
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = bertjax.load(sys.argv[1])
print(json.dumps({"vector": model.encode("the museum").tolist(), "warnings": [str(one.message) for one in caught]}))
"""
REFUSED = """
import sys
from bertjax.convert.huggingface.huggingface_format import fetch
from bertjax.storage.hub import require_pushable
for name in sys.argv[2:]:
    try:
        print({"fetch": fetch, "push": require_pushable}[sys.argv[1]](name))
    except ValueError as error:
        print(error)
"""
VOCABULARY = """
import sys
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization.tokenizer import TextRules
print(load_vocabulary(sys.argv[1], TextRules(True, True)).fingerprint)
"""
SCRIPTS = {"vocabulary": VOCABULARY, "load": LOADED, "refused": REFUSED}
Do = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its export."""
    folder = tmp_path_factory.mktemp("hub")
    run = trained_model(folder / "run")
    write_run(run)
    export_huggingface(run, folder / "exported")
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.shutdown()
    hub.server_close()


@pytest.fixture
def do(hub: Hub, tmp_path: Path) -> Do:
    """Run a bertjax command, or one of SCRIPTS, in a separate process; returns (exit code, output)."""
    for name, script in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(script)

    def run(*words: object, endpoint: str = hub.url, **environment: str) -> tuple[int, str]:
        variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        variables |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
        program = [str(tmp_path / f"{words[0]}.py")] if words[0] in SCRIPTS else ["-m", "bertjax", str(words[0])]
        command = [sys.executable, *program]
        log = tmp_path / "log"
        number = zygote().start(
            [*command, *map(str, words[1:])], log, child_environment(devices=1) | variables, tmp_path
        )
        code = zygote().wait(number, 300)
        return -1 if code is None else code, log.read_text()

    return run


def assert_same_model(output: str, folder: Path) -> list[str]:
    """Assert that LOADED printed the vector of a folder's model; returns the warnings that it printed."""
    values = json.loads(output.splitlines()[-1])
    theirs = bertjax.load(f"hf:{folder}").encode("the museum")
    np.testing.assert_allclose(values["vector"], theirs, rtol=1e-5, atol=1e-6)
    return values["warnings"]


def test_load_from_hub_equals_load_from_folder(folder, hub, do):
    commit = hub.add("ada/novels", folder / "exported", **{"pytorch_model.bin": b"never", "modeling.py": b"never"})
    hub.add("ada/novels", folder / "exported", **{"config.json": b"a later commit, which is not JSON"})
    code, output = do("load", f"hf:ada/novels@{commit}")
    assert code == 0, output
    assert assert_same_model(output, folder / "exported") == []
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.downloaded()
    assert not {"pytorch_model.bin", "modeling.py", "README.md"} & hub.downloaded()
    code, cached = do("load", f"hf:ada/novels@{commit}", endpoint=f"http://127.0.0.1:{free_port()}")
    (warning,) = assert_same_model(cached, folder / "exported")
    assert code == 0 and "the Hub cannot be reached; using the files downloaded before" in warning


def test_vocabulary_from_hub_downloads_no_weights(folder, hub, do):
    hub.add("ada/novels", folder / "exported")
    code, output = do("vocabulary", "hf:ada/novels")
    assert code == 0, output
    assert output.splitlines()[-1] == load_run(folder / "run").tokenizer.fingerprint
    assert "tokenizer.json" in hub.downloaded() and WEIGHTS not in hub.downloaded()
    code, again = do("vocabulary", "hf:ada/novels", endpoint=f"http://127.0.0.1:{free_port()}")
    assert code == 0 and again.splitlines()[-1] == output.splitlines()[-1], "a run goes on without a network"


def test_fetch_downloads_the_shards_of_an_index(folder, hub, do, tmp_path):
    exported = folder / "exported"
    shard = "model-00001-of-00001.safetensors"
    index = json.dumps({"weight_map": dict.fromkeys(safetensors.numpy.load_file(exported / WEIGHTS), shard)})
    files = {shard: (exported / WEIGHTS).read_bytes(), f"{WEIGHTS}.index.json": index.encode()}
    beside = tuple(path.name for path in exported.iterdir() if path.name != WEIGHTS)
    hub.add("ada/large", exported, only=beside, **files, **{"model-unlisted.safetensors": b"never"})
    code, output = do("load", "hf:ada/large")
    assert code == 0, output
    assert_same_model(output, exported)
    assert shard in hub.downloaded() and "model-unlisted.safetensors" not in hub.downloaded()


@pytest.mark.long  # the suite loads a model from the Hub, and imports a folder in test_import.py
def test_import_from_hub_makes_a_run(folder, hub, do, tmp_path):
    commit = hub.add("novels", folder / "exported")
    code, output = do("import", "hf:novels@main")
    assert code == 0, output
    assert f"hf:novels@{commit}" in output and "compared with transformers" in output
    assert load_run(tmp_path / "runs" / "novels").config.init_from == f"hf:novels@{commit}"


@pytest.mark.long
def test_finetune_starts_from_hub_weights(folder, hub, do, tmp_path):
    hub.add("novels", folder / "exported")
    (tmp_path / "topics.csv").write_text("text,label\n" + "".join(f"the museum {n},{'ab'[n % 2]}\n" for n in range(20)))
    words = ["--init-from", "hf:novels", "--train", "topics.csv", "--epochs", "1", "--max-length", "16"]
    code, output = do("finetune", "classification", *words, "--run-dir", "runs/topics")
    assert code == 0 and "best run     runs/topics" in output, output


def test_pickled_weights_are_the_last_choice(folder, hub, do):
    torch = pytest.importorskip("torch", reason="needs torch, which writes such files")
    from safetensors.torch import load_file

    pickled = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "exported" / "model.safetensors"), pickled)
    files = tuple(path.name for path in (folder / "exported").iterdir() if path.name != "model.safetensors")
    hub.add("ada/pickled", folder / "exported", files, **{"pytorch_model.bin": pickled.read_bytes()})
    code, output = do("load", "hf:ada/pickled")
    assert code == 0 and "pytorch_model.bin" in hub.downloaded(), output


REFUSALS = {
    "ada/nothing": r"no folder /.*ada/nothing, and the Hub has no repository ada/nothing that you may read; correct",
    "ada/secret": r"and the Hub has no repository ada/secret that you may read; .* private one run `hf auth login`",
    "ada/novels@v9": r"and ada/novels on the Hub has no revision v9",
    "ada/bare": r"and ada/bare on the Hub has none of the required files; is it a transformers model\?",
    "a/b/c": r"no folder /.*a/b/c; for a Hub repository write NAME, ORG/NAME or ORG/NAME@REVISION",
}


def test_missing_repository_is_refused_in_one_sentence(folder, hub, do):
    hub.add("ada/novels", folder / "exported")
    hub.add("ada/bare", folder / "exported", ("README.md",))
    hub.add("ada/secret", folder / "exported")
    hub.repositories["ada/secret"].private = True
    code, output = do("refused", "fetch", *REFUSALS)
    assert code == 0
    for line, (name, message) in zip(output.splitlines(), REFUSALS.items(), strict=True):
        assert line.startswith(f"hf:{name}: there is ") and re.search(message, line), line


def test_without_network_folder_and_repository_are_named(do):
    commands = [("refused", "fetch", "ada/novels"), ("import", "hf:ada/novels")]
    for words, offline, reason in zip(commands, "01", ("ConnectError", "HF_HUB_OFFLINE is set"), strict=True):
        code, output = do(*words, endpoint=f"http://127.0.0.1:{free_port()}", HF_HUB_OFFLINE=offline)
        assert code == int(offline) and output.count("\n") == 1 and reason in output, output
        assert "there is no folder" in output and "cannot be reached for ada/novels" in output
        assert "hf download ada/novels --local-dir novels" in output


def test_missing_huggingface_hub_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"no folder .*nothing; to look for nothing on .*pip install 'bertjax\[hf\]'"):
        require_source("hf:nothing")


def test_pushed_export_is_read_back(folder, hub, do):
    arguments = ["export", folder / "run", "--output", folder / "pushed", "--push", f"{TEAM}/novels", "--private"]
    code, output = do(*arguments, HF_TOKEN=TOKEN)
    assert code == 0 and f"pushed to {hub.url}/{TEAM}/novels/commit/" in output, output
    repository = hub.repositories[f"{TEAM}/novels"]
    files = repository.commits[repository.resolve("main")]
    assert repository.private and hub.uploaded, "weights go by git-lfs"
    assert {path.name: path.read_bytes() for path in (folder / "pushed").iterdir()}.items() <= files.items()
    code, output = do("load", f"hf:{TEAM}/novels", HF_TOKEN=TOKEN)
    assert code == 0 and assert_same_model(output, folder / "exported") == []


def test_impossible_push_is_refused_before_the_export(folder, hub, do, tmp_path):
    code, output = do("export", folder / "run", "--output", tmp_path / "out", "--push", "team/novels")
    assert code == 1 and not (tmp_path / "out").exists(), output
    assert "--push team/novels: not logged in to the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN" in output
    code, output = do("refused", "push", "others/novels", "a/b/c", HF_TOKEN=TOKEN)
    others, wrong = output.splitlines()
    assert others == "--push others/novels: ada may write to ada, team, but not to others"
    assert wrong == "--push a/b/c: write a Hub repository as NAME or ORG/NAME"
    code, output = do("refused", "push", "team/novels", HF_TOKEN="hf_wrong")
    assert output.startswith("--push team/novels: the Hub did not accept the login (") and output.count("\n") == 1
    assert not hub.repositories
