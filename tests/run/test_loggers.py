"""External loggers: a real run logs to wandb (offline) and MLflow, a resumed one goes on there; secrets stay here."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import write_recipe

from bertjax.__main__ import main, make_parser
from bertjax.cli.recipe import resolve_config
from bertjax.config import Config, load_recipe
from bertjax.run import loggers
from bertjax.run.callbacks import Callback
from bertjax.run.checkpoint import saved_steps
from bertjax.run.checks import preflight
from bertjax.run.job import assemble
from bertjax.run.loggers.logger import Logger, logged_id, remember_id, without_secrets
from bertjax.run.telemetry import LOGGED_AS_FILE, curves, read_metrics
from bertjax.run.train_job import train_job
from bertjax.storage.progress import no_progress
from bertjax.training.stages import open_data

pytestmark = pytest.mark.usefixtures("one_device")

STEPS = (4, 8)  # of the run, and of the one that resumes it
BLOCK = 32_768  # bytes of wandb's file, in which records are framed as in LevelDB's log
SECRET = "not-for-others"


class Told(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def on_start(self) -> None:
        self.events.append(("start", self.run.step, self.run.last_step, self.run.config.name))

    def after_step(self, step) -> None:
        self.events.append(("step", step))

    def on_log(self, step, figures) -> None:
        self.events.append(("log", step, dict(figures)))

    def on_evaluation(self, step, figures) -> None:
        self.events.append(("evaluation", step, dict(figures)))

    def on_save(self, step, directory) -> None:
        assert (Path(directory) / "metadata" / "metadata").is_file(), "it is whole when it is told of"
        self.events.append(("checkpoint", step, directory))

    def on_finish(self, outcome) -> None:
        self.events.append(("end", outcome.step, outcome.evaluation))

    def of(self, kind: str) -> list[tuple]:
        return [event[1:] for event in self.events if event[0] == kind]


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


def train_twice(folder: Path, log: tuple[str, ...], environment: dict[str, str]) -> list[Told]:
    """Train 4 steps and resume for 4 more, in `folder/run`. Returns what the callbacks of both saw."""
    corpus, told = write_corpus(folder / "corpus.txt", 60), []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        for steps in STEPS:
            config = preflight(run_config(folder, corpus, steps, log))
            told.append(Told())
            train_job(assemble(config, open_data(config, no_progress)), lambda line: None, callbacks=[told[-1]])
    return told


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Told]]:
    """A run that logged to wandb, and what callbacks were told."""
    pytest.importorskip("wandb", reason="needs wandb: pip install 'bertjax[wandb]'")
    folder = tmp_path_factory.mktemp("logged")
    told = train_twice(folder, ("tensorboard", "wandb"), {"WANDB_MODE": "offline", "WANDB_PROJECT": "novels"})
    return folder / "run", told


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose `mlflow` is the tracking server of this process."""
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'bertjax[mlflow]'")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlflow").as_uri())
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # making the tables of a database takes it seven seconds
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        yield folder


def logged_steps(run: Path, metric: str) -> dict[int, float]:
    steps, values = curves(read_metrics(run / "metrics.jsonl"))[metric]
    return dict(zip(steps, values, strict=True))


# Importing MLflow takes ten seconds.
@pytest.mark.long
def test_mlflow_gets_name_config_and_every_figure(mlflow_server):
    from mlflow import MlflowClient

    train_twice(mlflow_server, ("tensorboard", "mlflow"), {"MLFLOW_EXPERIMENT_NAME": "novels"})
    run, client = mlflow_server / "run", MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("novels").experiment_id])
    assert found.info.run_id == logged_id(run, "mlflow")
    assert (found.info.run_name, found.info.status) == ("tiny", "FINISHED")
    assert found.data.params["model.hidden_size"] == "32" and found.data.params["training.steps"] == "4"
    names = {name for record in read_metrics(run / "metrics.jsonl") for name in record} - {"step", "time"}
    assert {"train/mlm_loss", "eval/mlm_loss", "perf/tokens_per_second"} <= names == found.data.metrics.keys()
    for name in names:
        history = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, name)}
        assert history == pytest.approx(logged_steps(run, name), rel=1e-8, nan_ok=True), name


