"""Settings and seeds of a task's runs, and summaries of several runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bertjax.config import FinetuneConfig, TaskConfig, TrainingConfig
from bertjax.finetune.data.examples import Question, TaggedSentence
from bertjax.finetune.kinds.choice import CHOICE
from bertjax.finetune.kinds.kind import baseline_name
from bertjax.finetune.kinds.regression import REGRESSION
from bertjax.finetune.kinds.relevance import RELEVANCE
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.span import no_answer_figures
from bertjax.finetune.kinds.tokens import constant_tag_figures
from bertjax.finetune.kinds.vector import VECTOR
from bertjax.finetune.recipes import make_settings
from bertjax.finetune.run import Result
from bertjax.finetune.summary import TaskSummary, overall
from bertjax.report.page import text_lines


def test_settings_combine_values_and_seeds() -> None:
    config = FinetuneConfig(run_dir="runs/x", training=TrainingConfig(seed=3, steps=0))
    settings = make_settings(config, {"learning_rate": (5e-5, 2e-5), "batch_size": (16,), "epochs": (2.0, 3.0)}, 2)
    assert [setting.name for setting in settings] == [
        f"lr{rate}-epochs{epochs}" for rate in ("5e-05", "2e-05") for epochs in (2, 3)
    ]
    runs = [run for setting in settings for run in setting.runs]
    assert len({run.run_dir for run in runs}) == len(runs) == 8
    first, second = settings[1].runs
    assert (first.run_dir, first.training.seed) == ("runs/x/lr5e-05-epochs3/seed-3", 3)
    assert (second.training.seed, second.optimizer.learning_rate, second.task.epochs) == (4, 5e-5, 3.0)
    assert second.training.global_batch_size == 16


def test_single_run_has_directory_of_task() -> None:
    (setting,) = make_settings(FinetuneConfig(run_dir="runs/x"), {"learning_rate": (1e-5,)}, 1)
    assert setting.name == "" and [run.run_dir for run in setting.runs] == ["runs/x"]


@pytest.mark.parametrize(
    ("tried", "task", "message"),
    [
        ({"batch_size": (16, 0)}, {}, r"global_batch_size \(--batch-size\) is 0; give 1 or more"),
        ({"epochs": (0.0,)}, {}, r"task.epochs \(--epochs\) is 0.0; give a number above 0"),
        ({"epochs": (float("nan"),)}, {}, r"task.epochs \(--epochs\) is nan"),
        ({"learning_rate": (-1e-5,)}, {}, r"learning_rate \(--learning-rate\) is -1e-05; give a number above 0"),
        ({"learning_rate": (2e-5, 0.00002)}, {}, "--learning-rate 2e-05 2e-05: a value is repeated; give each once"),
        ({}, {"epochs": -1.0}, r"task.epochs \(--epochs\) is -1.0"),
        ({}, {"n_best": 0}, r"task.n_best is 0; give 1 or more"),
        ({}, {"max_answer": 0}, r"task.max_answer is 0; give 1 or more"),
        ({}, {"patience": -1}, r"task.patience \(--patience\) is -1; give 1 or more, or 0"),
        ({}, {"layer_decay": 0.0}, r"task.layer_decay \(--layer-decay\) is 0.0; give a number above 0, up to 1"),
        ({}, {"examples": -5}, "task.examples is -5"),
    ],
)
def test_out_of_range_values_are_rejected(tried: dict, task: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_settings(FinetuneConfig(task=TaskConfig(**task)), tried, 1)


def test_epochs_beside_steps_are_rejected() -> None:
    config = FinetuneConfig(training=TrainingConfig(steps=100))
    with pytest.raises(ValueError, match=r"--epochs 1 2 with training\.steps=100: the steps alone decide"):
        make_settings(config, {"epochs": (1.0, 2.0)}, 1)


def result(directory: str, accuracy: float, baselines: dict[str, float] | None = None) -> Result:
    return Result(directory, 10, {"eval/sequence_loss": 0.5, "eval/accuracy": accuracy}, baselines or {}, 90.0, ())


def test_undefined_figures_are_never_best() -> None:
    results = {"lr1": [result("a", math.nan), result("b", 0.2)], "lr2": [result("c", 0.1), result("d", 0.1)]}
    summary = TaskSummary("regression", ("accuracy",), results, {})
    assert summary.best.directory == "b" and summary.best_setting == "lr2"
    assert [row[2] for row in summary.table().rows] == ["nan", "10.00 ± 0.00"]
    undefined = TaskSummary("regression", ("accuracy",), {"": [result("a", math.nan)]}, {})
    assert undefined.best.directory == "a" and undefined.cells("") == ["nan"]


def test_summary_has_means_deviations_and_best_run() -> None:
    results = {"lr1": [result("a", 0.5), result("b", 0.9)], "lr2": [result("c", 0.75), result("d", 0.75)]}
    summary = TaskSummary("rte", ("accuracy",), results, {"BERT Base, test": 66.4})
    assert summary.best.directory == "b" and summary.best_setting == "lr2"
    assert text_lines(summary.table())[1].split() == ["lr1", "2", "70.00", "±", "28.28", "1.5"]
    assert overall([summary], ["BERT Base, test", "nobody"]).rows == (
        ("rte", "accuracy", "75.00 ± 0.00", "66.4", "", "none"),
    )


def test_average_is_over_tasks_with_published_figures() -> None:
    def summary(task: str, accuracy: float, published: dict[str, float]) -> TaskSummary:
        return TaskSummary(task, ("accuracy",), {"": [result("a", accuracy)]}, published)

    published = [summary("rte", 0.5, {"A": 66.4, "B": 70}), summary("sst2", 0.9, {"A": 93.5, "B": 94})]
    unpublished = summary("wnli", 0.1, {"A": 53.5})
    average = overall([*published, unpublished], ["A", "B"]).rows[-1]
    assert average == ("average of 2", "", "70.00", "79.95", "82.00", "none")
    assert [row[0] for row in overall([published[0], unpublished], ["A", "B"]).rows] == ["rte", "wnli"]
    constant = {baseline_name("eval/accuracy"): 0.5}
    with_constants = [replace(one, results={"": [result("a", 0.5, constant)]}) for one in published]
    assert overall(with_constants, ["A", "B"]).rows[-1][-1] == "50.00"


def test_table_has_baseline_of_every_figure() -> None:
    figures = {"eval/f1": 0.8122, "eval/accuracy": 0.6838, "test/f1": 0.5, "eval/matthews": 0.1}
    baselines = {"baseline/f1": 0.8122, "baseline/accuracy": 0.6838, "baseline/test/f1": 0.25}
    run = Result("a", 10, figures, baselines, 60.0, ())
    table = TaskSummary("mrpc", ("f1", "accuracy"), {"": [run]}, {}).table()
    assert table.rows == (
        ("default", "1", "81.22", "68.38", "50.00", "10.00", "1.0"),
        ("constant answer", "", "81.22", "68.38", "25.00", "none", ""),
    )
    assert overall([TaskSummary("mrpc", ("f1",), {"": [run]}, {})], ()).rows == (("mrpc", "f1", "81.22", "81.22"),)
    undefined = TaskSummary("stsb", ("spearman",), {"": [replace(run, baselines={})]}, {}).table()
    assert len(undefined.rows) == 1 and "no baseline: these figures are undefined" in undefined.note


@pytest.mark.parametrize(
    ("kind", "metrics", "answers", "expected"),
    [
        (SEQUENCE, ("f1", "accuracy", "matthews"), [1, 1, 1, 0], {"f1": 6 / 7, "accuracy": 0.75, "matthews": 0.0}),
        (SEQUENCE, ("f1", "accuracy"), [0, 0, 0, 1], {"f1": 0.4, "accuracy": 0.75}),  # F1 of always answering 1
        (SEQUENCE, ("macro_f1",), [2, 2, 0, 1], {"macro_f1": 2 / 9}),
        (RELEVANCE, ("f1", "accuracy"), [0.0, 0.0, 1.0], {"f1": 0.5, "accuracy": 2 / 3}),
        (CHOICE, ("accuracy",), [3, 3, 1], {"accuracy": 2 / 3}),
        (REGRESSION, ("spearman", "pearson"), [0.5, 1.0, 2.0], {}),  # nothing correlates with a constant
        (VECTOR, ("accuracy",), [[0, 1], [2, 3]], {}),
    ],
)
def test_constant_figures_of_texts(kind, metrics: tuple[str, ...], answers: list, expected: dict) -> None:
    assert kind.constant_figures(metrics, np.array(answers)) == pytest.approx(expected)


def test_constant_figures_of_tags() -> None:
    words = ("a", "b", "c")
    tagged = [TaggedSentence("x:1", "1", words, tags) for tags in (("O", "O", "O"), ("O", "O", "B-PER"))]
    assert constant_tag_figures(("accuracy",), tagged) == pytest.approx({"accuracy": 5 / 6})
    entities = constant_tag_figures(("f1", "precision", "recall"), tagged)
    assert entities == pytest.approx({"f1": 2 / 7, "precision": 1 / 6, "recall": 1.0})  # every word B-PER


def test_no_answer_figures_of_questions() -> None:
    questions = [Question("x", str(n), "q", "a b", (("b", 2),) if n else (), not n) for n in range(4)]
    figures = no_answer_figures(questions)
    assert figures["exact"] == figures["f1"] == figures["best_f1"] == 0.25
    assert (figures["HasAns_f1"], figures["NoAns_f1"]) == (0.0, 1.0)
