"""Small models with random weights and a real vocabulary, in place of trained ones."""

from __future__ import annotations

import dataclasses
import string
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from bertjax.config import (
    Config,
    DataConfig,
    ExecutionConfig,
    FinetuneConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from bertjax.convert.compare import Difference
from bertjax.convert.formats import Vectors, load_format
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.model.network import GENERATOR
from bertjax.model.pooling import Pooling
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

WORDS = ("the", "of", "and", "museum", "opened", "drawings", "Museum", "The", "naïve", "naive", "1877")
SIGNS = [*string.ascii_letters, *string.digits, *string.punctuation, *"éïèà北京是“”。"]


def wordpiece(lowercase: bool = True, strip_accents: bool = True) -> WordPiece:
    """A vocabulary whose special tokens are neither first nor in the usual order, as in some published ones."""
    tokens = [*WORDS, *reversed(SPECIAL_TOKENS), *SIGNS, *(f"##{sign}" for sign in SIGNS)]
    return WordPiece(tokens, TextRules(lowercase, strip_accents))


def trained_model(directory: Path, tokenizer: Tokenizer | None = None, **fields) -> TrainedModel:
    """A run's model with random parameters; the vocabulary's padding is zero, as in training."""
    tokenizer = tokenizer or wordpiece()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"max_position_embeddings": 80}
    execution = ExecutionConfig(**{key: fields.pop(key) for key in ("dtype",) if key in fields})
    model = tokenizer.fit_model(ModelConfig(vocab_size=tokenizer.vocab_size, **(sizes | fields)))
    config = Config(
        name="tiny",
        run_dir=str(directory),
        init_from="/secret/place/runs/other",
        model=model,
        execution=execution,
        data=DataConfig(
            sources=("text:/secret/place/*.txt", "text:/secret/b/*", "docs:numpy"),
            root="/secret/place/data",
            vocab="/secret/place/vocab.txt",
            sequence_length=64,
            **asdict(tokenizer.rules),
        ),
        optimizer=OptimizerConfig(warmup_steps=100),
        training=TrainingConfig(steps=1000, global_batch_size=32, objectives=get_family(model.family).objectives),
    )
    return _with_weights(directory, config, tokenizer)


def fine_tuned_model(directory: Path, kind: str, labels: tuple[str, ...] = (), **fields) -> TrainedModel:
    """Like `trained_model`, with the head for a kind of task."""
    pretrained = trained_model(directory, **fields)
    heads = dict.fromkeys(("regression", "relevance", "multi_label"), "sequence") | {"token_regression": "tokens"}
    head = heads.get(kind, kind)
    outputs = len(labels) or 1 if head in ("sequence", "tokens") else 0
    config = FinetuneConfig(
        **{field.name: getattr(pretrained.config, field.name) for field in dataclasses.fields(pretrained.config)},
        task=TaskConfig(name="mytask", train="/secret/train.tsv", labels=labels, max_query=16),
    )
    config = replace(
        config,
        model=replace(config.model, head=head, num_labels=outputs),
        training=replace(config.training, objectives=(kind,)),
    )
    return _with_weights(directory, config, pretrained.tokenizer)


def _with_weights(directory: Path, config: Config, tokenizer: Tokenizer) -> TrainedModel:
    graphdef, shapes, _ = abstract_network(config.model, config.execution)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: draw.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    params["encoder"]["embeddings"]["word"][config.model.vocab_size :] = 0
    for network in (params, params.get(GENERATOR, {})):
        head = network.get("mlm_head", {})
        for name in {"bias", "decoder"} & head.keys():
            head[name][config.model.vocab_size :] = 0
    return TrainedModel(directory, 700, config, tokenizer, graphdef, jax.device_put(params))


def export_onnx(
    model: TrainedModel, directory: str | AnyPath, pooling: Pooling = "none", normalize: bool = False
) -> AnyPath:
    """Export to ONNX in float32, without a comparison."""
    return load_format("onnx").export(model, directory, Vectors(pooling, normalize))


def compare_with_onnxruntime(
    model: TrainedModel, folder: Path, pooling: Pooling = "none", normalize: bool = False
) -> Difference | None:
    """Compare a folder of `export_onnx` with the model."""
    return load_format("onnx").compare(model, folder, Vectors(pooling, normalize))


def assert_same(ours: dict, theirs: dict) -> None:
    """Assert that two trees of arrays have the same bits."""
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
