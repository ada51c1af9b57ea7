"""`bertjax attention`, `neighbors` and `checkpoints`: looking inside a trained model."""

from __future__ import annotations

import argparse

import numpy as np

from bertjax.cli.page_path import page_path
from bertjax.convert.sources import open_source
from bertjax.interpret.along_checkpoints import AtStep, along_checkpoints
from bertjax.interpret.attention_page import render_attention
from bertjax.interpret.attention_patterns import PATTERNS, SHOWN_FROM
from bertjax.interpret.attention_view import EXAMPLE, AttentionView, view_attention
from bertjax.interpret.neighbors import Neighbors, find_neighbors
from bertjax.interpret.sample_text import sample_text
from bertjax.storage.files import replace_text
from bertjax.storage.progress import ProgressLine

_NEAREST = 3  # contexts shown for each context


def attention(arguments: argparse.Namespace) -> int:
    """Write a page about what the heads look at, and print which head shows which pattern."""
    page = page_path(arguments.html)
    sentences = _one_or_two(arguments.sentences) if arguments.sentences else EXAMPLE
    if arguments.sample < 2:
        raise ValueError(f"--sample {arguments.sample}: patterns are measured on pairs of sentences; give 2 or more")
    model, _ = open_source(arguments.run)
    sample = sample_text(model, arguments.text, ProgressLine())
    name = arguments.run.rstrip("/")
    view = view_attention(model, name, sentences, sample, arguments.sample, ProgressLine())
    replace_text(page, render_attention(view))
    print(f"measured on {view.pairs:,} pairs of sentences: {view.sample}")
    _print_patterns(view)
    if view.at_cls is not None:
        print(f"{view.at_cls.label} with {view.at_cls.probability:.1%}, the model says")
    for note in view.missing:
        print(note)
    print(f"page: {page}")
    return 0


def neighbors(arguments: argparse.Namespace) -> int:
    """Print what is near a word, in the table of word vectors and in its contexts."""
    if arguments.contexts < 1:
        raise ValueError(f"--contexts {arguments.contexts}: give 1 or more")
    model, _ = open_source(arguments.run)
    sample = sample_text(model, arguments.text, ProgressLine())
    found = find_neighbors(model, arguments.word, sample, layer=arguments.layer, contexts=arguments.contexts)
    pieces = f", the mean of {' '.join(found.pieces)}" if len(found.pieces) > 1 else ""
    print(f"{arguments.word!r}: one vector in the table of words, whatever the context{pieces}; near it are")
    print("    " + "  ".join(f"{near.word} {near.cosine:.2f}" for near in found.table))
    if not found.contexts:
        print(f"no sentence has it in {sample.origin}; name a text that does: --text FILE")
        return 0
    _print_contexts(found, sample.origin)
    return 0


def checkpoints(arguments: argparse.Namespace) -> int:
    """Print what each checkpoint of a run makes of a text."""
    print(" / ".join(arguments.sentences))
    for at in along_checkpoints(arguments.run, _one_or_two(arguments.sentences), arguments.top):
        print(f"step {at.step:>9,}  " + "  |  ".join(_said(at)), flush=True)
    return 0


def _said(at: AtStep) -> list[str]:
    follows = [] if at.follows is None else [f"B follows A {at.follows:6.1%}"]
    return follows + ["  ".join(f"{token} {share:.1%}" for token, share in guesses) for guesses in at.guesses]


def _print_patterns(view: AttentionView) -> None:
    width = max(len(pattern.name) for pattern in PATTERNS)
    found = zip(PATTERNS, view.clearest, view.patterns.shares, view.patterns.strengths, strict=True)
    for number, (pattern, best, shares, strengths) in enumerate(found):
        if best is None:
            said = "not measured"
        elif strengths[best] < SHOWN_FROM:
            said = "no head shows it"
        else:
            said = f"layer {best[0] + 1}, head {best[1] + 1}: {shares[best]:.0%} of the attention"
            said += f" ({view.patterns.chances[number]:.0%} if it were even)"
        print(f"  {pattern.name:{width}}  {said}")


def _print_contexts(found: Neighbors, origin: str) -> None:
    count = len(found.contexts)
    where = f"after layer {found.layer}" if found.layer else "of the embeddings"
    print(f"{count} sentence{'s' * (count > 1)} of {origin}; vectors {where}")
    if count > 1:
        cosines = found.cosines[np.triu_indices(count, 1)]
        print(
            f"cosines between its vectors: {cosines.min():.3f} to {cosines.max():.3f}, mean {cosines.mean():.3f}; "
            "in the table they are one vector, cosine 1.00"
        )
    for number, context in enumerate(found.contexts):
        others = [other for other in np.argsort(-found.cosines[number], kind="stable") if other != number]
        near = "  ".join(f"({other + 1}) {found.cosines[number, other]:.2f}" for other in others[:_NEAREST])
        print(f"({number + 1}) {context.before} [{context.word}] {context.after}".replace("  ", " "))
        if near:
            print(f"    nearest contexts: {near}")
        words = "  ".join(f"{word.word} {word.cosine:.2f} ({(word.context or 0) + 1})" for word in context.words)
        print(f"    nearest words:    {words}")


def _one_or_two(sentences: list[str]) -> tuple[str, ...]:
    if len(sentences) > 2:
        raise ValueError(f"{len(sentences)} sentences: give one, or two; put quotes around each")
    return tuple(sentences)
