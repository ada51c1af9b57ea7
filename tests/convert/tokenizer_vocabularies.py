"""Small vocabularies of every kind that published encoders have, trained on a few sentences in many scripts.

Each is trained once per process. They do not use the package, so that the package can be compared with them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The museum opened in 1877 and shows 3,000 drawings; entry is 12,50 euros (free on Sundays).",
    "It don't matter whether they're early: we've 2012, 1999 and 10,000 reasons, isn't it?",
    "A naïve café owner in Zürich sold crème brûlée to señor Núñez, 50% off!",
    "że wysoką izbę — proszę państwa, to jest bardzo ważne pytanie.",
    "Die größte Übung ist die Prüfung; Straße, Fuß und Öl.",
    "La forêt où l'été s'achève, déjà vu, ça va, cœur, œuvre.",
    "İstanbul'da ışık çok güzel; Iğdır ve Şanlıurfa uzak.",
    "Москва — столица России. Ёлка, подъезд, йод, чай.",
    "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας. Ός σοφός, ἄνθρωπος.",
    "القاهرة عاصمة مصر، وَهِيَ مَدِينَةٌ كَبِيرَةٌ جِدًّا.",
    "ירושלים היא עיר גדולה. שָׁלוֹם עוֹלָם!",
    "नई दिल्ली भारत की राजधानी है। सत्य और प्रेम, हिन्दी क्षत्रिय।",
    "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย น้ำใจ",
    "東京は日本の首都である。がぎぐげご パピプペポ、データを読む。",
    "서울은 대한민국의 수도이다. 한국어를 배우고 있습니다.",
    "北京是中国的首都。我们喜欢读书,也喜欢音乐。",
    "Thành phố Hồ Chí Minh là thành phố lớn nhất Việt Nam.",
    "ＡＢＣ　ｄｅｆ １２３ ﬁne ① ｶﾞｷﾞ ㍿ ½ x² ™ Å Ω",
    "smile 😀 family 👨‍👩‍👧 flag 🇫🇷 skin 👍🏽 heart ❤️ keycap 1️⃣",
    "``quoted'' text, \"double\" and 'single', (round) [square] {curly} <angle> a_b x-y e.g. i.e. @user #tag $5 £6 €7",
    'def f(x):\n    return x + 1  # a comment\n\n\tif a <= b and c != d: print("ok")',
    "covid and BRCA1 are words that the vocabulary of its time did not have; zzyzx",
)
# Texts without control characters and line ends, for trainers that read lines.
LINES = tuple(line for text in CORPUS for line in text.splitlines() if line.strip())
_COPIES = 4

BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_ROLES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
MPNET_ROLES = ROBERTA_ROLES | {"unk": "[UNK]"}
ALBERT_ROLES = BERT_ROLES | {"pad": "<pad>", "unk": "<unk>"}
GEMMA_ROLES = {"pad": "<pad>", "unk": "<unk>", "bos": "<bos>", "eos": "<eos>", "mask": "<mask>"}
LLAMA_ROLES = {"pad": "<|pad|>", "bos": "<|begin_of_text|>", "eos": "<|end_of_text|>", "mask": "<|mask|>"}
JAPANESE_ROLES = {
    "pad": "<PAD|LLM-jp>", "unk": "<unk>", "cls": "<CLS|LLM-jp>", "sep": "<SEP|LLM-jp>", "mask": "<MASK|LLM-jp>",
}  # fmt: skip
UNUSED = ("[unused0]", "[unused1]")
_LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def wordpiece_vocabulary(kind: str = "bert") -> tuple[str, ...]:
    """Cased and lower-cased pieces, with and without accents, so that every rule gives different ids."""
    trained = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [*(MPNET_ROLES if kind == "mpnet" else BERT_ROLES).values()]
    if kind == "mpnet":
        special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    trainer = trainers.WordPieceTrainer(vocab_size=1500, min_frequency=1, special_tokens=special, show_progress=False)
    stripped = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    lowered = normalizers.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False)
    texts = [*CORPUS, *map(stripped.normalize_str, CORPUS), *map(lowered.normalize_str, CORPUS)] * _COPIES
    trained.train_from_iterator(texts, trainer)
    tokens = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    return (*special, *UNUSED, *(token for token in tokens if token not in special))


def bert_tokenizer_json(kind: str = "bert", **normalizer: Any) -> dict[str, Any]:
    """`tokenizer.json` of a WordPiece as BertTokenizerFast wrote it, with options of its BertNormalizer."""
    tokens = wordpiece_vocabulary(kind)
    roles = MPNET_ROLES if kind == "mpnet" else BERT_ROLES
    tokenizer = tokenizers.Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**({"lowercase": True} | normalizer))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return _finished(tokenizer, roles)


@cache
def byte_bpe_files(kind: str) -> tuple[str, str]:
    """(`vocab.json`, `merges.txt`) of a byte-level BPE; `kind` is roberta or deberta, by the special tokens."""
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "roberta" else ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    last = ["<mask>"] if kind == "roberta" else ["[MASK]"]
    trained.train_from_iterator(
        [*CORPUS] * _COPIES, vocab_size=620, min_frequency=2, special_tokens=[*special, *UNUSED], show_progress=False
    )
    whole = json.loads(trained.to_str())
    vocabulary = whole["model"]["vocab"]
    vocabulary |= {token: len(vocabulary) + n for n, token in enumerate(last)}
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in whole["model"]["merges"]]
    return json.dumps(vocabulary, ensure_ascii=False), "\n".join(["#version: 0.2", *merges]) + "\n"


def byte_bpe_tokenizer_json(kind: str, prefix_space: bool = False) -> dict[str, Any]:
    """`tokenizer.json` as RobertaTokenizerFast or DebertaTokenizerFast wrote it."""
    vocabulary, merges = byte_bpe_files(kind)
    pairs = [tuple(line.split(" ")) for line in merges.splitlines()[1:]]
    tokenizer = tokenizers.Tokenizer(models.BPE(json.loads(vocabulary), pairs, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, ROBERTA_ROLES if kind == "roberta" else BERT_ROLES)


@cache
def _modernbert() -> str:
    """GPT-NeoX's kind as in ModernBERT: NFC, runs of spaces as tokens, special tokens after the pieces."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=620, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([*CORPUS] * _COPIES, trainer)
    tokenizer.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True)])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    return json.dumps(_finished(tokenizer, BERT_ROLES, more=UNUSED), ensure_ascii=False)


