"""TensorFlow 1 checkpoints in the layout of google-research/bert, read and written.

bert_config.json   vocab.txt   bert_model.ckpt.index   bert_model.ckpt.data-00000-of-00001

TensorFlow itself reads and writes them, and checks the CRC of every tensor. No graph is loaded or run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.compare import PAIRS, STATES, Difference, logits_name, our_outputs, pair_batch, within_limit
from bertjax.convert.folder import Prove, read_object, require_content, resolve_folder, written_whole
from bertjax.convert.foreign import ForeignModel, foreign_model
from bertjax.convert.formats import Format
from bertjax.convert.huggingface.config import from_config_json
from bertjax.convert.huggingface.exporter import huggingface_config
from bertjax.convert.huggingface.names import their_shapes, to_huggingface_tensors
from bertjax.convert.tf1.forward import TensorflowBert
from bertjax.families.bert import BERT
from bertjax.families.registry import get_family
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.lean_import import import_tensorflow
from bertjax.storage.remote import AnyPath, to_path
from bertjax.storage.sums import write_sums
from bertjax.tokenization import entity_map
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

CONFIG_FILE, VOCABULARY_FILE, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"
STEP = "global_step"
_TASK_HEADS = ("classifier/", "qa_outputs/")  # refused by `_config`
_BERT = ("bert/", "cls/")
_PRETRAINING = ("bert/", "cls/predictions/", "cls/seq_relationship/")  # cls/squad/ is a head of a task
_SPECIAL = ("[", "<")  # special tokens are upper-case in uncased vocabularies too: [CLS], and <S> in the Chinese one
_LAYER_NORM_EPS = 1e-12  # a constant of modeling.py

# Since 2018 the "gelu" of google-research/bert has been the tanh form; the very first checkpoints had the erf form, and
# Hugging Face reads them all as erf.
ACTIVATIONS = {"gelu": "gelu_tanh"}

# (a part of Hugging Face's name, the same part of TensorFlow's), tried in order.
_PARTS = (
    (r"bert\.encoder\.layer\.(\d+)\.", r"bert/encoder/layer_\1/"),
    (r"bert\.embeddings\.(\w+_embeddings)\.weight", r"bert/embeddings/\1"),
    (r"bert\.pooler\.dense\.", r"bert/pooler/dense/"),
    (r"cls\.seq_relationship\.weight", r"cls/seq_relationship/output_weights"),
    (r"cls\.seq_relationship\.bias", r"cls/seq_relationship/output_bias"),
    (r"cls\.predictions\.bias", r"cls/predictions/output_bias"),
)
_KERNEL = "/kernel"


def read_tensorflow(directory: str | Path, lowercase: bool | None = None) -> ForeignModel:
    """Read a folder with `bert_config.json`, `vocab.txt` and one checkpoint.

    The layout does not record whether text is lower-cased; `lowercase` None takes it from the vocabulary, which is
    cased if one of its tokens has a capital letter. Raises ValueError naming the file and what is wrong with it, and
    ModuleNotFoundError where TensorFlow is not installed.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"tf1:{folder}: no such folder")
    config, tokens = _config_and_vocabulary(folder)
    reason = "as requested" if lowercase is not None else "as the vocabulary suggests"
    if lowercase is None:
        lowercase = suggests_lowercase(tokens)
    rules = TextRules(lowercase, lowercase)
    tokenizer = WordPiece(tokens.tokens, rules, origin=f"vocabulary {folder / VOCABULARY_FILE}")
    arrays = read_arrays(folder)
    tensors = from_tensorflow(arrays, their_shapes(config))
    our_names = {tensorflow_name(name) for name in tensors}
    # Slots of any optimizer (adam_m, BERTAdam, lamb_m) have names below their variable's name.
    others = {name for name in arrays if name not in our_names and name.rpartition("/")[0] not in arrays}
    if beyond := [name for name in others if name.startswith(_PRETRAINING)]:
        raise ValueError(f"tf1:{folder}: {min(beyond)} does not belong to the model that {CONFIG_FILE} describes")
    notes = [f"text is {'lower-cased' if lowercase else 'cased'}, {reason}"]
    if others := sorted(others - {STEP}):
        notes.append(f"left out, since BERT's pretraining has no such array: {', '.join(others)}")
    return foreign_model(f"tf1:{folder}", config, tokenizer, tensors, notes)


def suggests_lowercase(vocabulary: WordPiece) -> bool:
    """Whether none of a vocabulary's words has a capital letter."""
    return not any(token.lower() != token for token in vocabulary.tokens if not token.startswith(_SPECIAL))


