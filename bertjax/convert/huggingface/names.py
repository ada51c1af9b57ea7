"""Conversion between our parameters and the tensors of transformers, by the table of the model's family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.huggingface.config import from_config_json, to_config_json
from bertjax.families.family import WITHOUT_CLASS, Class, Tensor, dense
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES, get_family
from bertjax.model.attention.positions import sinusoids
from bertjax.model.network import HEADS, Network, Params, network_class
from bertjax.model.parameters import named_arrays
from bertjax.model.shared_tables import with_own_words
from bertjax.model.task_heads import VectorNetwork
from bertjax.storage.terminal import first_names

_POSITION = "encoder/embeddings/position"
# Fields without a key in `config.json`: the head follows from the class; initialisation, the padding of the vocabulary,
# the generator, the projection to a teacher's width and modules that no class computes are left out.
_STORED_ELSEWHERE = ("family", "head", "num_labels", "initializer", "vocab_pad_multiple")
_STORED_ELSEWHERE += ("generator_width", "generator_layers", "embedding_sharing", "teacher_width")
_STORED_ELSEWHERE += ("mlm_decoder", "classifier_dropout_prob")
_TRAINING_MODULES = ("teacher_projection",)  # modules that only training uses
_TABLES = ("learned", "sinusoidal")  # both are a table of positions there


def hf_class(config: ModelConfig) -> Class:
    """The transformers class for a model of this config."""
    hf, head = get_family(config.family).transformers, network_class(config)
    if not head.of_task and config.mlm_decoder == "plain":
        return hf.pretraining
    if not head.of_task:  # no class has an enhanced decoder
        return Class(hf.beginning + VectorNetwork.transformers, hf.encoder, bare=True)
    suffix = head.transformers
    if suffix in hf.own_heads:
        return Class(hf.beginning + suffix, (*hf.encoder, *hf.own_heads[suffix]))
    own = dense("head/dense", head.transformers_head) if head.transformers_head else ()
    pooler = hf.pooler if head.pooled else ()
    return Class(hf.beginning + suffix, (*hf.encoder, *pooler, *own), bare=not head.transformers_head)


def hf_classes(config: ModelConfig) -> dict[str, Class]:
    """The classes for a pretrained model, by the heads that they keep.

    `pretraining` keeps every head and `encoder` none; `mlm` and others keep one, where transformers has such a class.
    """
    hf, whole = get_family(config.family).transformers, hf_class(config)
    one_head = (candidate for candidate in (whole, *hf.partial) if len(candidate.outputs) == 1)
    pooler = tuple(tensor for tensor in hf.pooler if tensor in whole.tensors)
    return {
        "pretraining": whole,
        **{next(iter(candidate.outputs)).removesuffix("_head"): candidate for candidate in one_head},
        "encoder": Class(hf.beginning + VectorNetwork.transformers, (*hf.encoder, *pooler), bare=True),
    }


def class_with(config: ModelConfig, head: str) -> Class:
    """The class that keeps `head`, a name of `hf_classes`; "" keeps all. Raises ValueError if there is none."""
    if not head:
        return hf_class(config)
    if network_class(config).of_task:
        raise ValueError(f"--head {head}: a fine-tuned model is exported with the head of its task; leave --head out")
    classes = hf_classes(config)
    if head not in classes:
        raise ValueError(
            f"--head {head}: transformers has no class of the family {config.family!r} with only this head; choose "
            f"{', '.join(classes)}"
        )
    return classes[head]


def modules_without(config: ModelConfig, their_class: Class) -> set[str]:
    """The modules of a network of this config that a class lacks."""
    modules, class_modules = (
        {tensor.ours.partition("/")[0] for tensor in cls.tensors} for cls in (hf_class(config), their_class)
    )
    return modules - class_modules


def head_named(architecture: str) -> type[Network] | None:
    """The task head of a transformers class; None if it has none."""
    beginnings = [family.huggingface.beginning for family in FAMILIES.values() if family.huggingface]
    heads = {beginning + head.transformers: head for head in HEADS.values() if head.outputs for beginning in beginnings}
    return heads.get(architecture)


def architecture(config: ModelConfig) -> str:
    """Name of the transformers class for a model of this config."""
    return hf_class(config).name


def bare_encoder(config: ModelConfig) -> ModelConfig:
    """The config of the encoder without a head."""
    return replace(config, head=VectorNetwork.name, num_labels=0)


def bare_names(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Rename tensors as in the encoder's own class."""
    prefix = get_family(config.family).transformers.prefix
    return {name.removeprefix(prefix): array for name, array in tensors.items()}


def left_out(config: ModelConfig) -> tuple[str, ...]:
    """The modules of a network of this config that no class of transformers has."""
    names = [*get_family(config.family).transformers.left_out, *_TRAINING_MODULES]
    names += ["mlm_head", "mask_decoder"] if config.mlm_decoder == "enhanced" else []
    return tuple(name for name in names if name in abstract_network(config)[1])


