"""mteb evaluates a loaded model on a made-up task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exported_models import trained_model

from bertjax.embed.mteb import MtebEncoder
from bertjax.finetune.metrics.classification import spearman
from bertjax.loaded import LoadedModel

PAIRS = [
    ("the museum of drawings", "drawings of the museum", 5.0),
    ("the ab", "the cde", 2.0),
    ("the ab the cde", "museum", 0.0),
    ("drawings", "the drawings", 4.0),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return LoadedModel(trained_model(tmp_path_factory.mktemp("mteb") / "run"))


def test_prompts_and_batches_reach_the_encoder(model: LoadedModel) -> None:
    encoder = model.as_mteb("lab/tiny", {"query": "the "}, pooling="cls")
    batches = [{"text": ["ab", "museum"]}, {"text": ["cde"]}]
    plain = model.encode(["ab", "museum", "cde"], pooling="cls")
    prompted = model.encode(["the ab", "the museum", "the cde"], pooling="cls")
    assert np.array_equal(encoder.encode(batches, prompt_type="document", hf_split="test"), plain)
    assert np.array_equal(encoder.encode(batches, prompt_type="query", batch_size=2), prompted)
    with pytest.raises(ValueError, match="pooling='none': mteb compares one vector per text"):
        model.as_mteb(pooling="none")
    with pytest.raises(ValueError, match="'passage' is not a type of text; use query and document"):
        MtebEncoder(np.zeros, "a/b", 8, 4, {"passage": ""})


def test_mteb_evaluates_a_model(model: LoadedModel, tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb", reason="needs mteb: pip install mteb")
    import datasets
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.models import EncoderProtocol

    class Local(AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="Local",
            description="Pairs",
            dataset={"path": "local/pairs", "revision": "1"},
            type="STS",
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )
        min_score, max_score = 0, 5

        def load_data(self, **_: object) -> None:
            first, second, score = zip(*PAIRS, strict=True)
            columns = {"sentence1": first, "sentence2": second, "score": score}
            self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(columns))
            self.data_loaded = True

    encoder = model.as_mteb("lab/tiny", normalize=True)
    assert isinstance(encoder, EncoderProtocol)
    result = mteb.evaluate(encoder, [Local()], cache=mteb.ResultCache(tmp_path))
    first, second, score = zip(*PAIRS, strict=True)
    ours = (model.encode(first, normalize=True) * model.encode(second, normalize=True)).sum(1)
    assert result.model_name == "lab/tiny"
    assert result.task_results[0].get_score() == pytest.approx(spearman(ours, np.array(score)), abs=1e-6)
