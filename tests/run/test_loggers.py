"""External loggers: a real run logs to MLflow, a resumed run continues there, and secrets are removed.

test_small_run.py tests what wandb receives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import train_alone, write_recipe

from bertjax.__main__ import main, make_parser
from bertjax.cli.recipe import resolve_config
from bertjax.config import Config, load_recipe
from bertjax.run import loggers
from bertjax.run.checks import preflight
from bertjax.run.job import assemble
from bertjax.run.loggers.logger import Logger, logged_id, remember_id, without_secrets
from bertjax.run.run_data import open_data
from bertjax.run.telemetry import LOGGED_AS_FILE, curves, read_metrics
from bertjax.storage.progress import no_progress

pytestmark = pytest.mark.usefixtures("one_device")

SECRET = "not-for-others"


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose `mlflow` is the tracking server of this process."""
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'bertjax[mlflow]'")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlflow").as_uri())
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # creating database tables takes seven seconds
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        yield folder


def run_config(folder: Path, corpus: Path, steps: int, log: tuple[str, ...]) -> Config:
    config = load_recipe(write_recipe(folder))
    return replace(
        config,
        run_dir=str(folder / "run"),
        log=log,
        data=replace(config.data, sources=(f"lines:{corpus}",), root=str(folder / "data")),
        optimizer=replace(config.optimizer, warmup_steps=2),
        training=replace(
            config.training, steps=steps, log_every=2, eval_every=4, checkpoint_every=4, eval_rows=16, keep_last=1
        ),
    )


def logged_steps(run: Path, metric: str) -> dict[int, float]:
    steps, values = curves(read_metrics(run / "metrics.jsonl"))[metric]
    return dict(zip(steps, values, strict=True))


# Importing MLflow takes ten seconds.
@pytest.mark.long
def test_mlflow_gets_name_config_and_every_figure(mlflow_server, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "novels")
    corpus = write_corpus(mlflow_server / "corpus.txt", 60)
    for steps in (4, 8):  # the second run resumes the first
        config = preflight(run_config(mlflow_server, corpus, steps, ("tensorboard", "mlflow")))
        train_alone(assemble(config, open_data(config, no_progress)))
    run, client = mlflow_server / "run", MlflowClient()
    (mlflow_run,) = client.search_runs([client.get_experiment_by_name("novels").experiment_id])
    assert mlflow_run.info.run_id == logged_id(run, "mlflow")
    assert (mlflow_run.info.run_name, mlflow_run.info.status) == ("tiny", "FINISHED")
    assert mlflow_run.data.params["model.hidden_size"] == "32" and mlflow_run.data.params["training.steps"] == "4"
    names = {name for record in read_metrics(run / "metrics.jsonl") for name in record} - {"step", "time"}
    assert {"train/mlm_loss", "eval/mlm_loss", "perf/tokens_per_second"} <= names == mlflow_run.data.metrics.keys()
    for name in names:
        history = {metric.step: metric.value for metric in client.get_metric_history(mlflow_run.info.run_id, name)}
        assert history == pytest.approx(logged_steps(run, name), rel=1e-8, nan_ok=True), name


def test_secrets_in_urls_are_not_logged():
    config = Config(
        data=replace(
            Config().data,
            sources=(f"jsonl:https://host/text.jsonl?X-Amz-Signature={SECRET}&a=b", "lines:a?.txt"),
            root=f"s3://user:{SECRET}@bucket/data",
        ),
        run_dir=f"https://{SECRET}@host/run",
    )
    shown = loggers.logged_run(config).config
    assert SECRET not in json.dumps(shown)
    assert shown["data.root"] == "s3://***@bucket/data"
    assert shown["data.sources"] == ["jsonl:https://host/text.jsonl?***", "lines:a?.txt"]
    assert without_secrets({"a": [1, None, "gs://bucket/x"]}) == {"a": [1, None, "gs://bucket/x"]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wanbd", r"no logger 'wanbd' \(--log wanbd\); did you mean wandb\?"),
        ("x", r"choose from tensorboard, wandb, mlflow"),
        ("missing", r"needs the package no_such_package, .*pip install 'bertjax\[missing\]'"),
    ],
)
def test_unusable_logger_is_refused_before_any_work(name, message, monkeypatch):
    monkeypatch.setitem(loggers.LOGGERS, "missing", Logger("no_such_package", lambda *_: None, extra="missing"))
    with pytest.raises(ValueError, match=message):
        preflight(replace(Config(), log=("tensorboard", name)))


def test_verbs_accept_log_options(tmp_path, capsys):
    recipe, arguments = write_recipe(tmp_path), ["--log", "wandb", "--log", "mlflow", "--log", "wandb"]
    parsed, keys = make_parser("pretrain").parse_known_args([str(recipe), *arguments])
    parsed.verb, parsed.overrides = "pretrain", keys
    assert resolve_config(parsed)[0].log == ("tensorboard", "wandb", "mlflow")
    for words in (["pretrain", str(recipe)], ["finetune", "sst2", "--init-from", str(tmp_path / "nowhere")]):
        assert main([*words, "--run-dir", str(tmp_path / "run"), "--log", "wanbd"]) == 1
        assert "no logger 'wanbd' (--log wanbd); did you mean wandb?" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [recipe.name]


def test_preflight_refuses_wandb_without_a_key(monkeypatch, tmp_path, request):
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'bertjax[wandb]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    request.addfinalizer(wandb.teardown)  # wandb caches its settings in the process, also for later tests
    with pytest.raises(ValueError, match=r"--log wandb\) has no key; run `wandb login` .*WANDB_MODE=offline"):
        preflight(replace(Config(), log=("wandb",)))


@pytest.mark.long
def test_mlflow_experiment_may_be_named_by_id(mlflow_server, monkeypatch, tmp_path):
    from mlflow import MlflowClient

    client = MlflowClient()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", client.create_experiment("of a team"))
    loggers.LOGGERS["mlflow"].open(loggers.logged_run(Config()), tmp_path, 0).close("finished")
    experiment = client.get_run(logged_id(tmp_path, "mlflow")).info.experiment_id
    assert client.get_experiment(experiment).name == "of a team"


@pytest.mark.long
def test_unknown_run_of_the_tracking_server_is_refused(mlflow_server, tmp_path):
    remember_id(tmp_path, "mlflow", "f" * 32)
    run = loggers.logged_run(Config())
    with pytest.raises(ValueError, match=r"MLFLOW_TRACKING_URI=file.*f{32}' not found; set the URI"):
        loggers.LOGGERS["mlflow"].open(run, tmp_path, 4)


@pytest.mark.long
def test_failing_tracking_server_is_reported_once(mlflow_server, tmp_path, capsys):
    from mlflow import MlflowClient

    writer = loggers.LOGGERS["mlflow"].open(loggers.logged_run(Config()), tmp_path, 0)
    MlflowClient().delete_run(logged_id(tmp_path, "mlflow"))
    for step in (1, 2):
        writer.write(step, {"train/mlm_loss": 1.0})
        writer.flush()
    writer.close("finished")
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Warning")]
    assert len(warnings) == 1 and "metrics.jsonl has all" in warnings[0]


@pytest.mark.parametrize("content", ["{", "[]", '{"wandb": 1}'])
def test_damaged_id_file_is_named(content, tmp_path):
    (tmp_path / LOGGED_AS_FILE).write_text(content)
    with pytest.raises(ValueError, match=rf"{LOGGED_AS_FILE}: not .*; remove the file"):
        logged_id(tmp_path, "wandb")
