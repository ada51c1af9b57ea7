"""Sentences to measure a model on: its held-out text, a file, or built-in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from bertjax.families.registry import get_family
from bertjax.input.layout import BERT, Template
from bertjax.input.randomness import derive_key, permute
from bertjax.input.tfrecords.records import are_records
from bertjax.input.tfrecords.rows import Segments
from bertjax.input.training_data import Sentences, store_fingerprint
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.checkpoint import DIRECTORY, read_metadata
from bertjax.run.run_directory import TrainedModel, open_run_data
from bertjax.storage.lines import read_lines
from bertjax.storage.progress import Progress
from bertjax.text.documents import Document
from bertjax.text.open_store import reopen_store
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

SENTENCES: tuple[str, ...] = tuple(
    line.strip()
    for line in """
    I went to the store.
    At the store, I bought fresh strawberries.
    The strawberries were sweet, and my sister ate most of the strawberries before dinner.
    After dinner she washed the plates, and her brother dried every plate with a towel.
    The bank raised the interest on every loan last spring.
    My mother opened an account at the bank because the bank was close to her office.
    They sat down on the bank of the river and watched the boats.
    The river was high, and the muddy bank was slowly washed away by the water.
    The hotel has stood on the south bank of the river for a century.
    He paid the money into the bank and walked home through the rain.
    The rain fell all night, and by morning the rain had turned to snow.
    Snow covered the roofs, the cars and the empty road.
    The road to the village was closed, so the bus took another road through the hills.
    The doctor asked the patient how long the pain had lasted.
    The patient told the doctor that the pain had begun two weeks ago.
    Two weeks later the doctors found a cure, and the patients went home.
    The museum opened in 1877 with a collection of old paintings.
    Most of the paintings in the museum were given by a single family.
    The family lived in London until the war, and after the war they moved to Paris.
    Paris is the capital of France, and London is the capital of England.
    In the light of the lamp she could read the first page of the letter.
    The letter was short, and she read it twice before she put the letter away.
    His bag was light, but her bag was heavy with books.
    Every book on the shelf had a blue cover, and one of the books was missing.
    The actors play in the old theatre, and the new play begins at eight.
    The children play football in the park behind the school.
    The school is closed in summer, and the teachers go on holiday.
    A teacher explained the problem, and the students solved the problem in a few minutes.
    The king gave the land to his son, and the queen gave her daughter a ring.
    The queen spoke first, and then the king answered her.
    A dog ran after the cat, but the cat was faster than the dog.
    The old cat sleeps near the fire while the dogs run in the garden.
    There were roses in the garden, and a bee flew from rose to rose.
    The train leaves at nine, and the next train leaves an hour later.
    Athletes train for years before they run in a race like this.
    The race was won by a young runner from Kenya who had never run so fast.
    The function returns the sum of the elements of the array.
    If the array is empty, the function returns zero.
    Water boils at one hundred degrees and freezes at zero degrees.
    The kitchen smelled of coffee, so he asked her for a cup of coffee.
    She filled his cup, sat down at the table, and looked out of the window.
    Outside the window a man was painting the table that he had built.
    He took the right road, and turned right again at the bridge.
    She was right about the bridge: it was built by the Romans.
    The Romans built long roads, strong bridges and high walls.
    The wall of the castle was ten metres high, and nobody could climb the wall.
    The spring in the old clock was broken, so the clock had stopped.
    We wait for spring, when the days are long and the birds come back.
    """.strip().splitlines()
)


_SHORTEST, _LONGEST_PAIR = 4, 48  # tokens of a sentence, and of a pair with its special tokens
_CANDIDATES = 20  # per requested pair, because many sentences are too long


# Type checkers do not accept a cached property where `Sentences` has a property.
Text = Sentences | Segments | SplitView


@dataclass(frozen=True)
class SampleText:
    """Sentences in the order of their text, as the model's ids."""

    origin: str  # for messages
    sentences: Text
    tokenizer: Tokenizer
    template: Template = BERT  # of the model's family

    def pairs(self, count: int, longest: int) -> list[TokenRow]:
        """Draw at most `count` short pairs of successive sentences; always the same ones."""
        candidates = self.sentences.num_sentences - 1
        if candidates < 1:
            return []
        numbers = np.arange(min(candidates, count * _CANDIDATES))
        starts = permute(numbers, candidates, derive_key(0, "sentence pairs"))
        offsets = np.asarray(self.sentences.sentence_offsets)
        lengths = np.stack([offsets[starts + 1] - offsets[starts], offsets[starts + 2] - offsets[starts + 1]])
        fits = (lengths >= _SHORTEST).all(axis=0) & (
            lengths.sum(axis=0) + self.template.pair_tokens <= min(longest, _LONGEST_PAIR)
        )
        rows = []
        for start, length in zip(starts[fits][:count], lengths[0][fits], strict=False):
            edges = offsets[start : start + 3]
            ids = self.sentences.tokens(edges[:-1], np.diff(edges))
            rows.append(TokenRow.of(self.tokenizer, np.split(ids, [length]), self.template))
        return rows

    def containing(self, word: np.ndarray, count: int, longest: int, at_once: int = 1 << 14) -> list[TokenRow]:
        """The first `count` short sentences that contain the ids of a word or text."""
        rows: list[TokenRow] = []
        for first in range(0, self.sentences.num_sentences, at_once):
            edges = np.asarray(self.sentences.sentence_offsets[first : first + at_once + 1])
            ids = self.sentences.tokens(edges[:-1], np.diff(edges))
            for number in np.unique(np.searchsorted(edges - edges[0], _find_run(word, ids), side="right") - 1):
                row = TokenRow.of(self.tokenizer, [ids[edges[number] - edges[0] : edges[number + 1] - edges[0]]])
                if len(row) <= longest and len(word_positions(word, row)):
                    rows.append(row)
                if len(rows) == count:
                    return rows
        return rows