def wandb_records(path: Path) -> Iterator[object]:
    """The records of an offline run: wandb's own messages, in LevelDB's framing behind seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, part = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb_gets_name_config_and_every_figure(logged):
    run, _ = logged
    identity = logged_id(run, "wandb")
    files = sorted((run / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(files) == len(list((run / "wandb").glob("offline-run-*"))) == len(STEPS)
    history: dict[str, dict[int, float]] = {}
    for path in files:
        records = list(wandb_records(path))
        (about,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        config = {item.key: json.loads(item.value_json) for item in about.config.update}
        assert (about.run_id, about.display_name, about.project) == (identity, "tiny", "novels")
        assert config["model.hidden_size"] == 32 and config["data.masking"] == "tokens"
        for record in records:
            if record.WhichOneof("record_type") == "history":
                line = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                for name, value in line.items():
                    history.setdefault(name, {})[line["step"]] = value
    for name in ("train/mlm_loss", "train/nsp_loss", "eval/mlm_loss", "train/learning_rate"):
        assert history[name] == pytest.approx(logged_steps(run, name), rel=1e-8), name


def test_callbacks_are_called_in_order_with_floats(logged):
    run, (first, second) = logged
    assert first.of("start") == [(0, 4, "tiny")] and second.of("start") == [(4, 8, "tiny")]
    assert [step for (step,) in first.of("step") + second.of("step")] == list(range(1, 9))
    for told in (first, second):
        assert told.events[0][0] == "start" and told.events[-1][0] == "end"
        (end,) = told.of("end")
        ((step, evaluated),) = told.of("evaluation")
        assert end[0] == step and end[1].items() <= evaluated.items() and end[1]
        assert [(step, str(run / "checkpoints" / str(step)))] == told.of("checkpoint")
    figures = {
        (step, name): value
        for kind, step, found in [
            event for told in (first, second) for event in told.events if event[0] in ("log", "evaluation")
        ]
        for name, value in found.items()
    }
    assert {type(value) for value in figures.values()} == {float}
    for (step, name), value in figures.items():
        assert value == pytest.approx(logged_steps(run, name)[step], rel=1e-8, nan_ok=True)
    assert saved_steps(run) == [8]


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


def test_verbs_take_loggers(tmp_path, capsys):
    recipe, arguments = write_recipe(tmp_path), ["--log", "wandb", "--log", "mlflow", "--log", "wandb"]
    parsed, keys = make_parser("pretrain").parse_known_args([str(recipe), *arguments])
    parsed.verb, parsed.overrides = "pretrain", keys
    assert resolve_config(parsed)[0].log == ("tensorboard", "wandb", "mlflow")
    for words in (["pretrain", str(recipe)], ["finetune", "sst2", "--init-from", str(tmp_path / "nowhere")]):
        assert main([*words, "--run-dir", str(tmp_path / "run"), "--log", "wanbd"]) == 1
        assert "no logger 'wanbd' (--log wanbd); did you mean wandb?" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [recipe.name]


def test_wandb_without_a_key_is_refused_before_anything_is_done(monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="needs wandb: pip install 'bertjax[wandb]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match=r"--log wandb\) has no key; run `wandb login` .*WANDB_MODE=offline"):
        preflight(replace(Config(), log=("wandb",)))


@pytest.mark.long
def test_experiment_is_named_by_its_id_too(mlflow_server, monkeypatch, tmp_path):
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
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Warning")]
    assert len(said) == 1 and "metrics.jsonl has all" in said[0]


@pytest.mark.parametrize("content", ["{", "[]", '{"wandb": 1}'])
def test_a_damaged_file_of_ids_is_named(content, tmp_path):
    (tmp_path / LOGGED_AS_FILE).write_text(content)
    with pytest.raises(ValueError, match=rf"{LOGGED_AS_FILE}: not .*; remove the file"):
        logged_id(tmp_path, "wandb")
