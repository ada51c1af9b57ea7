"""Probes of a run: figures equal the verbs', weights are unchanged, and the time limit holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest
from generated_corpus import write_corpus
from jax.sharding import NamedSharding, PartitionSpec
from tiny_runs import command, digests, finish, write_recipe

from bertjax.__main__ import main
from bertjax.config import Config, MeshConfig, ProbeConfig, StageConfig
from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import read_tagged, tag_layout
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.linear_probe import TagProbe, _word_vectors, classify
from bertjax.interpret.probes import Probes, _model, gather, read_probe_files
from bertjax.interpret.pseudo_likelihood import MinimalPair, PairSet, judge_pairs, read_pair_sets
from bertjax.interpret.token_rows import TokenRow
from bertjax.parallel.mesh import make_mesh
from bertjax.run.job import make_job
from bertjax.run.run_directory import TrainedModel, load_run
from bertjax.run.telemetry import curves, read_metrics
from bertjax.runtime.processes import alone
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages
from bertjax.training.state import draw_blueprint

pytestmark = pytest.mark.run

TAGS = ("DET", "ADJ", "NOUN", "VERB", "DET", "ADJ", "NOUN", "PUNCT")  # of the sentences of the generated corpus


def write_probes(folder: Path, corpus: Path) -> list[str]:
    """Write two sets of pairs and a file of tags for a corpus; returns command-line options."""
    lines = [line for line in corpus.read_text().splitlines() if line]
    pairs = folder / "pairs"
    pairs.mkdir()
    for name, (one, two) in {"order": (1, 2), "verb": (2, 3)}.items():
        rows = []
        for line in lines[:12]:
            words = line.split()
            words[one], words[two] = words[two], words[one]
            rows.append(json.dumps({"sentence_good": line, "sentence_bad": " ".join(words)}))
        (pairs / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    tagged = ["\n".join(f"{word} {tag}" for word, tag in zip(line.split(), TAGS, strict=True)) for line in lines[:40]]
    (folder / "tags.conll").write_text("\n\n".join(tagged) + "\n")
    options = ["--probe.pairs", str(pairs), "--probe.tags", str(folder / "tags.conll"), "--probe.attention", "True"]
    return [*options, "--probe.sample", "8", "--probe.share", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same short run on two devices, with probes and without."""
    folder = tmp_path_factory.mktemp("probed")
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 80)
    few = ["--training.steps", "4", "--optimizer.warmup-steps", "1", "--training.eval-every", "2"]
    few += ["--training.eval-rows", "16", "--data.vocab-size", "600"]
    for name, more in (("plain", []), ("probed", write_probes(folder, source))):
        finish(command(recipe, source, folder / name, *few, *more), folder / f"{name}.log", devices=2)
    return folder


@pytest.mark.long
def test_probes_do_not_change_weights(runs: Path) -> None:
    assert digests(runs / "probed") == digests(runs / "plain")
    plain, probed = (curves(read_metrics(runs / name / "metrics.jsonl")) for name in ("plain", "probed"))
    assert not any(name.startswith("probe/") for name in plain)
    prefixes = ("train/", "eval/", "baseline/")
    assert {n: v for n, v in probed.items() if n.startswith(prefixes)} == {
        n: v for n, v in plain.items() if n.startswith(prefixes)
    }


