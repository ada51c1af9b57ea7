"""Next sentence prediction (BERT, section 3.1): does B follow A, or is it from another document?"""

from bertjax.input.targets.pair_labels import PairLabels
from bertjax.input.targets.target import Pairing

TARGET = PairLabels(Pairing(random_b=True))
