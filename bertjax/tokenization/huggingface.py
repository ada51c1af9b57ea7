"""Read the tokenizer of a folder in Hugging Face's layout, with transformers as the reference.

The meaning of a folder depends on classes, keys and files (`tokenizer.json`, `tokenizer_config.json`, legacy
vocabularies, added tokens). So transformers' AutoTokenizer reads the folder, and its backend is the artefact. Without
transformers (`pip install 'bertjax[hf]'`), only folders whose meaning does not depend on its rules can be read.
"""

from __future__ import annotations

import codecs
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.storage import hub
from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import parse_json
from bertjax.tokenization import artefact, sentencepiece, symbols, wordpiece
from bertjax.tokenization.loading import make_tokenizer
from bertjax.tokenization.tokenizer import ROLES_FILE, TextRules, Tokenizer

CONFIG_FILE, ADDED_FILE = "tokenizer_config.json", "added_tokens.json"
# All files that transformers may read for a tokenizer, to download from the Hub.
FILES = (
    artefact.FILE,
    CONFIG_FILE,
    ROLES_FILE,
    ADDED_FILE,
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "entity_map.tsv",
)
_VOCABULARIES = tuple(name for name in FILES if name.endswith((".model", "tokenizer.json", "vocab.txt", "vocab.json")))
_FROM_FILE = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that use only tokenizer.json
_FROM_FILE_KEYS = {
    *("tokenizer_class", "do_lower_case", "strip_accents", "model_input_names", "model_max_length", "name_or_path"),
    *("clean_up_tokenization_spaces", "padding_side", "truncation_side"),
}
_BERT = ("BertTokenizer", "BertTokenizerFast")
_BERT_KEYS = {"do_lower_case", "strip_accents", "tokenizer_class", "model_max_length", "name_or_path"}
_SYMBOL_READERS = {"EsmTokenizer": symbols.read_esm_vocabulary}  # classes implemented in Python -> artefacts
_IGNORED_BYTES = "spm.model"  # DebertaV2Tokenizer's file, whose byte pieces transformers ignores
_INSTALL = "pip install 'bertjax[hf]'"


def read_folder(folder: Path, model_type: str = "") -> Tokenizer:
    """Read the tokenizer that AutoTokenizer makes from a folder.

    `model_type` is transformers' name of the model, for a folder whose config lacks it. Raises ValueError with the
    folder's name if the tokenizer cannot be read, lacks a special token, or is implemented in Python.
    """
    origin = f"hf:{folder}"
    folder = folder.expanduser()
    config = _read_object(folder / CONFIG_FILE)
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(f"{origin}: no {', no '.join(_VOCABULARIES)}; a tokenizer needs one of them")
    if (path := folder / artefact.FILE).is_file():
        content, keys = read_whole(path), {key for key in config if not key.endswith("_token")}
        if (
            config.get("tokenizer_class") in _FROM_FILE
            and keys <= _FROM_FILE_KEYS
            and not (folder / ADDED_FILE).is_file()
        ):
            return make_tokenizer(content, config | _read_object(folder / ROLES_FILE), f"tokenizer {path}")
        artefact.read_artefact(content, f"tokenizer {path}")  # transformers checks less
    elif (pieces := _read_byte_fallback(folder, config)) is not None:
        return pieces
    elif (path := folder / wordpiece.VOCABULARY_FILE).is_file():
        wordpiece.require_distinct(wordpiece.read_tokens(path), f"vocabulary {path}")
        if read_whole(path).startswith(codecs.BOM_UTF8):
            raise ValueError(f"vocabulary {path}: it begins with a byte order mark (BOM); save it as UTF-8 without one")
    read_symbols = _SYMBOL_READERS.get(str(config.get("tokenizer_class")))  # str, as the file may hold any type
    if read_symbols and (folder / wordpiece.VOCABULARY_FILE).is_file():
        return read_symbols(wordpiece.read_tokens(folder / wordpiece.VOCABULARY_FILE), origin)
    if importlib.util.find_spec("transformers") is None:
        return _read_bert_vocabulary(folder, config)
    tokenizer = _load_with_transformers(folder, model_type, origin)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"{origin}: {type(tokenizer).__name__} is implemented in Python and has no {artefact.FILE}; use a model "
            "whose tokenizer has one"
        )
    backend.no_truncation()
    backend.no_padding()
    role_tokens = {
        key: str(token)
        for key in ("pad_token", "unk_token", "cls_token", "bos_token", "sep_token", "eos_token", "mask_token")
        if (token := getattr(tokenizer, key)) is not None
    }
    return make_tokenizer(backend.to_str().encode(), role_tokens, origin)


