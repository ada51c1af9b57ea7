"""The pretraining loss of transformers' classes, for each family of `bench_train_step.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import transformers
from sides import HEADS

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.exporter import huggingface_config
from bertjax.families.registry import generator_config, get_family

Inputs = dict[str, torch.Tensor]  # input_ids, labels, and for some classes token_type_ids and pair_labels
Loss = Callable[[Inputs], torch.Tensor]


def predict_where_labelled(network: torch.nn.Module, family: str, labels: torch.Tensor) -> torch.Tensor:
    """Make an MLM head compute only the P labelled positions of [B, L]. Returns their labels, [1, P]."""
    labels = labels.flatten()
    positions = (labels >= 0).nonzero()[:, 0]
    head = network.get_submodule(HEADS[family])
    head.register_forward_pre_hook(lambda _, inputs: (inputs[0].flatten(0, 1)[positions][None], *inputs[1:]))
    return labels[positions][None]


def pretraining(model: ModelConfig) -> tuple[torch.nn.Module, Loss]:
    """A network with random weights, and its loss function."""
    return _replaced_tokens(model) if model.generator_width else _with_one_network(model)


def _network(model: ModelConfig) -> torch.nn.Module:
    name = get_family(model.family).huggingface.pretraining.name
    values = huggingface_config(model, {"pad": 0})
    kind = getattr(transformers, name)
    attention = "sdpa" if kind._supports_sdpa else "eager"  # DeBERTa supports only eager
    # sparse_prediction restricts ModernBERT's head to the predicted positions; other classes ignore it.
    return kind(transformers.AutoConfig.for_model(**values, attn_implementation=attention, sparse_prediction=True))


def _with_one_network(model: ModelConfig) -> tuple[torch.nn.Module, Loss]:
    network = _network(model)
    pair_labels = {"bert": "next_sentence_label", "albert": "sentence_order_label"}.get(model.family)

    def loss(inputs: Inputs) -> torch.Tensor:
        arguments = {key: x for key, x in inputs.items() if key in ("input_ids", "labels", "attention_mask")}
        if model.type_vocab_size:
            arguments["token_type_ids"] = inputs["token_type_ids"]
        if pair_labels:
            arguments[pair_labels] = inputs["pair_labels"]
        return network(**arguments).loss

    return network, loss


def _replaced_tokens(model: ModelConfig) -> tuple[torch.nn.Module, Loss]:
    """Generator and discriminator with shared embeddings; samples of the generator replace the masked tokens."""
    generator = _network(generator_config(model))
    discriminator = _network(replace(model, generator_width=0.0))
    discriminator.electra.embeddings = generator.electra.embeddings
    both = torch.nn.ModuleList([generator, discriminator])

    def loss(inputs: Inputs) -> torch.Tensor:
        ids, labels, types = inputs["input_ids"], inputs["labels"], inputs["token_type_ids"]
        generated = generator(input_ids=ids, token_type_ids=types, labels=labels)
        masked = labels >= 0
        with torch.no_grad():
            logits = generated.logits[masked]
            noise = -torch.log(torch.empty_like(logits).exponential_())
            samples = (logits + noise).argmax(-1)
        replaced = ids.masked_scatter(masked, samples)
        is_replaced = (replaced != ids.masked_scatter(masked, labels[masked])).long()
        return generated.loss + 50 * discriminator(input_ids=replaced, token_type_ids=types, labels=is_replaced).loss

    return both, loss