def source_vocabulary(source: str, folder: Path) -> dict[str, Any]:
    """DataConfig fields for the vocabulary of a folder, with the case that the vocabulary suggests."""
    path = folder / VOCABULARY_FILE
    lowercase = suggests_lowercase(WordPiece.load(path, TextRules(True, True)))
    return {"vocab": str(path), "lowercase": lowercase, "strip_accents": lowercase}


def read_arrays(directory: str | Path) -> dict[str, np.ndarray]:
    """Read every array of a folder's checkpoint, by its name there. Raises ValueError if it cannot be read."""
    return _read_arrays(_prefix(Path(directory)))


def export_tensorflow(model: TrainedModel, directory: str | AnyPath, prove: Prove | None = None) -> AnyPath:
    """Write a run's model for google-research/bert: its weights bit for bit, without moments; returns the folder.

    The folder appears complete or not at all, after it was read back and given to `prove`. Raises ValueError if it
    exists, and ModuleNotFoundError if TensorFlow is not installed.
    """
    target = resolve_folder(directory)
    if target.exists():
        raise ValueError(f"export to {target}: it exists; choose another folder (--output), or move it away")
    _require_bert(model)
    if not model.tokenizer.splits_like_bert:
        raise ValueError(
            f"the vocabulary is {model.tokenizer.kind_name} in {model.tokenizer.main_file}: google-research/bert "
            f"reads only WordPiece's {VOCABULARY_FILE}; export to huggingface"
        )
    rules = model.tokenizer.rules
    if rules.lowercase != rules.strip_accents:
        raise ValueError(
            f"data.lowercase={rules.lowercase}, data.strip_accents={rules.strip_accents}: google-research/bert has one "
            "rule for both; export to huggingface"
        )
    if rules.unknown != "words":
        raise ValueError("data.unknown='characters': google-research/bert has no such rule; export to huggingface")
    if entity_map.FILE in model.tokenizer.files:
        raise ValueError("data.entity_map: google-research/bert has no entity maps; export to huggingface")
    arrays = to_tensorflow(to_huggingface_tensors(model.params, model.config.model))
    arrays[STEP] = np.asarray(model.step, np.int64)
    config = json.dumps(_config(model), indent=2, sort_keys=True) + "\n"
    with written_whole(target, CONFIG_FILE, prove) as partial:
        _write_arrays(partial / PREFIX, arrays)
        (partial / CONFIG_FILE).write_text(config, encoding="utf-8")
        vocabulary = "".join(f"{token}\n" for token in model.tokenizer.tokens)
        (partial / VOCABULARY_FILE).write_bytes(vocabulary.encode())
        copies = _read_arrays(partial / PREFIX)
        assert copies.keys() == arrays.keys() and all(np.array_equal(copies[k], arrays[k]) for k in arrays)
        write_sums(partial)
    return to_path(str(directory))


def _require_bert(model: TrainedModel) -> None:
    """Raise ValueError for a network of another family, whose tensors have no name in the layout."""
    try:
        names = set(map(tensorflow_name, their_shapes(model.config.model)))
    except ValueError as error:
        raise ValueError(f"{error}; google-research/bert has none either") from None
    # Another family's head may share the name of one of BERT's but not its meaning.
    heads = [head for head in get_family(model.config.model.family).heads if head not in BERT.heads]
    foreign = [name for name in sorted(names) if not name.startswith((*_BERT, *_TASK_HEADS))] or heads
    if model.config.model.attention_block:
        raise ValueError(
            f"model.family={model.config.model.family!r}: google-research/bert has no blocks "
            f"(model.attention_block={model.config.model.attention_block}); export to huggingface"
        )
    if foreign:
        raise ValueError(
            f"model.family={model.config.model.family!r}: google-research/bert has no name for {foreign[0]}; export to "
            "huggingface"
        )


def _config(model: TrainedModel) -> dict[str, Any]:
    """`bert_config.json`. Raises ValueError for a network that google-research/bert does not compute."""
    if model.kind:
        raise ValueError(
            f"model.head={model.config.model.head!r}: google-research/bert has no name for the head of a task; export "
            "to another format, or the run that it was fine-tuned from"
        )
    config = huggingface_config(model.config.model, {"pad": model.tokenizer.pad_id})
    keys = ("architectures", "model_type", "pad_token_id", "tie_word_embeddings", "dtype", "layer_norm_eps")
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    if model.config.model.hidden_act not in names:
        raise ValueError(
            f"model.hidden_act={model.config.model.hidden_act!r}: google-research/bert computes gelu only in its tanh "
            "form; train with model.hidden_act=gelu_tanh to export there, or export to huggingface"
        )
    if model.config.model.causal:
        raise ValueError("model.causal=True: google-research/bert's attention sees both sides; export to huggingface")
    if model.config.model.layer_norm_eps != _LAYER_NORM_EPS:
        raise ValueError(
            f"model.layer_norm_eps={model.config.model.layer_norm_eps}: google-research/bert computes only with "
            f"{_LAYER_NORM_EPS}; export to huggingface"
        )
    return {k: v for k, v in config.items() if k not in keys} | {"hidden_act": names[model.config.model.hidden_act]}