def read_vocabulary(source: str) -> Tokenizer:
    """Read the tokenizer of `hf:DIR`, or of `hf:NAME` on the Hub, downloading only the tokenizer's files.

    Raises ValueError like `read_folder` and `hub.download`.
    """
    name = source.removeprefix(hub.PREFIX)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder, _ = hub.download(
            name,
            choose=lambda present: [file for file in (*FILES, "config.json") if file in present],
            is_complete=lambda folder: any((folder / file).is_file() for file in _VOCABULARIES),
        )
    return read_folder(folder)


def provide_sentencepiece_messages() -> None:
    """Let transformers read `.model` files when TensorFlow is installed.

    transformers imports the messages of the sentencepiece package, whose generated code needs a newer protobuf than
    TensorFlow allows. Substitutes transformers' own messages for older versions.
    """
    name = "sentencepiece.sentencepiece_model_pb2"
    try:
        importlib.import_module(name)
    except Exception:  # protobuf raises its own class
        sys.modules[name] = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")


def _load_with_transformers(folder: Path, model_type: str, origin: str) -> Any:
    # At import, transformers warns that torch is missing, which a tokenizer does not need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoConfig, AutoTokenizer, BertTokenizer

    provide_sentencepiece_messages()
    own_type = _read_object(folder / "config.json").get("model_type")
    options = {} if own_type or not model_type else {"config": AutoConfig.for_model(model_type)}
    try:
        # Never run code from the folder.
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
        readable = [artefact.FILE, *type(tokenizer).vocab_files_names.values()]
        if not any((folder / name).is_file() for name in readable):
            # transformers makes an empty vocabulary if all files of a class are missing.
            if not (folder / "vocab.txt").is_file():
                raise ValueError(f"no {' and no '.join(dict.fromkeys(readable))}")
            tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the classes raise many types
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(f"{origin}: transformers cannot read its tokenizer: {reason}") from None
    return tokenizer


def _read_byte_fallback(folder: Path, config: Mapping[str, Any]) -> Tokenizer | None:
    """Read a SentencePiece model with byte fallback, such as DeBERTa v3's. Returns None for any other folder.

    The reference is sentencepiece, with whose ids the published models were trained; transformers 5 ignores the bytes
    and the model's normalisation. Every `.model` file is validated, because transformers does not.
    """
    for path in sorted(folder.glob("*.model")):
        content, origin = read_whole(path), f"SentencePiece model {path}"
        if sentencepiece.read_model(content, origin).trainer_spec.byte_fallback and path.name == _IGNORED_BYTES:
            rules = TextRules(lowercase=bool(config.get("do_lower_case")), strip_accents=False)
            pieces = sentencepiece.SentencePiece(content, rules, origin)
            return make_tokenizer(pieces.backend.to_str().encode(), pieces.role_tokens, origin)
    return None


def unlike_transformers(folder: Path) -> str | None:
    """Explain why the ids of a folder's tokenizer differ from transformers'; None if they do not."""
    if (folder / artefact.FILE).is_file() or _read_byte_fallback(folder, _read_object(folder / CONFIG_FILE)) is None:
        return None
    return f"transformers ignores the byte pieces of {_IGNORED_BYTES}, unlike sentencepiece and bertjax"


def _read_bert_vocabulary(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read a folder that has only BERT's `vocab.txt`, like transformers. Raises ValueError for any other folder."""
    path = folder / wordpiece.VOCABULARY_FILE
    names = {file.name for file in folder.iterdir()} & {*FILES}
    is_plain = config.get("tokenizer_class", _BERT[0]) in _BERT and config.keys() <= _BERT_KEYS
    if not is_plain or not names <= {path.name, CONFIG_FILE} or not path.is_file():
        raise ValueError(
            f"hf:{folder}: reading its tokenizer requires transformers, which is not installed; {_INSTALL}"
        )
    lowercase, accents = config.get("do_lower_case", True), config.get("strip_accents")
    rules = TextRules(bool(lowercase), bool(lowercase if accents is None else accents))
    origin = f"vocabulary {path}"
    backend = wordpiece.transformers_backend(wordpiece.read_tokens(path), rules, origin)
    return make_tokenizer(backend.to_str().encode(), {}, origin)


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file is missing."""
    if not path.is_file():
        return {}
    return parse_json(read_whole(path), str(path), dict[str, Any], remedy="get the file again")
