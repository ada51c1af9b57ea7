"""Pairs of texts from plain text: the documents of sources, and rules that make pairs of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import Notify
from bertjax.finetune.positives import get_positives
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.registry import find_files, parse_sources, read_documents, require_documents, require_text

MOST_PAIRS = 1_000_000  # which are in memory; SimCSE had as many


def read_pairs(sources: Sequence[str], positives: Sequence[str], notify: Notify) -> list[TextExample]:
    """Make pairs of the documents of sources, such as `text:books/*.txt`, in order.

    Of more than `MOST_PAIRS` so many are drawn, the same every time. Raises ValueError for a source without text, as
    its reader does for damaged files, and if the rules `positives` make fewer than two pairs.
    """
    rules = get_positives(positives)
    parsed = parse_sources(sources)
    require_text(parsed)
    chosen: list[tuple[int, TextExample]] = []
    draw, seen, number = random.Random(0), 0, 0
    for source in parsed:
        counts = ReadCounts()
        for file in find_files(source).files:
            for document in read_documents(file, counts):
                paragraphs = document.text.split("\n")
                number += 1
                for rule in rules:
                    for pair in rule.pairs(paragraphs, number):
                        example = TextExample(f"{file.path}: document {number}", str(seen), pair, None)
                        if len(chosen) < MOST_PAIRS:
                            chosen.append((seen, example))
                        elif (place := draw.randrange(seen + 1)) < MOST_PAIRS:
                            chosen[place] = seen, example
                        seen += 1
        require_documents(source, counts)
        if counts.replaced_characters:
            notify(f"{source}: {counts.replaced_characters:,} characters are not UTF-8; each is read as U+FFFD")
    if seen < 2:
        raise ValueError(
            f"--from-text {' '.join(sources)}: {number:,} documents give {seen} pairs by {', '.join(positives)}; name "
            "more text, or another --positives"
        )
    if seen > MOST_PAIRS:
        notify(f"{seen:,} pairs; {MOST_PAIRS:,} of them are drawn")
    return [example for _, example in sorted(chosen, key=lambda one: one[0])]
