"""The config of the data: the text, its vocabulary, and how rows are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.bounds import (
    COUNT,
    NOT_NEGATIVE,
    PROPER_SHARE,
    SHARE,
    Bounds,
    check_bounds,
)
from bertjax.config.resume import changes_with_notice, may_change

LARGEST_VOCABULARY = 1 << 22  # entries; the largest published vocabulary of an encoder has 501,153
ROWS_OF_RECORDS = ("crops", "pieces")  # kinds of rows that are ranges of tokens of one record
SHORTEST_ROW = 5  # [CLS] A [SEP] B [SEP]
SHORTEST_TEXT = 3  # [CLS] text [SEP]
_SAME_TEXT = "the text is the same by its fingerprint"
_SAME_VOCABULARY = "the vocabulary is the same by its fingerprint"

RowKind = Literal["pairs", "full_sentences", "doc_sentences", "documents", "crops", "pieces"]


@dataclass(frozen=True)
class DataConfig:
    """The text, its vocabulary, and how rows are made of it."""

    # Sources of text: a folder, or KIND:WHAT with kind text, lines, jsonl, csv, parquet, hf, html, pdf, docx,
    # fasta, smiles, ids, wikiextractor, wikipedia, novels, docs or tfds; or of finished rows: tfrecord
    sources: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # Token store to read instead of sources: a folder or URL that `bertjax prepare` made; its vocabulary is used.
    # Several stores of one vocabulary are mixed like sources
    store: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # Shares of an epoch's tokens, one for each source, or for each of several stores; empty: see data.temperature
    weights: tuple[float, ...] = ()
    temperature: float = 1.0  # Power of a source's tokens that gives its share; 1: every document once an epoch
    # Sources to read, from data.sources or several stores; empty: all; stages may read others. With one store,
    # data.sources lists the sources of the store in their order
    active_sources: tuple[str, ...] = ()
    encoding: str = changes_with_notice("utf-8", _SAME_TEXT)  # Encoding of the text files, such as cp1252 or shift_jis
    # Globs of files to leave out of the sources, by path or name: '*.log', 'drafts/*'
    exclude: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # Largest share of records (lines of jsonl, rows of csv and parquet) that may be unreadable and are left out; with
    # 0, one unreadable record makes its file unreadable (data.on_error)
    bad_records: float = may_change(0.0)
    # Action for files that cannot be read: stop and name all of them, or skip and list them in the store's manifest
    on_error: Literal["stop", "skip"] = changes_with_notice("stop", _SAME_TEXT)
    # Filters of documents, in their order: gopher_quality, gopher_repetition, exact_duplicates, near_duplicates
    filters: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # Action for letters that the vocabulary of a symbol tokenizer (data.tokenizer) lacks: stop and name them with
    # their records, or replace them by [UNK]
    unknown_letters: Literal["stop", "replace"] = may_change("stop")
    root: str = may_change("data")  # Folder or URL for vocabularies and token stores
    cache_dir: str = may_change("")  # Local folder for a copy of the store; empty: data/cache if it is remote
    cache_gb: float = may_change(0.0)  # Size limit of that copy in GB, least recently read parts go first; 0: no limit
    # Vocabulary to use: hf:NAME or hf:DIR, or a tokenizer.json, vocab.txt, spiece.model or vocab.json; empty: that of
    # init_from, or else a new one that is trained on the sources
    vocab: str = changes_with_notice("", _SAME_VOCABULARY)
    # Kind of vocabulary to make: wordpiece, unigram, bpe (both SentencePiece) or byte_bpe; for sequences other than
    # prose: characters, or characters:ALPHABET with its letters or a name (esm2, dna, rna), kmers:K, regex:PATTERN or
    # regex:smiles, sequence_bpe, integers:SIZE
    tokenizer: str = changes_with_notice("wordpiece", _SAME_VOCABULARY)
    vocab_size: int = 30_522  # Number of entries in the vocabulary that is trained
    vocab_temperature: float = 1.0  # Exponent on a source's number of words, which scales its counts; 1: as counted
    lowercase: bool = True  # Lower case for all text: an uncased model
    strip_accents: bool = True  # Removal of accents (é becomes e, ü becomes u); False keeps them
    unknown: Literal["words", "characters"] = "words"  # Unit that becomes [UNK] in WordPiece; words is BERT's rule
    # File of words and tokens, with a tab between: a word that would be [UNK] becomes that token (WordPiece only)
    entity_map: str = changes_with_notice("", _SAME_VOCABULARY)
    prefix_space: bool = True  # Space before the first word of a text in byte-level BPE; RoBERTa has it off
    special_tokens: Literal["<s>", "[CLS]"] = "<s>"  # Names of special tokens in byte-level BPE: RoBERTa's or BERT's
    segmenter: Literal["none", "jieba"] = "none"  # Program that finds Chinese words, for whole-word masking
    # Further units to mask as a whole: spans:FIELD of jsonl and parquet records, or list:FILE
    units: str = changes_with_notice("", "the units are the same by the fingerprint of the store")
    # Groups of related records, held out together: file:PATH (a record and its group on each line), mmseqs:PATH (the
    # group first), or column:FIELD of csv, jsonl and parquet records
    groups: str = changes_with_notice("", "the groups are the same by the fingerprint of the store")
    sampling: Literal["records", "groups"] = "records"  # Content of an epoch: every record, or one of each group
    # Share of documents held out for evaluation, chosen by a hash of their content; more if that is too little
    held_out: float = 0.01
    # Division of long documents at headings or between paragraphs; auto: only where there are too few documents
    split_documents: Literal["auto", "always", "never"] = "auto"
    workers: int = may_change(0)  # Number of processes that prepare text; 0: one per core
    sequence_length: int = 128  # Length of a row in tokens, special tokens and padding included
    # Kind of rows; all but pairs exclude NSP. pairs: sentence pairs. full_sentences, doc_sentences: as many sentences
    # as fit, across documents or within one (RoBERTa). documents: whole documents, longer ones in even parts. crops,
    # pieces: records that are not prose, longer ones cropped at a new random offset in every epoch, or in even pieces.
    rows: RowKind = "pairs"
    # Equivalent spellings of a record, drawn in every epoch (rows crops and pieces): reverse_complement,
    # randomised_smiles
    augment: tuple[str, ...] = ()
    packing: Literal["none", "pairs"] = "none"  # Packing of several pairs or texts in a row; none: one in each
    pairs_per_row: int = 8  # Largest number of pairs or texts in a packed row
    max_predictions: int = 20  # Largest number of masked positions in a pair or text; BERT has 20 at length 128
    predict: Literal["masked", "next"] = "masked"  # Tokens to predict: masked ones, or the next one at every position
    mask_probability: float = 0.15  # Share of the tokens that are masked
    keep_share: float = 0.1  # Share of masked positions that keep their token
    random_share: float = 0.1  # Share of masked positions replaced by a random token; the rest become [MASK]
    short_sequence_probability: float = 0.1  # Probability of a row that is made shorter than sequence_length
    # Unit of masking: tokens, words, ngrams, spans; or units, phrases, entities marked by data.units
    masking: str = "tokens"
    ngram_shares: tuple[float, ...] = ()  # Shares of n-grams of 1, 2, ... words (masking ngrams)
    span_p: float = 0.2  # Parameter of the geometric distribution of span lengths in words (masking spans)
    span_max: int = 10  # Longest span in words (masking spans)
    # Rule for the number of masked tokens: round, random_round, ceil_of_text, or each (one draw per token or unit)
    mask_count: str = "round"
    mask_special: bool = False  # Masking of [CLS] and [SEP] too
    mask_power: float = 0.0  # Power p: tokens are drawn in proportion to count**-p; 0: uniformly (DistilBERT: 0.7)
    replace_by: str = "token"  # Unit that draws [MASK], a random token or itself: token, or a whole span
    random_ids: str = "vocabulary"  # Source of random tokens: vocabulary, ordinary (none special), corpus (by count)
    # File made by `bertjax neighbors --output`: masked words are replaced by similar ones instead of [MASK]
    similar_words: str = changes_with_notice("", "the table is the same by its fingerprint")
    threads: int = may_change(2)  # Number of threads that make batches
    # Number of equal parts of a batch, each with its own parts of a large text, so that a host reads only the text of
    # its rows; best a multiple of the number of hosts
    lanes: int = 1

    @property
    def is_mixture(self) -> bool:
        """Whether sources are mixed, so that an epoch does not read every document once."""
        return bool(self.weights) or self.temperature != 1.0 or bool(self.active_sources)

    @property
    def mixed(self) -> tuple[str, ...]:
        """The sources that have shares of an epoch: several stores, or `sources`."""
        return self.store if len(self.store) > 1 else self.sources

    @property
    def is_active(self) -> tuple[bool, ...]:
        """Whether each of the mixed sources is read."""
        return tuple(not self.active_sources or source in self.active_sources for source in self.mixed)

    @property
    def pair_slots(self) -> int:
        """The number of sentence pairs that a row has room for."""
        return 1 if self.packing == "none" else self.pairs_per_row


DATA_BOUNDS = {
    "vocab_size": Bounds(1, LARGEST_VOCABULARY),
    "vocab_temperature": SHARE,
    "temperature": SHARE,
    "held_out": PROPER_SHARE,
    "bad_records": PROPER_SHARE,
    "workers": NOT_NEGATIVE,
    "cache_gb": NOT_NEGATIVE,
    "pairs_per_row": COUNT,
    "max_predictions": COUNT,
    "mask_probability": PROPER_SHARE,
    "span_p": Bounds(0, 1, above=True, below=True),
    "span_max": COUNT,
    "keep_share": SHARE,
    "random_share": SHARE,
    "mask_power": SHARE,
    "short_sequence_probability": PROPER_SHARE,
    "threads": COUNT,
    "lanes": COUNT,
}


def check_data(data: DataConfig) -> None:
    """Raise ValueError for a value outside its bounds, or for options that exclude each other."""
    check_bounds(data, "data", DATA_BOUNDS)
    _check_text(data)
    _check_vocabulary(data)
    if data.sequence_length < 8:
        raise ValueError(f"data.sequence_length={data.sequence_length} is too short for two segments; use 8 or more")
    if data.keep_share + data.random_share > 1 + 1e-9:
        raise ValueError(
            f"data.keep_share={data.keep_share} and data.random_share={data.random_share} are shares of the masked "
            "positions and sum to more than 1; lower one of them"
        )
    if data.sampling == "groups" and not data.groups:
        raise ValueError("data.sampling='groups' requires data.groups; give a file or a column of groups")
    if data.sampling == "groups" and (data.is_mixture or data.rows == "full_sentences"):
        raise ValueError(
            f"data.sampling='groups' excludes data.weights={data.weights}, data.temperature={data.temperature} and "
            f"data.rows='full_sentences' (here {data.rows!r}), which choose the documents of an epoch; leave them out"
        )
    if data.augment and data.rows not in ROWS_OF_RECORDS:
        raise ValueError(
            f"data.augment={data.augment} requires rows of records; set data.rows to crops or pieces, not {data.rows!r}"
        )
    if data.augment and (data.units or data.segmenter != "none"):
        raise ValueError(
            f"data.augment={data.augment} excludes data.units={data.units!r} and data.segmenter={data.segmenter!r}, "
            "which mark tokens of the text as it was written; leave one of them out"
        )
    if data.mask_power and data.mask_special:
        raise ValueError(
            f"data.mask_power={data.mask_power} excludes data.mask_special=True, because special tokens have no count "
            "in the text; set one of them to its default"
        )


def _check_text(data: DataConfig) -> None:
    """Check the encoding of text files, and the shares of several sources."""
    try:
        "".encode(data.encoding)
    except (LookupError, ValueError) as error:  # unknown, or a codec that does not encode text
        raise ValueError(
            f"data.encoding={data.encoding!r} is unknown; give a Python encoding, such as utf-8, cp1252 or shift_jis"
        ) from error
    if data.weights and (min(data.weights) < 0 or not sum(data.weights)):
        raise ValueError(f"data.weights={data.weights}: none may be below 0, and not all of them 0")
    key = "data.store" if len(data.store) > 1 else "data.sources"
    if data.weights and len(data.store) != 1 and len(data.weights) != len(data.mixed):
        raise ValueError(f"data.weights={data.weights}: give one for each of the {len(data.mixed)} {key}")
    if unknown := sorted({*data.active_sources} - {*data.mixed}):
        raise ValueError(f"data.active_sources: {unknown[0]!r} is not one of {key}={data.mixed}")
    if data.active_sources and data.weights:
        raise ValueError(
            f"data.active_sources={data.active_sources} excludes data.weights={data.weights}; to leave a source out, "
            "set its weight to 0"
        )
    if data.weights and data.temperature != 1:
        raise ValueError(f"data.temperature={data.temperature} excludes data.weights={data.weights}; give one of them")
    if data.rows == "full_sentences" and data.is_mixture:
        raise ValueError(
            f"data.rows='full_sentences' excludes data.weights={data.weights}, data.temperature={data.temperature} and "
            f"data.active_sources={data.active_sources}: such a row continues with the next document in the store, "
            "which a mixture may leave out; use data.rows='doc_sentences'"
        )


def _check_vocabulary(data: DataConfig) -> None:
    """Check options that require one kind of tokenizer. An imported vocabulary (`data.vocab`) may be of any kind."""
    options: dict[str, tuple[object, str]] = {
        "unknown": ("words", "wordpiece"),
        "entity_map": ("", "wordpiece"),
        "segmenter": ("none", "wordpiece"),
        "special_tokens": ("<s>", "byte_bpe"),
    }
    if data.sources:  # without sources the vocabulary is that of an imported model
        options["prefix_space"] = (True, "byte_bpe")
    for name, (default, tokenizer) in options.items():
        value = getattr(data, name)
        if value != default and not (data.vocab or data.store) and data.tokenizer != tokenizer:
            raise ValueError(
                f"data.{name}={value!r} requires data.tokenizer={tokenizer!r}, not {data.tokenizer!r}; leave it at "
                f"{default!r}"
            )