@cache
def _llama() -> str:
    """Llama 3's kind, as in EuroBERT: its own regular expression splits words, and whole words are looked up first."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_LLAMA_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=620, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([*CORPUS] * _COPIES, trainer)
    return json.dumps(_finished(tokenizer, LLAMA_ROLES, first="bos", last="eos"), ensure_ascii=False)


@cache
def _gemma() -> str:
    """Gemma's kind, as in mmBERT: BPE over characters with "▁" for a space and bytes for unknown characters."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[unused0]", "[unused1]"]
    learner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=600, min_frequency=1, special_tokens=special, show_progress=False, limit_alphabet=180
    )
    learner.train_from_iterator([*LINES] * _COPIES, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "\n", "\n\n", "▁▁", "▁▁▁▁"]
    tokens += [piece for piece in pieces if piece not in {*tokens}]
    merges = [tuple(merge) for merge in learned["merges"]]
    merges += [("\n", "\n"), ("▁", "▁"), ("▁▁", "▁▁")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {token: n for n, token in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return json.dumps(_finished(tokenizer, GEMMA_ROLES, first="bos", last="eos"), ensure_ascii=False)


def modernbert_tokenizer_json() -> dict[str, Any]:
    """A fresh copy of the `tokenizer.json` of ModernBERT's kind."""
    return json.loads(_modernbert())


def llama_tokenizer_json() -> dict[str, Any]:
    """A fresh copy of the `tokenizer.json` of Llama 3's kind."""
    return json.loads(_llama())


def gemma_tokenizer_json() -> dict[str, Any]:
    """A fresh copy of the `tokenizer.json` of Gemma's kind."""
    return json.loads(_gemma())


# Options of the trainer that give a family's special pieces and text rules.
_PIECES: dict[str, dict[str, Any]] = {
    "albert": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]",
        "user_defined_symbols": "(,),-,.,–,£,€", "normalization_rule_name": "nmt_nfkc_cf",
    },
    "xlm-roberta": {},
    "camembert": {},
    "bigbird": {
        "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "control_symbols": "[CLS],[SEP],[MASK]",
    },
    "deberta-v2": {
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3,
        "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]",
    },
    "japanese": {"normalization_rule_name": "nfkc", "remove_extra_whitespaces": False, "split_digits": True},
}  # fmt: skip


@cache
def sentencepiece_model(kind: str, byte_fallback: bool = False, texts: Sequence[str] = LINES) -> bytes:
    """A Unigram model of SentencePiece like a family's published models."""
    from sentencepiece import SentencePieceTrainer

    # With byte fallback fewer characters are pieces, so that some fall back.
    fallback = {"byte_fallback": True, "character_coverage": 0.98} if byte_fallback else {"character_coverage": 1.0}
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*texts] * _COPIES), model_writer=model, vocab_size=900, hard_vocab_limit=False,
        model_type="unigram", minloglevel=2, num_threads=1, **(_PIECES[kind] | fallback),
    )  # fmt: skip
    return model.getvalue()


def protobuf_module() -> ModuleType:
    """The message classes of SentencePiece's model files.

    sentencepiece 0.2.3 generates its own with a newer protobuf than TensorFlow allows, and importing them then raises.
    transformers has a copy for older versions.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception:  # google.protobuf.runtime_version.VersionError, of protobuf alone
        from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2
    return sentencepiece_model_pb2


@cache
def _japanese() -> str:
    """Unigram with byte fallback only in `tokenizer.json`, as in Japanese ModernBERTs."""
    proto = protobuf_module().ModelProto.FromString(sentencepiece_model("japanese", byte_fallback=True))
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    pieces += [(token, 0.0) for token in JAPANESE_ROLES.values() if token != "<unk>"]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return json.dumps(_finished(tokenizer, JAPANESE_ROLES), ensure_ascii=False)


def japanese_tokenizer_json() -> dict[str, Any]:
    """A fresh copy of the `tokenizer.json` of a Japanese ModernBERT's kind."""
    return json.loads(_japanese())


def _finished(
    tokenizer: tokenizers.Tokenizer,
    roles: dict[str, str],
    first: str = "cls",
    last: str = "sep",
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Declare special tokens and a template for one or two texts; returns `tokenizer.json`."""
    for role, token in roles.items():
        tokenizer.add_special_tokens([AddedToken(token, lstrip=role == "mask", normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in more])
    before, behind = roles[first], roles[last]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {behind}",
        pair=f"{before} $A {behind} $B {behind}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (before, behind)],
    )
    return json.loads(tokenizer.to_str())
