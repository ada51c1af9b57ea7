"""Sentence order prediction (ALBERT, section 3.1): does B follow A, or are the two swapped?

As in google-research/albert, create_pretraining_data.py, a chunk of one sentence gets a random B, with label 1 too.
"""

from bertjax.input.targets.nsp import PairLabels
from bertjax.input.targets.target import Pairing

TARGET = PairLabels(Pairing(random_b=False, exchanges=True, names=("in order", "out of order")))