def word_positions(word: np.ndarray, row: TokenRow) -> np.ndarray:
    """The positions in a row at which a whole word with these ids begins."""
    starts = _find_run(word, row.ids)
    numbers = row.word_numbers
    begins = numbers[starts] != numbers[starts - 1]
    after = starts + len(word)
    return starts[begins & (numbers[after] != numbers[after - 1])]


def _find_run(word: np.ndarray, ids: np.ndarray) -> np.ndarray:
    if len(ids) < len(word):
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(word))
    return np.flatnonzero((windows == word).all(axis=1))


def sample_text(model: TrainedModel, file: str | None, progress: Progress) -> SampleText:
    """The text of a file if one is named, else the run's held-out text, else built-in sentences.

    Raises ValueError for a file that cannot be read or has no two sentences.
    """
    if file is not None:
        if not Path(file).is_file():
            raise ValueError(f"--text {file}: no such file")
        # A blank line ends a sentence, the end of a line does not.
        lines = groupby(read_lines(file, lambda _: None), lambda line: bool(line.strip()))
        paragraphs = (" ".join(group) for is_text, group in lines if is_text)
        return _from_document(Document("\n".join(paragraphs)), file, model)
    held_out, why_not = _held_out(model, progress)
    if held_out is not None:
        template = get_family(model.config.model.family).template
        return SampleText("the run's held-out text", held_out, model.tokenizer, template)
    built_in = Document("\n".join(SENTENCES), sentence_per_line=True)
    return _from_document(built_in, f"sentences built into bertjax ({why_not})", model)


def _from_document(document: Document, origin: str, model: TrainedModel) -> SampleText:
    sentences = document.sentences()
    ids, lengths = model.tokenizer.encode_running(sentences, document.bare(sentences))
    lengths = lengths[lengths > 0]
    if len(lengths) < 2:
        raise ValueError(f"{origin}: fewer than two sentences; give a file of plain text")
    template = get_family(model.config.model.family).template
    return SampleText(origin, Segments(ids.astype(np.int32), lengths), model.tokenizer, template)


def _held_out(model: TrainedModel, progress: Progress) -> tuple[Text | None, str]:
    """(the run's held-out text, ""), or (None, the reason why it is unavailable); prepares nothing."""
    if not (model.directory / DIRECTORY).is_dir():
        return None, "the model has no text of its own"
    data = model.config.data
    if are_records(data):
        try:
            return open_run_data(model.directory, model.config, progress).held_out_text(), ""
        except (ValueError, OSError) as error:
            return None, f"the run's records: {error}"
    store = reopen_store(data, store_fingerprint(read_metadata(model.directory)["data_fingerprint"]), progress)
    if store is None:
        return None, f"no token store of the run is below {data.root}"
    return store.split("held_out"), ""