def _config_and_vocabulary(folder: Path) -> tuple[ModelConfig, WordPiece]:
    """Read the config and the tokens; the text rules are not known yet."""
    config = from_config_json(read_object(folder / CONFIG_FILE), folder / CONFIG_FILE, ACTIVATIONS)
    vocabulary = folder / VOCABULARY_FILE
    if not vocabulary.is_file():
        raise ValueError(f"vocabulary {vocabulary}: no such file; google-research/bert's folders have one")
    require_content(vocabulary)
    return config, WordPiece.load(vocabulary, TextRules(True, True))


def _prefix(folder: Path) -> Path:
    """Find the one checkpoint of a folder, or the newest of several with step numbers."""
    prefixes = [path.with_suffix("") for path in folder.glob("*.ckpt*.index")]
    if not prefixes:
        raise ValueError(f"tf1:{folder}: no checkpoint there (bert_model.ckpt.index)")
    if len(prefixes) == 1:
        return prefixes[0]
    steps = {int(match[1]): path for path in prefixes if (match := re.search(r"-(\d+)$", path.name))}
    if len(steps) < len(prefixes):
        names = ", ".join(sorted(path.name for path in prefixes))
        raise ValueError(f"tf1:{folder}: several checkpoints ({names}); leave one")
    return steps[max(steps)]


def _read_arrays(prefix: Path) -> dict[str, np.ndarray]:
    tf = import_tensorflow(required=True)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        require_content(path)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, IndexError, KeyError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {prefix}: cannot be read, or is damaged: {str(error).splitlines()[0]}") from None


def _write_arrays(prefix: Path, arrays: Mapping[str, np.ndarray]) -> None:
    tf = import_tensorflow(required=True)
    with tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=[tf.constant(array) for array in arrays.values()],
        )


def compare_with_tensorflow(model: TrainedModel, directory: str | Path) -> Difference:
    """Compare with the outputs of google-research/bert's network, for the heads that the checkpoint has."""
    batch = pair_batch(model, PAIRS)
    ours = our_outputs(model, batch)
    outputs = TensorflowBert(read_arrays(directory), model.config.model)(*batch.values())
    mlm, nsp = logits_name("mlm_head"), logits_name("nsp_head")
    names = {"bert": STATES, "cls/predictions": mlm, "cls/seq_relationship": nsp}
    theirs = {name: outputs[part] for part, name in names.items() if part in outputs}
    if mlm in theirs:
        theirs[mlm] = theirs[mlm][..., : model.config.model.vocab_size]
    absent = tuple(name for name in names.values() if name not in theirs)
    real = batch["attention_mask"] == 1
    return replace(within_limit(ours, theirs, real, f"{directory}: google-research/bert"), not_compared=absent)


def tensorflow_name(name: str) -> str:
    """Convert a tensor's name from Hugging Face to TensorFlow."""
    for pattern, replacement in _PARTS:
        name = re.sub(pattern, replacement, name)
    name = name.replace(".", "/")
    if "LayerNorm/" in name:
        return name.replace("LayerNorm/weight", "LayerNorm/gamma").replace("LayerNorm/bias", "LayerNorm/beta")
    return re.sub(r"/weight$", _KERNEL, name)


def to_tensorflow(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename Hugging Face's tensors as TensorFlow does; a kernel is [inputs, outputs] there."""
    return {tensorflow_name(name): _transposed(tensorflow_name(name), array) for name, array in tensors.items()}


def from_tensorflow(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Rename TensorFlow's arrays as Hugging Face does, for the `names` that exist."""
    theirs = {name: tensorflow_name(name) for name in names}
    return {ours: _transposed(name, arrays[name]) for ours, name in theirs.items() if name in arrays}


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    # The next-sentence weights are [labels, D] in both, as they are multiplied transposed in TensorFlow.
    return np.ascontiguousarray(array.T) if name.endswith(_KERNEL) else array


FORMAT = Format(
    reference="google-research/bert",
    compare=lambda model, folder, vectors, untrained=(): compare_with_tensorflow(model, folder),
    export=lambda model, directory, vectors, prove=None: export_tensorflow(model, directory, prove),
    read=read_tensorflow,
    vocabulary=source_vocabulary,
    describe=lambda model, folder: ["read back: the same bits"],
)