def has_class(config: ModelConfig) -> bool:
    """Whether transformers has a class for a model of this config."""
    return not class_obstacle(config)


def class_obstacle(config: ModelConfig) -> str:
    """Why transformers has no class for a model of this config; "" if it has one."""
    family = get_family(config.family)
    if family.huggingface is None:
        return f"transformers has no class of {family.title}"
    no_network = f"transformers has no such network of the family {config.family!r}"
    if network_class(config).transformers in family.huggingface.lacking:
        return f"model.head={config.head!r}: {no_network}"
    try:
        round_trip = from_config_json(to_config_json(config, {}), "config.json")
    except ValueError as error:
        return f"{no_network} ({error})"
    is_table = {round_trip.position_embedding, config.position_embedding} <= {*_TABLES}
    elsewhere = (*_STORED_ELSEWHERE, *["position_embedding"] * is_table)
    round_trip = replace(round_trip, **{name: getattr(config, name) for name in elsewhere})
    if round_trip.rope_theta_local == (config.rope_theta_local or config.rope_theta):
        round_trip = replace(round_trip, rope_theta_local=config.rope_theta_local)  # 0 means the same
    names = (name for name in vars(config) if getattr(round_trip, name) != getattr(config, name))
    fields = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in names)
    return f"{fields}: {no_network}" if fields else ""


def tensor_table(config: ModelConfig) -> tuple[Tensor, ...]:
    """The tensors of a model, with their names here and in transformers.

    Raises ValueError if transformers has no class for this config, or if the family's tables do not cover its network.
    """
    if obstacle := class_obstacle(config):
        raise ValueError(f"{obstacle}; {WITHOUT_CLASS}")
    ours = _our_shapes(config)
    first_stacked = int(any(name.startswith("encoder/first_layer/") for name in ours))
    table = tuple(
        replace(tensor, first=first_stacked) if tensor.stacked else tensor
        for tensor in hf_class(config).tensors
        if tensor.ours in ours or not tensor.optional
    )
    if without_tensor := sorted(ours.keys() - {tensor.ours for tensor in table}):
        modules = sorted({name.partition("/")[0] for name in without_tensor})
        raise ValueError(
            f"model.family={config.family!r}: {architecture(config)} has no tensors for "
            f"{first_names(without_tensor)}; add them to the tables of the family's HuggingFace object, or name "
            f"{', '.join(modules)} in its `left_out` if no class of transformers has it"
        )
    if without_parameter := [tensor.ours for tensor in table if tensor.ours not in ours]:
        raise ValueError(
            f"model.family={config.family!r}: the network has no parameter for {first_names(without_parameter)} of "
            f"{architecture(config)}; correct the tables of the family's HuggingFace object, or mark it as optional"
        )
    return table


def to_huggingface_tensors(
    params: Params, config: ModelConfig, pad_id: int = 0, their_class: Class | None = None
) -> dict[str, np.ndarray]:
    """Convert our parameters to Hugging Face's float32 tensors by name, without the vocabulary's padding.

    `their_class`, one of `hf_classes`, limits the result to its tensors. Sinusoidal positions are written as a table.
    Some families count positions from the padding token's id `pad_id`; the rows up to it are unused and zero.
    """
    arrays = named_arrays(with_own_words(params))
    if config.position_embedding == "sinusoidal":
        arrays[_POSITION] = sinusoids(config)
    before = get_family(config.family).transformers.rows_before_positions(pad_id)
    tensors: dict[str, np.ndarray] = {}
    for tensor in tensor_table(config):
        if their_class is not None and tensor.ours not in {member.ours for member in their_class.tensors}:
            continue
        array = np.asarray(jax.device_get(arrays[tensor.ours]))
        for number, layer_array in enumerate(array if tensor.stacked else [array], tensor.first):
            theirs = _theirs(tensor, layer_array, config.vocab_size, before)
            heads = config.num_attention_heads if tensor.by_head else 1
            for name, rows in zip(tensor.names, np.split(theirs, len(tensor.names)), strict=True):
                name = name.format(number)
                tensors[name] = _interleave_heads(tensors[name], rows, heads) if tensor.part[0] else rows
    return tensors


