"""The quickstart's model on real text: held-out figures beside the best values without context.

    python tests/benchmarks/bench_quickstart.py --data DATA --folder DIR [--probed] [OPTION OF pretrain ...]

Trains configs/quickstart.py on DATA's wikipedia_en/ and books_en/ in DIR, after removing an earlier run, and prints
the final held-out figures. Takes some minutes on two cores. --probed also probes attention patterns, the tags of DATA's
pos/, and minimal pairs of subject and verb, and prints the cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from pathlib import Path

from bertjax.__main__ import main as bertjax

NOUNS = ("man", "king", "girl", "friend", "horse", "ship", "house", "river", "tree", "letter")
PLURALS = ("men", "kings", "girls", "friends", "horses", "ships", "houses", "rivers", "trees", "letters")
SINGULAR, PLURAL = ("is", "was", "has", "does"), ("are", "were", "have", "do")


def write_pairs(path: Path) -> Path:
    """Write minimal pairs of subject-verb agreement in BLiMP's layout."""
    pairs = [
        {"sentence_good": f"the {noun} {good} not here .", "sentence_bad": f"the {noun} {bad} not here ."}
        for nouns, right, wrong in ((NOUNS, SINGULAR, PLURAL), (PLURALS, PLURAL, SINGULAR))
        for noun, (good, bad) in itertools.product(nouns, zip(right, wrong, strict=True))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    return path


def main() -> int:
    """Train and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--probed", action="store_true")
    arguments, others = parser.parse_known_args()
    if arguments.probed:
        pairs, tags = write_pairs(arguments.folder / "agreement.jsonl"), arguments.data / "pos/en_pud-ud-test.conllu.xz"
        others += ["--probe.attention", "True", "--probe.tags", str(tags), "--probe.pairs", str(pairs)]
    run = arguments.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    sources = [f"wikiextractor:{arguments.data}/wikipedia_en/*.xz", f"text:{arguments.data}/books_en/*.xz"]
    places = ["--data.root", str(arguments.folder / "data"), "--run-dir", str(run)]
    return bertjax(["pretrain", "quickstart", "--data.sources", *sources, *places, *others])


if __name__ == "__main__":
    sys.exit(main())
