"""An independent version of google-research/bert's create_pretraining_data.py, which writes pretraining records.

The rules for pairs are simplified (every chunk has the maximum length); masking, padding and format are those of the
script.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from bertjax.storage.lean_import import import_tensorflow

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class Instance(NamedTuple):
    """A row before padding."""

    tokens: list[str]
    segment_ids: list[int]
    positions: list[int]
    labels: list[str]
    is_random_next: bool


def write_vocabulary(path: Path, documents: list[list[list[str]]], filler: int = 0) -> list[str]:
    """Write and return a vocabulary of the documents' words, with `filler` unused entries after the first token."""
    words = sorted({word for document in documents for sentence in document for word in sentence})
    unused = [f"[unused{n}]" for n in range(filler)]
    vocabulary = [SPECIAL[0], *unused, *SPECIAL[1:], *words]
    path.write_text("".join(f"{token}\n" for token in vocabulary))
    return vocabulary


def make_instances(
    documents: list[list[list[str]]], vocabulary: list[str], length: int, most: int, seed: int
) -> list[Instance]:
    """Shuffled pairs of segments, with masked tokens."""
    rng = random.Random(seed)
    instances = []
    for number, document in enumerate(documents):
        at = 0
        while at < len(document):
            chunk, size = [], 0
            while at < len(document) and size < length - 3:
                chunk.append(document[at])
                size += len(document[at])
                at += 1
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [word for sentence in chunk[:a_end] for word in sentence]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                other = documents[(number + rng.randint(1, len(documents) - 1)) % len(documents)]
                b = [word for sentence in other[rng.randrange(len(other)) :] for word in sentence][: length - 3]
                at -= len(chunk) - a_end
            else:
                b = [word for sentence in chunk[a_end:] for word in sentence]
            while len(a) + len(b) > length - 3:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if rng.random() < 0.5 else -1)
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            instances.append(Instance(*hide(tokens, segments, vocabulary, most, rng), is_random))
    rng.shuffle(instances)
    return instances


def hide(
    tokens: list[str], segments: list[int], vocabulary: list[str], most: int, rng: random.Random
) -> tuple[list[str], list[int], list[int], list[str]]:
    """Like create_masked_lm_predictions, return the masked tokens, segments, and masked positions with their labels."""
    candidates = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    positions = sorted(candidates[: min(most, max(1, round(len(tokens) * 0.15)))])
    shown = list(tokens)
    for place in positions:
        if rng.random() < 0.8:
            shown[place] = "[MASK]"
        elif rng.random() >= 0.5:
            shown[place] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
    return shown, segments, positions, [tokens[place] for place in positions]


def features(instance: Instance, vocabulary: list[str], length: int, most: int) -> OrderedDict[str, list]:
    """The features of a record, as in write_instance_to_example_files."""
    ids = {token: place for place, token in enumerate(vocabulary)}

    def padded(values: list, size: int) -> list:
        return values + [0] * (size - len(values))

    made = OrderedDict()
    made["input_ids"] = padded([ids[token] for token in instance.tokens], length)
    made["input_mask"] = padded([1] * len(instance.tokens), length)
    made["segment_ids"] = padded(list(instance.segment_ids), length)
    made["masked_lm_positions"] = padded(list(instance.positions), most)
    made["masked_lm_ids"] = padded([ids[token] for token in instance.labels], most)
    made["masked_lm_weights"] = [1.0] * len(instance.labels) + [0.0] * (most - len(instance.labels))
    made["next_sentence_labels"] = [int(instance.is_random_next)]
    return made


def serialized(made: dict[str, list]) -> bytes:
    """Serialize a record as a tf.train.Example."""
    tf = import_tensorflow(required=True)

    def feature(values: list) -> tf.train.Feature:
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    converted = OrderedDict((key, feature(values)) for key, values in made.items())
    # Otherwise the order of the features differs between processes.
    return tf.train.Example(features=tf.train.Features(feature=converted)).SerializeToString(deterministic=True)


def write_records(paths: list[Path], records: list[bytes]) -> None:
    """Distribute records among the files, in turn; files that end in .gz are compressed."""
    tf = import_tensorflow(required=True)

    writers = [tf.io.TFRecordWriter(str(path), "GZIP" if path.suffix == ".gz" else "") for path in paths]
    for number, record in enumerate(records):
        writers[number % len(writers)].write(record)
    for writer in writers:
        writer.close()