@pytest.mark.long
def test_figures_belong_to_the_last_checkpoint(runs: Path) -> None:
    result = curves(read_metrics(runs / "probed" / "metrics.jsonl"))
    assert result["probe/pairs_accuracy"][0] == [2, 4]
    last = {name: values[-1] for name, (_, values) in result.items()}
    model = load_run(runs / "probed")
    files = read_probe_files(model.config)
    assert [len(one.pairs) for one in files.pairs] == [4, 4] and len(files.tagged) == 40
    judged = judge_pairs(model, files.pairs)
    assert last["probe/pairs_accuracy"] == sum(one.right for one in judged) / 8
    assert {one.name: one.accuracy for one in judged} == {n: last[f"probe/pairs/{n}"] for n in ("order", "verb")}
    assert {*files.pairs[0].pairs} < {*read_pair_sets([runs / "pairs"])[0].pairs}
    sentences = read_tagged(runs / "tags.conll", tag_layout(runs / "tags.conll"))
    probe = TagProbe.of(sentences, model.tokenizer, model.max_length)
    layers = [last[f"probe/tags_layer_{number}"] for number in range(3)]
    np.testing.assert_allclose(layers, probe.accuracies(model), atol=0.05)  # 64 words; a tie may fall either way
    assert last["probe/tags_accuracy"] == max(layers) and last["probe/tags_by_form"] == pytest.approx(probe.baseline)
    assert -1 < last["probe/attention_next_word"] < 1 and last["probe/attention_separators"] < 1
    assert 0 < last["probe/share"] < 1 and last["probe/seconds"] > 0
    assert "probes: taken at 2 evaluation(s), in " in (runs / "probed.log").read_text()
    assert "Probes, by step" in (runs / "probed" / "report.html").read_text()
    assert "Probes, by step" not in (runs / "plain" / "report.html").read_text()


@pytest.mark.parametrize(("compiling", "second", "most"), [(0.0, 122.0, 5), (5.0, 77.0, 30)])
def test_probes_respect_their_time_share(compiling: float, second: float, most: int) -> None:
    """Evaluations every 10 s: the first probe is expected to take as long as its evaluation, and takes 6 s.

    The next one is expected to take as long, without the compilation time that jax reports.
    """
    now, done = [0.0], []

    def slow(_: TrainedModel) -> dict[str, float]:
        if compiling and not done:
            jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", compiling)
        now[0] += 6.0 - (compiling if done else 0.0)
        done.append(1)
        return {"probe/pairs_accuracy": 0.5}

    class _Job:
        config = Config(probe=ProbeConfig(pairs=("x",), share=0.1))

    with alone() as processes, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertjax.interpret.probes._model", lambda *_: None)
        probes = Probes(_Job(), [slow], processes, clock=lambda: now[0])  # type: ignore[arg-type]
        taken = []
        for _ in range(30):
            now[0] += 10.0
            if probes.take(None, {}, evaluated=1.5):  # type: ignore[arg-type]
                taken.append(now[0])
                assert probes.share <= 0.1 or len(taken) == 1
        assert taken[:2] == [20.0 + 6.0, second] and 3 <= len(taken) <= most
    assert probes.share <= 0.1 and probes.taken == len(taken) and probes.passed_over == 30 - len(taken)
    assert f"taken at {len(taken)} evaluation(s)" in str(probes) and "skipped at" in str(probes)


def test_probes_use_the_network_of_their_stage(model: TrainedModel) -> None:
    """Including a causal stage after another one."""
    later = StageConfig(start=5, objectives=("clm",), sequence_length=16)
    config = replace(
        model.config, stages=(later,), data=replace(model.config.data, rows="full_sentences", sequence_length=8)
    )
    config = replace(config, training=replace(config.training, steps=9, objectives=("mlm",)))
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=1))
    optimizer, mesh = make_optimizer(config.optimizer), make_mesh(MeshConfig(), jax.devices()[:1])
    blueprint = draw_blueprint(config.model, optimizer, mesh)
    job = make_job(config, mesh, blueprint, optimizer, model.tokenizer, "", None)
    probed = [_model(job, stage, None) for stage in make_stages(config)]
    assert [(one.config.model.causal, one.max_length) for one in probed] == [(False, 8), (True, 16)]


