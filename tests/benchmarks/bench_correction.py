"""How many wrong words `bertjax fill-mask --correct` detects and corrects in sentences with one replaced word.

    python tests/benchmarks/bench_correction.py --model RUN --text FILE.txt.xz --folder DIR [--sentences 1000]

FILE is output of WikiExtractor that RUN was not trained on. In each sentence of 8 to 30 words, one alphabetic word is
replaced by another of the file's 500 most common words, drawn by frequency. The pairs are written to DIR/errors.tsv in
SIGHAN's layout (id, source, target), which `bertjax fill-mask --correct --evaluate` reads. The threshold is tuned on
every other pair, and the figures are for the rest: in one pass, and with each word masked in turn.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.__main__ import main as bertjax

_WORDS = range(8, 31)
_COMMONEST = 500
_SENTENCE = re.compile(r"[A-Z][^.!?()\[\]<>]*[a-z]\.(?=\s|$)")


def read_sentences(path: Path) -> Iterator[str]:
    """Yield the distinct sentences of 8 to 30 words."""
    seen: set[str] = set()
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            for sentence in () if line.startswith("<") else _SENTENCE.findall(line):
                if len(sentence.split()) in _WORDS and sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def with_errors(sentences: list[str], counts: Counter[str], count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs (sentence with one replaced word, original sentence)."""
    draw = np.random.default_rng(seed)
    common = [word for word, _ in counts.most_common(_COMMONEST)]
    shares = np.array([counts[word] for word in common], float)
    pairs: list[tuple[str, str]] = []
    for number in draw.permutation(len(sentences)):
        if len(pairs) == count:
            break
        words = sentences[number].split(" ")
        places = [place for place, word in enumerate(words) if word.isalpha() and word.islower()]
        if not places:
            continue
        place = int(draw.choice(places))
        others = [word for word in common if word != words[place]]
        weights = shares[[word != words[place] for word in common]]
        words[place] = str(draw.choice(others, p=weights / weights.sum()))
        pairs.append((" ".join(words), sentences[number]))
    return pairs


def main() -> None:
    """Print the figures of both methods."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a run, hf:DIR or tf1:DIR with an MLM head")
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="held-out output of WikiExtractor, .xz"
    )
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="where errors.tsv is written")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N", help="number of pairs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the errors (%(default)s)")
    arguments = parser.parse_args()
    sentences = list(read_sentences(arguments.text))
    counts = Counter(
        word for sentence in sentences for word in sentence.split(" ") if word.isalpha() and word.islower()
    )
    pairs = with_errors(sentences, counts, arguments.sentences, arguments.seed)
    path = arguments.folder / "errors.tsv"
    lines = [f"{number}\t{source}\t{target}\n" for number, (source, target) in enumerate(pairs, 1)]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{len(pairs):,} of {len(sentences):,} sentences, each with one error: {path}")
    for name, more in (("one pass", []), ("each word masked", ["--masked"])):
        print(f"\n{name}", flush=True)
        if bertjax(["fill-mask", arguments.model, "--correct", "--evaluate", str(path), *more]):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
