"""KerasHub's side of the train step benchmarks: a BERT for MLM and NSP on the jax backend.

    PYTHON tests/benchmarks/their_keras.py WORK.npz [TOPOLOGY]

Runs in a separate interpreter with `keras-hub` and jax (`python -m venv keras; keras/bin/pip install keras-hub jax`),
and does not import bertjax. WORK.npz has the arrays of a batch and the sizes of the network. Prints a line once the
step is compiled; then, for each number of steps read from stdin, a line with their seconds. With TOPOLOGY, such as
v5e:1x1, it instead compiles the step for that TPU (which need not be attached) and prints a line of JSON: the memory of
its temporaries and the program's text.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import keras
import keras_hub
import numpy as np
from jax.experimental import topologies


def network(sizes: dict[str, int], dropout: float, length: int, predictions: int) -> keras.Model:
    """BERT with its two heads; computes logits only at the predicted positions, like bertjax."""
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=sizes["vocab_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        hidden_dim=sizes["hidden_size"],
        intermediate_dim=sizes["intermediate_size"],
        dropout=dropout,
        max_sequence_length=sizes["max_position_embeddings"],
        num_segments=sizes["type_vocab_size"],
    )
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name in backbone.input}
    positions = keras.Input((predictions,), dtype="int32", name="mask_positions")
    encoded = backbone(inputs)
    head = keras_hub.layers.MaskedLMHead(
        vocabulary_size=sizes["vocab_size"],
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
        dtype=backbone.dtype_policy,
    )
    tokens = head(encoded["sequence_output"], mask_positions=positions)
    pairs = keras.layers.Dense(2, name="pairs")(keras.layers.Dropout(dropout)(encoded["pooled_output"]))
    outputs = {
        "tokens": keras.layers.Activation("linear", dtype="float32", name="tokens")(tokens),
        "pairs": keras.layers.Activation("linear", dtype="float32", name="pairs_logits")(pairs),
    }
    model = keras.Model({**inputs, "mask_positions": positions}, outputs)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0),
        loss={name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in outputs},
    )
    return model


def compile_for(topology: str, model: keras.Model, data: tuple) -> dict[str, object]:
    """Compile the step for one TPU chip, with a donated state, as in Keras' trainer."""
    model._symbolic_build(data_batch=data)
    described = topologies.get_topology_desc(topology, "tpu", chips_per_host_bounds=(1, 1, 1))
    place = jax.sharding.SingleDeviceSharding(described.devices[0])
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place), (state, data))
    compiled = jax.jit(model.train_step, donate_argnums=0).lower(*shapes).compile()
    return {"temporaries": compiled.memory_analysis().temp_size_in_bytes, "text": compiled.as_text()}


def main() -> None:
    """Compile the step, then run and time the requested numbers of steps."""
    work = dict(np.load(sys.argv[1]))
    sizes = {name.removeprefix("size_"): int(x) for name, x in work.items() if name.startswith("size_")}
    if work["keeps_memory"]:
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # goes with the allocator settings in the environment
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if work["bfloat16"] else "float32")
    rows, length = work["input_ids"].shape
    model = network(sizes, float(work["dropout"]), length, work["mlm_positions"].shape[1])
    x = {
        "token_ids": work["input_ids"],
        "segment_ids": work["token_type_ids"],
        "padding_mask": (work["sequence_ids"] > 0).astype(np.int32),
        "mask_positions": work["mlm_positions"],
    }
    y = {"tokens": work["mlm_labels"], "pairs": work["pair_labels"][:, 0]}
    weights = {"tokens": work["mlm_weights"], "pairs": np.ones(rows, np.float32)}

    if len(sys.argv) > 2:
        print(json.dumps(compile_for(sys.argv[2], model, (x, y, weights))))
        return

    def run(count: int) -> None:
        for _ in range(count):
            loss = model.train_on_batch(x, y, sample_weight=weights)
        assert np.isfinite(loss).all()

    run(2)
    print(f"keras {keras.__version__}, keras-hub {keras_hub.__version__}, jax {jax.__version__}", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
