"""Lengths of padded rows."""

import pytest

from bertjax.input.lengths import row_length

UP_TO_512 = {16, 32, 64, 128, 192, 256, 384, 512}


@pytest.mark.parametrize(
    ("steps", "fine", "lengths"),
    [
        (2, False, UP_TO_512 | {768, 1024, 1536, 2048, 3072, 4096, 6144, 8192}),
        (4, False, UP_TO_512 | {640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120}),
        (4, True, UP_TO_512 | {48, 96, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120}),
    ],
)
def test_row_length_is_the_smallest_that_suffices(steps, fine, lengths):
    for needed in range(1, max(lengths) + 1):
        assert row_length(needed, steps, fine) == min(length for length in lengths if length >= needed)
