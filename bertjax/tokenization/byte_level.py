"""Byte-level BPE (Radford et al. 2019; RoBERTa): text as bytes, so that no character is unknown.

With `prefix_space` a text begins with a space, so that a word has the same spelling in every position. The published
RoBERTa has it off: the first word of a text has no space before it, but the first word of a later sentence has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import Count, parse_json
from bertjax.tokenization.tokenizer import TextRules, Tokenizer, with_roles

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
# By `TextRules.special_tokens`, in the order of the ids after training
SPECIAL_TOKENS = {
    "<s>": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "[CLS]": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"},
}


def special_ids(ids: Mapping[str, int], rules: TextRules, origin: str, place: str) -> dict[str, int]:
    """Ids of the special tokens by role. Raises ValueError if the vocabulary lacks one.

    In messages, `origin` names the files, and `place` the part that should have the tokens.
    """
    names = SPECIAL_TOKENS[rules.special_tokens]
    missing = [name for name in names.values() if name not in ids]
    if missing:
        others = next(key for key in SPECIAL_TOKENS if key != rules.special_tokens)
        advice = f"; set data.special_tokens={others!r}" if others in ids else "; give a vocabulary that has them"
        raise ValueError(f"{origin}: no {', '.join(missing)} {place}{advice}")
    return {role: ids[name] for role, name in names.items()}


class ByteLevelBPE(Tokenizer):
    """The tokenizer of RoBERTa's `vocab.json` and `merges.txt`."""

    def __init__(self, vocabulary: bytes, merges: bytes, rules: TextRules, origin: str = "byte-level BPE") -> None:
        """Parse the contents of both files; `origin` names them in messages.

        Raises ValueError if a file is invalid, they do not match, or a special token is missing.
        """
        ids = _read_vocabulary(vocabulary, origin)
        pairs = _read_merges(merges, ids, origin)
        special = special_ids(ids, rules, origin, f"in {VOCABULARY_FILE}")
        if rules.unknown != "words":
            raise ValueError(
                f"data.unknown={rules.unknown!r}: {origin} encodes every byte; the option is for WordPiece"
            )
        backend = tokenizers.Tokenizer(models.BPE(ids, pairs))
        if rules.strip_accents or rules.lowercase:
            backend.normalizer = normalizer(rules)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rules.prefix_space)
        backend.decoder = decoders.ByteLevel()
        files = {VOCABULARY_FILE: vocabulary, MERGES_FILE: merges}
        super().__init__(with_roles(backend, special), special, files, rules, origin=origin)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> ByteLevelBPE:
        """Read `vocab.json` and the `merges.txt` next to it. Raises ValueError like the constructor."""
        merges = path.with_name(MERGES_FILE)
        if not merges.is_file():
            raise ValueError(f"byte-level BPE {path}: no {MERGES_FILE} next to it; both are needed")
        return cls(read_whole(path), read_whole(merges), rules, origin=f"byte-level BPE {path}")


def normalizer(rules: TextRules) -> normalizers.Normalizer:
    """Make the normaliser of accents and case; RoBERTa changes neither."""
    steps: list[normalizers.Normalizer] = []
    if rules.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    if rules.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _read_vocabulary(content: bytes, origin: str) -> dict[str, int]:
    """Map tokens to ids, in order of the ids. Raises ValueError unless the ids count from 0 without gaps."""
    reason = "it does not number its tokens from 0 without gaps"
    ids: dict[str, int] = parse_json(content, f"{origin}: {VOCABULARY_FILE}", dict[str, Count], remedy=reason)
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"{origin}: {VOCABULARY_FILE}: {reason}")
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def _read_merges(content: bytes, ids: dict[str, int], origin: str) -> list[tuple[str, str]]:
    """The merged pairs in order. Raises ValueError for a pair outside the vocabulary."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{origin}: {MERGES_FILE} is not UTF-8 at byte {error.start}") from None
    merges = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#version") or not line.strip():
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {pair[0], pair[1], "".join(pair)} <= ids.keys():
            raise ValueError(f"{origin}: line {number} of {MERGES_FILE} is {line!r}, not a pair of {VOCABULARY_FILE}")
        merges.append((pair[0], pair[1]))
    return merges