def from_huggingface_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig, pad_id: int = 0) -> Params:
    """Convert Hugging Face's tensors to our parameters: NumPy float32, layers stacked, the vocabulary zero-padded.

    `pad_id` as in `to_huggingface_tensors`. Modules that transformers does not have are absent. Raises ValueError
    naming the tensors that are missing, left over, or of another shape than in the config.
    """
    expected_shapes = their_shapes(config, pad_id)
    missing, extra = sorted(expected_shapes.keys() - tensors.keys()), sorted(tensors.keys() - expected_shapes.keys())
    if missing or extra:
        raise ValueError(
            f"the tensors are not those of a {architecture(config)} with num_hidden_layers={config.num_hidden_layers}: "
            f"missing {first_names(missing)}; left over {first_names(extra)}"
        )
    for name, shape in expected_shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"tensor {name} has shape {tensors[name].shape}; by the model's config it is {shape}")
    shapes = _published(config)
    by_name = {tensor.ours: tensor for tensor in tensor_table(config)}
    heads = config.num_attention_heads
    arrays = [_ours(by_name[name], tensors, leaf.shape, heads) for name, leaf in named_arrays(shapes).items()]
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)


def their_shapes(config: ModelConfig, pad_id: int = 0) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every Hugging Face tensor for a model of this config, without allocating arrays."""
    ours = _our_shapes(config)
    before = get_family(config.family).transformers.rows_before_positions(pad_id)
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in tensor_table(config):
        shape = ours[tensor.ours]
        count, layer_shape = (shape[0], shape[1:]) if tensor.stacked else (1, shape)
        theirs = _their_shape(tensor, layer_shape, config.vocab_size, before)
        theirs = theirs[0] * tensor.part[1] // len(tensor.names), *theirs[1:]
        numbers = range(tensor.first, tensor.first + count)
        shapes |= {name.format(number): theirs for number in numbers for name in tensor.names}
    return shapes


def _published(config: ModelConfig) -> Params:
    """Shapes of the parameters that transformers also has."""
    ours_only, config = left_out(config), replace(config, embedding_sharing="tied")
    return {name: part for name, part in abstract_network(config)[1].items() if name not in ours_only}


def _our_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of `_published` by name, and of sinusoidal positions, which are exported as a table."""
    shapes = {name: leaf.shape for name, leaf in named_arrays(_published(config)).items()}
    if config.position_embedding == "sinusoidal":
        shapes[_POSITION] = (config.max_position_embeddings, config.embedding_size or config.hidden_size)
    return shapes


def _their_shape(tensor: Tensor, shape: tuple[int, ...], vocab_size: int, before: int) -> tuple[int, ...]:
    """Convert the shape of our tensor in one layer to theirs."""
    if tensor.keeps_dims:
        return math.prod(shape[tensor.inputs :]), *shape[: tensor.inputs]
    if tensor.inputs:
        return math.prod(shape[tensor.inputs :]), math.prod(shape[: tensor.inputs])
    if tensor.padded:
        return vocab_size, *shape[1:]
    if tensor.positions:
        return before + shape[0], *shape[1:]
    return (math.prod(shape),) if tensor.stacked or tensor.ours.endswith("/bias") else shape


def _theirs(tensor: Tensor, array: np.ndarray, vocab_size: int, before: int) -> np.ndarray:
    """Convert our array of one layer to their layout, contiguous."""
    shape = _their_shape(tensor, array.shape, vocab_size, before)
    if tensor.padded:
        array = array[:vocab_size]
    if tensor.positions:
        array = np.pad(array, [(before, 0), (0, 0)])
    return np.ascontiguousarray((array.reshape(-1, shape[0]).T if tensor.inputs else array).reshape(shape))


def _interleave_heads(upper: np.ndarray, lower: np.ndarray, heads: int) -> np.ndarray:
    """Interleave two arrays by head along the first dim."""
    parts = [array.reshape(heads, -1, *array.shape[1:]) for array in (upper, lower)]
    return np.concatenate(parts, axis=1).reshape(-1, *upper.shape[1:])


def _ours(tensor: Tensor, tensors: Mapping[str, np.ndarray], shape: tuple[int, ...], heads: int) -> np.ndarray:
    """Convert their array, or the arrays of all layers or groups, to our layout and shape."""
    numbers = range(tensor.first, tensor.first + (shape[0] if tensor.stacked else 1))
    arrays = [
        np.concatenate([np.asarray(tensors[name.format(number)], np.float32) for name in tensor.names])
        for number in numbers
    ]
    index, parts = tensor.part
    heads = heads if tensor.by_head else 1
    if parts > 1:
        split = [array.reshape(heads, parts, -1, *array.shape[1:])[:, index] for array in arrays]
        arrays = [array.reshape(-1, *array.shape[2:]) for array in split]
    if tensor.inputs:
        arrays = [array.reshape(len(array), -1).T for array in arrays]
    if tensor.stacked:
        return np.stack(arrays).reshape(shape)
    (array,) = arrays
    if tensor.padded:
        array = np.pad(array, [(0, shape[0] - len(array)), *[(0, 0)] * (array.ndim - 1)])
    if tensor.positions:
        array = array[len(array) - shape[0] :]
    return array.reshape(shape)
