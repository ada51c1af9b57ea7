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

    # Each `kind:what`: text, lines, jsonl, csv, parquet, wikiextractor, wikipedia, docs, tfds, hf; or rows: tfrecord.
    sources: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    weights: tuple[float, ...] = ()  # of the tokens of an epoch, one for each source; empty: see temperature
    temperature: float = 1.0  # shares go by a source's tokens to this power; 1: every document once an epoch
    encoding: str = changes_with_notice("utf-8", _SAME_TEXT)  # of the text files of the sources: cp1252, shift_jis ...
    # Globs of files of the sources to leave out, by path or name: '*.log', 'drafts/*'.
    exclude: tuple[str, ...] = changes_with_notice((), _SAME_TEXT)
    # A file that cannot be read: stop and name all such files, or skip them and list them in the store's manifest.
    on_error: Literal["stop", "skip"] = changes_with_notice("stop", _SAME_TEXT)
    root: str = may_change("data")  # vocabularies and token stores are kept below it, each under its fingerprint
    cache_dir: str = may_change("")  # a local folder that the store is copied to and read from; remote: data/cache
    # A vocab.txt, spiece.model, vocab.json or tokenizer.json to use; empty trains one on the sources.
    vocab: str = changes_with_notice("", _SAME_VOCABULARY)
    # The kind of vocabulary to train; unigram and bpe are SentencePiece.
    tokenizer: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = changes_with_notice("wordpiece", _SAME_VOCABULARY)
    vocab_size: int = 30_522
    vocab_temperature: float = 1.0  # each source's word counts are scaled to its words to this power
    lowercase: bool = True
    strip_accents: bool = True
    unknown: Literal["words", "characters"] = "words"  # what WordPiece makes [UNK]; "words" is the reference's rule
    # A file of surface forms and tokens: words that would be [UNK] become these tokens of the vocabulary. WordPiece's.
    entity_map: str = changes_with_notice("", _SAME_VOCABULARY)
    prefix_space: bool = True  # byte-level BPE: a text begins with a space, as every word does; RoBERTa's has it off
    special_tokens: Literal["<s>", "[CLS]"] = "<s>"  # byte-level BPE: RoBERTa's names, or BERT's (ModernBERT)
    segmenter: Literal["none", "jieba"] = "none"  # finds words of Chinese, for whole-word masking
    # Units that are hidden as a whole, in addition to words: spans:FIELD of jsonl and parquet records, or list:FILE.
    units: str = changes_with_notice("", "the units are the same by the fingerprint of the store")
    # Share of documents, chosen by a hash of their content, kept for evaluation; more where that is too few to measure.
    held_out: float = 0.01
    # Several documents of each long one, at headings or between paragraphs; auto: where there are too few otherwise.
    split_documents: Literal["auto", "always", "never"] = "auto"
    workers: int = may_change(0)  # processes that prepare text; 0 = one per core
    sequence_length: int = 128
    # Sentence pairs; or without NSP as many sentences as fit, over the ends of documents or not (RoBERTa's names), or
    # whole documents, longer ones in even parts.
    rows: RowKind = "pairs"
    packing: Literal["none", "pairs"] = "none"  # a sentence pair, or text, to a row, or as many as fit
    pairs_per_row: int = 8  # at most, when packed
    max_predictions: int = 20  # masked positions per sentence pair at most; the paper's 20 at length 128
    predict: Literal["masked", "next"] = "masked"  # hidden tokens, or at every position the token that follows
    mask_probability: float = 0.15
    keep_share: float = 0.1  # of the masked positions: the token stays as it is
    random_share: float = 0.1  # of the masked positions: a random token; the rest become [MASK]
    short_sequence_probability: float = 0.1
    # Hidden together: tokens, words, ngrams, spans; of the token store units, phrases or entities.
    masking: str = "tokens"
    ngram_shares: tuple[float, ...] = ()  # of n-grams: the shares of 1, 2, ... words
    span_p: float = 0.2  # of spans: lengths in words are geometric with this parameter
    span_max: int = 10  # of spans: the longest, in words
    # Hidden tokens of a sequence: round, random_round, each (one draw per token or unit), ceil_of_text.
    mask_count: str = "round"
    mask_special: bool = False  # also [CLS] and [SEP] may be hidden
    mask_power: float = 0.0  # tokens are drawn in proportion to their count in the split to this power, negated
    replace_by: str = "token"  # [MASK], random or the same is drawn for each token, or once for a whole span
    random_ids: str = "vocabulary"  # random tokens: of the vocabulary, its ordinary ones, or as frequent as in corpus
    # A table of `bertjax similar`: hidden words are shown as similar ones, where there are any, and never as [MASK].
    similar_words: str = changes_with_notice("", "the table is the same by its fingerprint")
    threads: int = may_change(2)  # threads that make batches

    @property
    def is_mixture(self) -> bool:
        """Whether an epoch is anything but every document once."""
        return bool(self.weights) or self.temperature != 1.0

    @property
    def pair_slots(self) -> int:
        """Sentence pairs that a row has room for."""
        return 1 if self.packing == "none" else self.pairs_per_row
