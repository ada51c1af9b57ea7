"""From text to batches: where the text is, its vocabulary, and how rows are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.resume import changes_with_notice, may_change

SHORTEST_ROW = 5  # [CLS] A [SEP] B [SEP]
_SAME_TEXT = "the text is the same by its fingerprint"
_SAME_VOCABULARY = "the vocabulary is the same by its fingerprint"

RowKind = Literal["pairs", "full_sentences", "doc_sentences", "documents"]


@dataclass(frozen=True)
class DataConfig:
    """From text to batches: where the text is, its vocabulary, and how rows are made of it."""

    # Sources of text, each KIND:WHAT with kind text, lines, jsonl, csv, parquet, hf, wikiextractor, wikipedia, docs or
    # tfds; or of finished rows: tfrecord
    sources: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    weights: tuple[float, ...] = ()  # Shares of an epoch's tokens, one for each source; empty: see data.temperature
    temperature: float = 1.0  # Power of a source's tokens that gives its share; 1: every document once an epoch
    encoding: str = changes_with_notice("utf-8", _SAME_TEXT)  # Encoding of the text files, such as cp1252 or shift_jis
    # Globs of files to leave out of the sources, by path or name: '*.log', 'drafts/*'
    exclude: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # Action for files that cannot be read: stop and name all of them, or skip and list them in the store's manifest
    on_error: Literal["stop", "skip"] = changes_with_notice("stop", _SAME_TEXT)
    root: str = may_change("data")  # Folder or URL for vocabularies and token stores
    cache_dir: str = may_change("")  # Local folder for a copy of the store; empty: data/cache if it is remote
    # Vocabulary to use: hf:NAME or hf:DIR, or a tokenizer.json, vocab.txt, spiece.model or vocab.json; empty: that of
    # init_from, or else one that is trained on the sources
    vocab: str = changes_with_notice("", _SAME_VOCABULARY)
    # Kind of vocabulary to train; unigram and bpe are SentencePiece
    tokenizer: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = changes_with_notice("wordpiece", _SAME_VOCABULARY)
    vocab_size: int = 30_522  # Number of entries in the vocabulary that is trained
    vocab_temperature: float = 1.0  # Power of a source's words to which its word counts are scaled
    lowercase: bool = True  # Lower case for all text: an uncased model
    strip_accents: bool = True  # Removal of accents (é becomes e, ü becomes u); False keeps them
    unknown: Literal["words", "characters"] = "words"  # Unit that becomes [UNK] in WordPiece; words is BERT's rule
    # File of words and tokens, with a tab between: a word that would be [UNK] becomes that token (WordPiece only)
    entity_map: str = changes_with_notice("", _SAME_VOCABULARY)
    prefix_space: bool = True  # Space before the first word of a text in byte-level BPE; RoBERTa has it off
    special_tokens: Literal["<s>", "[CLS]"] = "<s>"  # Names of special tokens in byte-level BPE: RoBERTa's or BERT's
    segmenter: Literal["none", "jieba"] = "none"  # Program that finds Chinese words, for whole-word masking
    # Further units that are masked as a whole: spans:FIELD of jsonl and parquet records, or list:FILE
    units: str = changes_with_notice("", "the units are the same by the fingerprint of the store")
    # Share of documents that is kept for evaluation, chosen by a hash of their content; more if that is too little
    held_out: float = 0.01
    # Division of long documents at headings or between paragraphs; auto: only where there are too few documents
    split_documents: Literal["auto", "always", "never"] = "auto"
    workers: int = may_change(0)  # Number of processes that prepare text; 0: one per core
    sequence_length: int = 128  # Length of a row in tokens, special tokens and padding included
    # Kind of rows: sentence pairs; or, without NSP, as many sentences as fit, across documents or not (RoBERTa's
    # names), or whole documents, longer ones in even parts
    rows: RowKind = "pairs"
    packing: Literal["none", "pairs"] = "none"  # Packing of several pairs or texts in a row; none: one in each
    pairs_per_row: int = 8  # Largest number of pairs or texts in a packed row
    max_predictions: int = 20  # Largest number of masked positions in a pair or text; BERT has 20 at length 128
    predict: Literal["masked", "next"] = "masked"  # Tokens to predict: the masked ones, or at every position the next
    mask_probability: float = 0.15  # Share of the tokens that are masked
    keep_share: float = 0.1  # Share of masked positions that keep their token
    random_share: float = 0.1  # Share of masked positions replaced by a random token; the rest become [MASK]
    short_sequence_probability: float = 0.1  # Probability of a row that is made shorter than sequence_length
    # Unit of masking: tokens, words, ngrams, spans; or units, phrases, entities that data.units marks
    masking: str = "tokens"
    ngram_shares: tuple[float, ...] = ()  # Shares of n-grams of 1, 2, ... words (masking ngrams)
    span_p: float = 0.2  # Parameter of the geometric distribution of span lengths in words (masking spans)
    span_max: int = 10  # Longest span in words (masking spans)
    # Rule for the number of masked tokens: round, random_round, ceil_of_text, or each (one draw per token or unit)
    mask_count: str = "round"
    mask_special: bool = False  # Masking of [CLS] and [SEP] too
    mask_power: float = 0.0  # Power p: tokens are drawn in proportion to count**-p; 0: all alike (DistilBERT: 0.7)
    replace_by: str = "token"  # Unit that draws [MASK], a random token or itself: token, or a whole span
    random_ids: str = "vocabulary"  # Source of random tokens: vocabulary, ordinary (none special), corpus (by count)
    # File made by `bertjax similar`: masked words are replaced by similar ones instead of [MASK]
    similar_words: str = changes_with_notice("", "the table is the same by its fingerprint")
    threads: int = may_change(2)  # Number of threads that make batches

    @property
    def is_mixture(self) -> bool:
        """Whether an epoch is anything but every document once."""
        return bool(self.weights) or self.temperature != 1.0

    @property
    def pair_slots(self) -> int:
        """Sentence pairs that a row has room for."""
        return 1 if self.packing == "none" else self.pairs_per_row
