"""A run reads a token store by its path (`data.store`), without the sources that it was made of."""

import shutil

import numpy as np
import pytest
from small_corpus import changed

from bertjax.config import Config, DataConfig, validate
from bertjax.input.training_data import open_training_data
from bertjax.pipeline.preparation import prepare as prepare_verb
from bertjax.pipeline.vocabulary import with_vocabulary
from bertjax.storage.progress import no_progress
from bertjax.text.prepare import prepare, require_sources


def test_a_store_gives_the_batches_of_its_sources(data, tmp_path):
    by_sources = open_training_data([data], no_progress)
    made = by_sources.train(data, 1).rows(np.arange(8))
    expected = {key: values.tobytes() for key, values in made.items()}
    store = shutil.move(prepare(data), tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "text")
    (tmp_path / "vocab.txt").unlink()
    named = with_vocabulary(validate(Config(data=DataConfig(store=str(store), sources=("text:gone/*.txt",))))).data
    assert (named.sources, named.lowercase, named.vocab_size) == ((), data.lowercase, by_sources.tokenizer.vocab_size)
    require_sources(named)
    content = open_training_data([named], no_progress)
    assert content.fingerprint == by_sources.fingerprint and content.location == str(tmp_path / "elsewhere")
    rows = content.train(named, 1).rows(np.arange(8))
    assert {key: values.tobytes() for key, values in rows.items()} == expected


def test_what_contradicts_a_store_is_refused(data, tmp_path):
    store = str(prepare(data))
    with pytest.raises(ValueError, match="no manifest"):
        require_sources(changed(data, store=str(tmp_path)))
    with pytest.raises(ValueError, match="is a finished token store; leave it out to prepare sources"):
        prepare_verb(Config(data=changed(data, store=store)))
    two = changed(data, store=store, weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="the token store has 1 sources; give one for each"):
        open_training_data([two], no_progress).train(two, 0)
