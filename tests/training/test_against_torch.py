"""Training from the same weights on the same batches gives the loss curve of torch."""

from __future__ import annotations

import numpy as np
import pytest
from small_training import Training

from bertjax.config import DataConfig, MeshConfig, ModelConfig, OptimizerConfig
from bertjax.convert.huggingface.exporter import huggingface_config
from bertjax.convert.huggingface.names import to_huggingface_tensors
from bertjax.input.batches import RowBatches
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore

pytestmark = pytest.mark.run

STEPS, ROWS = 200, 16
DATA = DataConfig(sources=("docs:optax,flax",), vocab_size=1000, sequence_length=48, max_predictions=8, held_out=0.1)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, np.ndarray]]]:
    """(vocabulary size, batches of real text)."""
    folder = tmp_path_factory.mktemp("text")
    data = DataConfig(**{**DATA.__dict__, "root": str(folder), "workers": 1})
    store = TokenStore.open(prepare(data, lambda *_: None))
    tokenizer = store.tokenizer()
    pairs = RowBatches(store.split("train"), tokenizer, data, seed=0)
    return tokenizer.vocab_size, [pairs.batch(number, ROWS) for number in range(STEPS)]


def model_config(vocab_size: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=48,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def rate(settings: OptimizerConfig, step: int) -> float:
    """optimization.py's schedule: linear warm-up over a linear decay."""
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    return settings.learning_rate * (1 - step / STEPS)


def our_losses(config: ModelConfig, settings: OptimizerConfig, batches: list) -> tuple[dict, np.ndarray]:
    """Train; return (the initial weights under transformers' names, the losses)."""
    training = Training(MeshConfig(1, 1, 1), config, settings, steps=STEPS)
    return to_huggingface_tensors(training.state.params, config), training.losses(batches)


def their_network(torch, config: ModelConfig, weights: dict):
    transformers = pytest.importorskip("transformers")
    network = transformers.BertForPreTraining(transformers.BertConfig(**huggingface_config(config, {"pad": 0})))
    keys = network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()}, strict=False)
    assert not keys.unexpected_keys
    network.tie_weights()
    return network.train()  # its dropout rates are 0


def their_loss(torch, network, batch: dict):
    """The loss of run_pretraining.py: the mean over the masked positions plus the mean over the pairs."""
    inputs = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    inputs["attention_mask"] = (batch["sequence_ids"] > 0).astype(np.int64)
    out = network(**{key: torch.from_numpy(value).long() for key, value in inputs.items()})
    labels = np.full(batch["input_ids"].shape, -100)
    rows, slots = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    entropy = torch.nn.functional.cross_entropy
    mlm = entropy(out.prediction_logits.flatten(0, 1), torch.from_numpy(labels).flatten().long())
    return mlm + entropy(out.seq_relationship_logits, torch.from_numpy(batch["pair_labels"][:, 0]).long())


def is_excluded(name: str) -> bool:
    return name.endswith("bias") or "LayerNorm" in name


class ReferenceOptimizer:
    """BERT's AdamW and LAMB as in their papers and reference code, one tensor at a time."""

    def __init__(self, torch, network, name: str) -> None:
        self.torch, self.name, self.parameters = torch, name, dict(network.named_parameters())
        self.m = {key: torch.zeros_like(p) for key, p in self.parameters.items()}
        self.v = {key: torch.zeros_like(p) for key, p in self.parameters.items()}
        self.number = 0

    def step(self, learning_rate: float) -> None:
        self.number += 1
        for key, p in self.parameters.items():
            m, v = self.m[key], self.v[key]
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            corrected = self.name == "lamb"
            m_hat = m / (1 - 0.9**self.number) if corrected else m
            v_hat = v / (1 - 0.999**self.number) if corrected else v
            update = m_hat / (v_hat.sqrt() + 1e-6)
            if not is_excluded(key):
                update = update + 0.01 * p
                if self.name.startswith("lamb"):
                    p_norm, update_norm = p.norm(), update.norm()
                    update = update * (p_norm / update_norm if p_norm > 0 and update_norm > 0 else 1.0)
            with self.torch.no_grad():
                p -= learning_rate * update


class TorchAdamW:
    """torch.optim.AdamW with BERT's exclusions from weight decay."""

    def __init__(self, torch, network, name: str) -> None:
        groups = [[p for key, p in network.named_parameters() if is_excluded(key) is out] for out in (False, True)]
        self.optimizer = torch.optim.AdamW(
            [{"params": groups[0], "weight_decay": 0.01}, {"params": groups[1], "weight_decay": 0.0}], lr=1.0, eps=1e-6
        )

    def step(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()


@pytest.mark.long  # the suite has gradients in tests/model/test_network.py and rules in test_optimizer.py
@pytest.mark.parametrize(
    ("name", "make", "peak"),
    [
        ("bert_adamw", ReferenceOptimizer, 1e-3),
        ("adamw", TorchAdamW, 1e-3),
        ("lamb", ReferenceOptimizer, 1e-2),
        ("lamb_uncorrected", ReferenceOptimizer, 1e-2),
    ],
)
def test_loss_curve_equals_torch(batches: tuple, name: str, make: type, peak: float) -> None:
    torch = pytest.importorskip("torch")
    vocab_size, train_batches = batches
    config, settings = model_config(vocab_size), OptimizerConfig(name=name, learning_rate=peak, warmup_steps=20)
    weights, ours = our_losses(config, settings, train_batches)
    network = their_network(torch, config, weights)
    rule, theirs = make(torch, network, name), []
    for number, batch in enumerate(train_batches):
        network.zero_grad()
        loss = their_loss(torch, network, batch)
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in network.parameters()]).norm()
        for p in network.parameters():
            p.grad /= torch.clamp(norm, min=1.0)
        rule.step(rate(settings, number))
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert np.mean(ours[-20:]) < np.mean(ours[:20]) - 0.5, "the model learned nothing, so equal curves prove little"
