"""Replaced token detection (ELECTRA, section 3.1): which tokens did a generator replace?

Rows are consecutive text in two segments, without labels (google-research/electra, build_pretraining_dataset.py); a
chunk of one sentence gets a random B.
"""

from __future__ import annotations

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.packing import BatchArray
from bertjax.input.randomness import fold_in, hash64
from bertjax.input.targets.mlm import USED, TokenPrediction
from bertjax.input.targets.target import Make, Pairing, Sequences, Target


class ReplacedTokens(Target):
    """Adds weights of the classified tokens (all but padding), and the random bits for the generator's sampling.

    Like masks, the bits depend on the sequence and the position in it. So packing, mesh, accumulation and host count do
    not change the sampled tokens, evaluations repeat them, and resuming needs no stored state.
    """

    pairing = Pairing(random_b=False, has_labels=False)

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        if data.predict != "masked":
            raise ValueError(
                f"data.predict={data.predict!r}: no tokens are masked, so none can be replaced; leave rtd out"
            )
        slots = TokenPrediction().keys(data)[USED].width
        return {
            "rtd_draws": BatchArray("prediction", slots, np.uint32, USED),
            "rtd_weights": BatchArray("token", data.sequence_length, np.float32),
        }

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:

        def make(rows: Sequences) -> dict[str, np.ndarray]:
            draws = hash64(fold_in(rows.keys, "sampled token")[:, None], rows.arrays["mlm_positions"]) >> 32
            return {
                "rtd_draws": np.where(rows.arrays[USED] > 0, draws, 0).astype(np.uint32),
                "rtd_weights": (rows.encoder["sequence_ids"] > 0).astype(np.float32),
            }

        return make


TARGET = ReplacedTokens()
