"""A script outside the clone, with the wheel and without TensorFlow, trains on text of the Hub and uploads a model."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import TEAM, TOKEN, Hub, Repository
from several_processes import child_environment
from small_corpus import generated_text
from test_plugins import FILES
from test_wheel import build_wheel, copy_repository

pytestmark = pytest.mark.run

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'bertjax[hf]'")
pytest.importorskip("setuptools", reason="needs setuptools to build a wheel")

SCRIPT = """
import json
import sys

sys.modules |= {"tensorflow": None, "tensorflow_datasets": None}
import bertjax
import transformers

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
keys = {f"model.{name}": value for name, value in SIZE.items()}
keys |= {"data.sources": ["hf:team/texts:small"], "data.vocab_size": 200, "data.packing": "pairs", "data.workers": 1}
keys |= {"training.steps": 4, "training.global_batch_size": 8, "training.eval_every": 4, "training.eval_rows": 16}
keys |= {"optimizer.warmup_steps": 1, "plugins": ["length.py"], "training.objectives": ["mlm", "length"]}
run = bertjax.pretrain(bertjax.recipe("quickstart", keys)).directory
figures = bertjax.evaluate(run).figures
bertjax.export(run, bertjax.ExportOptions(output="pushed", push="team/outside"))
theirs = transformers.pipeline("fill-mask", "team/outside")
assert theirs("the [MASK] .")[0]["token_str"]
vectors = transformers.pipeline("feature-extraction", "team/outside")("the garden")
ours = bertjax.load("hf:team/outside").encode("the garden", pooling="cls").tolist()
print(json.dumps({"package": bertjax.__file__, "run": figures, "theirs": vectors[0][0], "ours": ours}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.shutdown()
    hub.server_close()


@pytest.mark.long  # test_wheel.py, test_plugins.py and tests/convert/test_hub.py test the parts
def test_script_with_the_wheel_goes_from_hub_to_hub(hub: Hub, tmp_path: Path) -> None:
    wheel = build_wheel(copy_repository(tmp_path / "clone"), "build_wheel", tmp_path / "wheel")
    installed, outside = tmp_path / "installed", tmp_path / "outside"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    outside.mkdir()
    (outside / "script.py").write_text(SCRIPT)
    (outside / "length.py").write_text(FILES["length.py"])
    rows = "".join(json.dumps({"text": generated_text(number, 12)}) + "\n" for number in range(60))
    card = {"configs": [{"config_name": "small", "data_files": [{"split": "train", "path": "s/*.jsonl"}]}]}
    hub.repositories["datasets/team/texts"] = texts = Repository(card=card)
    texts.commit({"s/a.jsonl": rows.encode()})
    environment = child_environment(devices=1) | {
        "PYTHONPATH": str(installed),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=outside, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "data pipeline: threads" in result.stdout + result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert Path(report["package"]).is_relative_to(installed)
    assert report["run"]["eval/length_loss"] > 0
    assert report["ours"] == pytest.approx(report["theirs"], abs=1e-5)
    pushed = hub.repositories[f"{TEAM}/outside"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= pushed.commits[pushed.resolve("main")].keys()
    sent = [size for path, size in hub.sent if path == "datasets/team/texts/s/a.jsonl"]
    assert sum(sent) == len(rows), "no file is downloaded twice"