def test_gather_collects_weights_of_a_mesh(model: TrainedModel) -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    whole = model.params["encoder"]["embeddings"]["word"]
    spread = jax.device_put(whole, NamedSharding(mesh, PartitionSpec(None, "fsdp")))
    copies = jax.device_put(whole, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        result = gather({"spread": spread, "copies": copies, "here": whole})
        pairs = [PairSet("order", (MinimalPair("the bank went", "bank the went"),))]
        assert judge_pairs(replace(model, params=gather(model.params)), pairs) == judge_pairs(model, pairs)
    for leaf in result.values():
        np.testing.assert_array_equal(leaf, whole)
        assert leaf.sharding.device_set == {jax.local_devices()[0]}


SENTENCES = [
    TaggedSentence(f"t:{n}", str(n), tuple(text.split()), tuple(tags.split()))
    for n, (text, tags) in enumerate(
        [
            ("the bank of money", "D N P N"),
            ("a family went to the store", "D N V P D N"),
            ("strawberries went in", "N V P"),
            ("the muddy strawberries", "D J N"),
            ("the water sat", "D N V"),
        ]
    )
]


def test_word_vectors_are_the_first_pieces(model: TrainedModel) -> None:
    probe = TagProbe.of(SENTENCES, model.tokenizer, model.max_length)
    vectors = _word_vectors(model, probe.windows)
    rows = [TokenRow.of(model.tokenizer, [ids]) for ids in model.tokenizer.encode_sentences(
        [" ".join(sentence.words) for sentence in SENTENCES])]  # fmt: skip
    expected = []
    for row, inside in zip(rows, look_inside(model, rows), strict=True):
        first = np.unique(row.word_numbers, return_index=True)[1][1:-1]
        expected.append(inside.hidden[:, first])
    np.testing.assert_allclose(vectors, np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-5)
    assert probe.measured.tolist() == [False] * 16 + [True] * 3
    assert probe.baseline == pytest.approx(2 / 3)  # `water` is new and N, the most frequent tag; `sat` is new and not N


def test_classify_equals_ridge_classifier() -> None:
    linear, scaling = (pytest.importorskip(f"sklearn.{name}") for name in ("linear_model", "preprocessing"))
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(4, 12))
    labels = draw.integers(4, size=300)
    vectors = (5 + 3 * (centres[labels] + 2 * draw.normal(size=(300, 12)))).astype(np.float32)
    result = classify(vectors[:200], labels[:200], vectors[200:], 4)
    scaler = scaling.StandardScaler().fit(vectors[:200].astype(np.float64))
    ridge = linear.RidgeClassifier(alpha=1.0).fit(scaler.transform(vectors[:200].astype(np.float64)), labels[:200])
    np.testing.assert_array_equal(result, ridge.predict(scaler.transform(vectors[200:].astype(np.float64))))
    assert 0.5 < np.mean(result == labels[200:]) < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--probe.pairs", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--probe.tags", "nowhere.conllu"], "probe.tags='nowhere.conllu': no such file; name a file of tagged words"),
        (["--probe.tags", "untagged.conll"], "untagged.conll:1: 1 columns, but the tag should be in column 2"),
        (["--probe.attention", "True", "--probe.share", "0"], "probe.share=0.0 must be in (0, 1]"),
    ],
)
def test_bad_probes_are_rejected_before_preparation(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, source = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 20)
    (tmp_path / "untagged.conll").write_text("a\nword\n")
    where = ["--data.sources", f"lines:{source}", "--data.root", str(tmp_path / "texts"), "--run-dir", str(tmp_path)]
    assert main(["pretrain", str(recipe), *where, *words]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "texts").exists()


def test_too_few_tagged_sentences_are_refused(model: TrainedModel) -> None:
    with pytest.raises(ValueError, match="t:0: 3 sentences; give 5 or more, because every fifth is measured"):
        TagProbe.of(SENTENCES[:3], model.tokenizer, 64)


def test_finetune_refuses_probes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "classification", "--init-from", "hf:nowhere", "--probe.attention", "True"]) == 1
    assert "fine-tuning takes no probes; leave it out" in capsys.readouterr().err
