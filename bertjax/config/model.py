"""The architecture of a network, and how a device computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.bounds import COUNT, NOT_NEGATIVE, POSITIVE, PROPER_SHARE, SHARE, Bounds, check_bounds
from bertjax.config.resume import changes_with_notice, may_change

WHOLE_ROWS = 1024  # Longest row whose scores XLA computes at once; with 8,192 tokens and 12 heads they take 3.2 GB
SPAN_POSITIONS = 15  # First tokens of a span that SpanBERT's boundary head predicts; rows of its position table


@dataclass(frozen=True)
class ModelConfig:
    """The network, in the field names of Hugging Face's BertConfig; defaults are BERT-Base (paper, section 3).

    A member of the family is a preset of these options (bertjax/families/).
    """

    # Model family: parameter and class names in exports, pretraining heads, special tokens. Changes no other key: start
    # from a recipe of the family for its architecture.
    family: str = "bert"
    vocab_size: int = 30_522  # Number of rows in the word table; set from the vocabulary when a run starts
    hidden_size: int = 768  # Width of the vector that each layer computes for a token
    embedding_size: int = 0  # Width of the embedding tables, projected to hidden_size (ALBERT); 0: hidden_size
    num_hidden_layers: int = 12  # Number of transformer layers
    layer_groups: int = 0  # Number of layer groups that share parameters (ALBERT: 1); 0: every layer has its own
    num_attention_heads: int = 12  # Number of attention heads in a layer; divides hidden_size
    # Number of key and value heads, each shared by a group of query heads (grouped queries, EuroBERT); 0: one for each
    # attention head
    num_key_value_heads: int = 0
    intermediate_size: int = 3072  # Width of the hidden layer in each MLP
    # Activation in the MLPs and heads: gelu is the erf form, gelu_tanh the tanh approximation of google-research/bert
    hidden_act: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    hidden_dropout_prob: float = 0.1  # Dropout probability of embeddings, attention outputs and MLP outputs
    attention_probs_dropout_prob: float = 0.1  # Dropout probability of attention weights
    # Dropout probability of the vectors that task heads read; -1: hidden_dropout_prob
    classifier_dropout_prob: float = changes_with_notice(-1.0, "heads of tasks are trained with another dropout")
    max_position_embeddings: int = 512  # Longest row in tokens for which the model has positions
    type_vocab_size: int = 2  # Number of token types (segment A, segment B); 0: no token types
    task_type_vocab_size: int = 0  # Rows in the task table, whose first row every token gets (ERNIE 2.0); 0: no table
    # Kind of positions. learned: a table. sinusoidal: fixed waves. none: no positions. rope: queries and keys are
    # rotated (ModernBERT, NeoBERT). alibi: scores fall with the distance (MosaicBERT). relative: learned vectors for
    # distances, shared by all layers (DeBERTa).
    position_embedding: Literal["learned", "sinusoidal", "none", "rope", "alibi", "relative"] = "learned"
    rope_theta: float = 10_000.0  # Base of the rotation angles (rope)
    rope_theta_local: float = 0.0  # Base of the rotation angles in layers with a window; 0: rope_theta
    rope_interleaved: bool = False  # Rotation of neighbouring dims (NeoBERT) instead of dims half a head apart
    relative_max: int = 0  # Largest distance in tokens with its own vector, on either side (relative)
    # Number of distance vectors on either side; distances beyond half of it share vectors on a logarithmic scale
    # (relative). 0: no sharing.
    relative_buckets: int = 0
    relative_shared: bool = False  # Projection of distance vectors by the token kernels (DeBERTa v2), not by their own
    relative_norm: bool = False  # LayerNorm on the distance vectors (DeBERTa v2)
    # Token dropout (ESM-2: 0.12): the embedding of [MASK] is 0, and the word embeddings of a sequence are multiplied by
    # (1 - this share) / (1 - the sequence's share of [MASK]); 0: off
    token_dropout: float = 0.0
    mask_token_id: int = -1  # Id of [MASK] for token_dropout; set from the vocabulary when a run starts
    # Number of buckets of distances with a learned bias of each head's scores, one table for all layers (MPNet);
    # half of the buckets are for tokens to the right. 0: no biases.
    score_bias_buckets: int = 0
    score_bias_reach: int = 128  # Distance in tokens from which on all share the last bucket (score_bias_buckets)
    # Order of LayerNorm and dropout after the embedding tables (BigBird: dropout_norm); none: no norm (NeoBERT)
    embedding_norm: Literal["norm_dropout", "dropout_norm", "none"] = "norm_dropout"
    norm: Literal["layer", "rms"] = "layer"  # Kind of norm: LayerNorm, or RMSNorm, which does not centre (NeoBERT)
    norm_bias: bool = True  # Bias in every norm
    final_norm_bias: bool = True  # Bias in the final norm, where norms have one (ESM C: False)
    # Norms without bias over all query heads and over all key heads, before rotation (ESM C)
    qk_norm: bool = False
    # Depth whose layers add their branches unscaled; in general they are divided by sqrt(num_hidden_layers / this)
    # (ESM C: 36). 0: no division.
    residual_depth: int = 0
    # Place of the norms. post: after each residual sum. pre: before attention and MLP, with a final norm.
    norm_place: Literal["post", "pre"] = "post"
    first_norm: bool = True  # Attention norm in layer 0; False where its input is already normed (ModernBERT)
    # Biases of the attention projections; query_value: all but the key projection (DeBERTa v1)
    attention_bias: Literal["all", "query_value", "none"] = "all"
    # Biases of the MLPs. output: of the second matrix only (MosaicBERT). none: also none in the dense layers of heads,
    # except the last one, unless head_bias is all.
    mlp_bias: Literal["all", "output", "none"] = "all"
    # Biases of the dense layers of heads. all: in every one, whatever mlp_bias is (EuroBERT, Nomic-BERT). mlp: as in
    # the MLPs.
    head_bias: Literal["mlp", "all"] = "mlp"
    # Kind of MLP. glu: the activated half of a matrix of twice the width is multiplied with the other half.
    mlp: Literal["dense", "glu"] = "dense"
    # Word embeddings as output matrix of the MLM head; False: a separate matrix, no transform (NeoBERT)
    mlm_tied: bool = True
    # Dense layer, activation and norm in front of the output matrix of the MLM head. tied: only with a tied matrix, and
    # with hidden_act. gelu: with any matrix, and with GELU (ESM C).
    mlm_transform: Literal["tied", "gelu"] = "tied"
    mlm_bias: bool = True  # Bias for each entry of the vocabulary in the MLM head
    # Width between two dense layers without biases, each followed by GELU (tanh), in front of a separate output matrix
    # of the MLM head (UltraBERT); 0: no such layers
    mlm_inner_size: int = 0
    # Decoder of the MLM head. enhanced: the last layer runs twice, with absolute positions added to its queries
    # (DeBERTa).
    mlm_decoder: Literal["plain", "enhanced"] = "plain"
    conv_kernel: int = 0  # Width in tokens of a convolution added after layer 0 (DeBERTa v2); 0: no convolution
    window: int = 0  # Number of tokens that a token sees on either side; 0: the whole sequence
    global_every: int = 1  # Period of the layers without a window; 0: every layer has the window
    first_global: int = 0  # Index of the first layer without a window (UltraBERT: 2)
    # Tokens that see, and are seen by, the whole sequence in layers with a window (Longformer). first: the first token
    # of each sequence. marked: tokens that the fine-tuning task names, none in pretraining.
    global_tokens: Literal["none", "first", "marked"] = "none"
    global_projections: bool = False  # Separate query, key and value projections for global tokens (Longformer)
    # Block size in tokens for block-sparse attention: a token sees its block, both neighbours, the first, the last and
    # random blocks (BigBird). 0: no blocks.
    attention_block: int = 0
    random_blocks: int = 0  # Number of random blocks that each block sees, drawn for each layer and head (BigBird)
    random_blocks_seed: int = 0  # Seed of the random blocks (-1: always block 0, as in transformers)
    # Layer on the [CLS] vector. tanh: dense and tanh. The others exist in task heads only. none: dense and tanh
    # (RoBERTa). gelu (ELECTRA). relu (DistilBERT). gelu_norm: GELU and norm, also on every token (ModernBERT). cls: no
    # layer at all (UltraBERT). tanh_of_tasks: dense and tanh, for classes of texts (Nomic-BERT).
    pooler: Literal["tanh", "none", "gelu", "relu", "gelu_norm", "cls", "tanh_of_tasks"] = "tanh"
    # Depth of the task heads. deep: one more dense layer for text classes, one more MLP for answers, no pooler for
    # token classes (BigBird).
    task_heads: Literal["plain", "deep"] = "plain"
    generator_width: float = 0.0  # Width of the generator as a share of this network's (ELECTRA); 0: no generator
    generator_layers: int = 0  # Number of generator layers (ELECTRA); 0: as many as this network
    # Embedding sharing between generator and this network. tied: one set of tables. gdes: the word table is the
    # generator's, without gradient, plus a learned difference (DeBERTa v3, section 3.3).
    embedding_sharing: Literal["tied", "gdes"] = "tied"
    rtd_context: bool = False  # [CLS] vector as a second input of the replaced-token head (DeBERTa v3)
    teacher_width: int = 0  # Width to which vectors are projected in layer distillation; 0: no projection
    causal: bool = False  # Left-to-right attention: no token sees the tokens to its right
    initializer_range: float = 0.02  # Standard deviation of the initial weights (uniform: largest value)
    # Distribution of the initial weights. truncated: normal, cut at two standard deviations. scaled: the same, divided
    # by sqrt(2 layers) where a layer adds to the residual stream (ModernBERT). uniform: flat (NeoBERT).
    initializer: Literal["truncated", "scaled", "uniform"] = "truncated"
    layer_norm_eps: float = 1e-12  # Constant added to the variance in every norm
    vocab_pad_multiple: int = 128  # Multiple to which the rows of the word table are padded, on any mesh
    head: str = "pretraining"  # Network head: pretraining, or the head of a fine-tuning task
    num_labels: int = 0  # Number of classes of a task head; 1: regression
    # Layers of the frozen encoder that the task head reads (0: embeddings, -1: last layer), for the feature-based
    # variant; empty: the whole network is trained
    features: tuple[int, ...] = ()
    lstm_size: int = 0  # Size of each direction of the BiLSTM on frozen features; 0: no BiLSTM

    @property
    def task_dropout_prob(self) -> float:
        """The dropout probability of the vectors that task heads read: its own, or `hidden_dropout_prob`."""
        return self.hidden_dropout_prob if self.classifier_dropout_prob < 0 else self.classifier_dropout_prob

    @property
    def key_value_heads(self) -> int:
        """The number of key and value heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def heads_have_biases(self) -> bool:
        """Whether the dense layers of heads have biases; the last one always has one."""
        return self.head_bias == "all" or self.mlp_bias != "none"

    @property
    def first_layer_apart(self) -> bool:
        """Whether layer 0 has different arrays, and is therefore kept out of the stack of the other layers."""
        return not self.first_norm or self.conv_kernel > 0


MODEL_BOUNDS = {
    "hidden_size": COUNT,
    "num_hidden_layers": COUNT,
    "num_attention_heads": COUNT,
    "num_key_value_heads": NOT_NEGATIVE,
    "intermediate_size": COUNT,
    "max_position_embeddings": COUNT,
    "type_vocab_size": NOT_NEGATIVE,
    "task_type_vocab_size": NOT_NEGATIVE,
    "embedding_size": NOT_NEGATIVE,
    "layer_groups": NOT_NEGATIVE,
    "window": NOT_NEGATIVE,
    "global_every": NOT_NEGATIVE,
    "first_global": NOT_NEGATIVE,
    "residual_depth": NOT_NEGATIVE,
    "mlm_inner_size": NOT_NEGATIVE,
    "attention_block": NOT_NEGATIVE,
    "random_blocks": NOT_NEGATIVE,
    "random_blocks_seed": Bounds(-1, (1 << 32) - 1),
    "rope_theta": POSITIVE,
    "rope_theta_local": NOT_NEGATIVE,
    "generator_width": SHARE,
    "generator_layers": NOT_NEGATIVE,
    "relative_max": NOT_NEGATIVE,
    "relative_buckets": NOT_NEGATIVE,
    "score_bias_buckets": NOT_NEGATIVE,
    "score_bias_reach": COUNT,
    "conv_kernel": NOT_NEGATIVE,
    "teacher_width": NOT_NEGATIVE,
    "token_dropout": PROPER_SHARE,
    "mask_token_id": Bounds(-1),
    "hidden_dropout_prob": PROPER_SHARE,
    "classifier_dropout_prob": Bounds(-1, 1, below=True),
    "attention_probs_dropout_prob": PROPER_SHARE,
    "initializer_range": POSITIVE,
    "layer_norm_eps": POSITIVE,
    "lstm_size": NOT_NEGATIVE,
    "vocab_pad_multiple": COUNT,
}

# Kinds of positions that are added to the embeddings, so that layers do not depend on them.
_EMBEDDED_POSITIONS = ("learned", "sinusoidal", "none")


FROM_VOCABULARY = ("vocab_size", "mask_token_id")  # fields that are set from the vocabulary when a run starts


def check_model(model: ModelConfig) -> None:
    """Raise ValueError for a value outside its bounds, or for options that exclude each other."""
    check_bounds(model, "model", MODEL_BOUNDS)
    _check_attention(model)
    _check_positions(model)
    _check_layers(model)
    _check_heads(model)


def _check_attention(model: ModelConfig) -> None:
    """Check heads, windows, global tokens and blocks."""
    if model.hidden_size % model.num_attention_heads:
        raise ValueError(
            f"model.hidden_size={model.hidden_size} is not divisible by "
            f"model.num_attention_heads={model.num_attention_heads}; change one of them"
        )
    if model.num_attention_heads % model.key_value_heads or model.num_key_value_heads == model.num_attention_heads:
        raise ValueError(
            f"model.num_key_value_heads={model.num_key_value_heads} is not a proper divisor of "
            f"model.num_attention_heads={model.num_attention_heads}; choose a smaller divisor, or 0 for as many"
        )
    if model.num_key_value_heads and (model.position_embedding == "relative" or model.global_projections):
        raise ValueError(
            f"model.num_key_value_heads={model.num_key_value_heads} excludes model.position_embedding='relative' and "
            f"model.global_projections; this model has model.position_embedding={model.position_embedding!r} and "
            f"model.global_projections={model.global_projections}; set model.num_key_value_heads=0"
        )
    if model.first_global and not model.first_global < model.global_every:
        raise ValueError(
            f"model.first_global={model.first_global} must be below model.global_every={model.global_every}, the "
            "period of the layers without a window; change one of them"
        )
    if model.window and model.global_every == 1:
        raise ValueError(
            f"model.window={model.window} has no effect with model.global_every=1, where every layer is global; set "
            "model.global_every to 0 for a window in every layer, or to 2 or more"
        )
    if model.global_every != 1 and not model.window:
        raise ValueError(
            f"model.global_every={model.global_every} requires model.window; set it, or model.global_every=1"
        )
    if model.global_tokens != "none" and (
        not model.window or model.global_every or model.causal or model.position_embedding not in _EMBEDDED_POSITIONS
    ):
        raise ValueError(
            f"model.global_tokens={model.global_tokens!r} requires model.window, model.global_every=0, "
            f"model.causal=False and a model.position_embedding among {', '.join(_EMBEDDED_POSITIONS)}; this model has "
            f"model.window={model.window}, model.global_every={model.global_every}, model.causal={model.causal}, "
            f"model.position_embedding={model.position_embedding!r}"
        )
    if model.global_projections and model.global_tokens == "none":
        raise ValueError(
            "model.global_projections=True requires model.global_tokens; set it to 'first' or 'marked', or set "
            "model.global_projections=False"
        )
    if model.attention_block and (model.window or model.causal or model.position_embedding not in _EMBEDDED_POSITIONS):
        raise ValueError(
            f"model.attention_block={model.attention_block} requires model.window=0, model.causal=False and a "
            f"model.position_embedding among {', '.join(_EMBEDDED_POSITIONS)}; this model has "
            f"model.window={model.window}, model.causal={model.causal}, "
            f"model.position_embedding={model.position_embedding!r}"
        )
    if bool(model.attention_block) != bool(model.random_blocks):
        raise ValueError(
            f"model.random_blocks={model.random_blocks} and model.attention_block={model.attention_block} require each "
            "other; set both (BigBird: 3 and 64) or neither"
        )


def _check_positions(model: ModelConfig) -> None:
    """Check the options of rotated and relative positions."""
    positions, head_dim = model.position_embedding, model.hidden_size // model.num_attention_heads
    if positions == "rope" and head_dim % 2:
        raise ValueError(
            f"model.position_embedding='rope' requires an even number of dims in a head; model.hidden_size="
            f"{model.hidden_size} and model.num_attention_heads={model.num_attention_heads} give {head_dim}; change "
            "one of them"
        )
    rotation = {name: getattr(model, name) for name in ("rope_theta", "rope_theta_local", "rope_interleaved")}
    changes = [f"model.{name}={value}" for name, value in rotation.items() if value != getattr(ModelConfig, name)]
    if positions != "rope" and changes:
        raise ValueError(
            f"options of rotation ({', '.join(changes)}) require model.position_embedding='rope', not {positions!r}; "
            "set it, or leave them at their defaults"
        )
    if model.rope_theta_local and not model.window:
        raise ValueError(
            f"model.rope_theta_local={model.rope_theta_local:g} requires model.window; set it, or set "
            "model.rope_theta for all layers"
        )
    buckets = model.relative_buckets
    if positions == "relative":
        valid = model.relative_max > 0 and not model.window and not model.causal
        valid = valid and (not buckets or (buckets % 2 == 0 and buckets // 2 < model.relative_max - 1))
    else:
        valid = not (model.relative_max or buckets or model.relative_shared or model.relative_norm)
    if not valid:
        raise ValueError(
            f"model.position_embedding={positions!r} with model.relative_max={model.relative_max}, "
            f"model.relative_buckets={buckets}, model.relative_shared={model.relative_shared}, "
            f"model.relative_norm={model.relative_norm}, model.window={model.window}, model.causal={model.causal}: "
            "these options belong to 'relative', which requires model.relative_max of at least 1, no window, no causal "
            "model, and an even number of buckets whose half is below model.relative_max - 1"
        )

    if model.score_bias_buckets and (
        model.score_bias_buckets % 4
        or model.score_bias_reach <= model.score_bias_buckets // 4
        or positions not in _EMBEDDED_POSITIONS
        or (model.window or model.attention_block or model.global_tokens != "none" or model.causal)
        or model.max_position_embeddings > WHOLE_ROWS
    ):
        raise ValueError(
            f"model.score_bias_buckets={model.score_bias_buckets} must be a multiple of 4, with "
            f"model.score_bias_reach={model.score_bias_reach} above a quarter of it, and requires a "
            f"model.position_embedding among {', '.join(_EMBEDDED_POSITIONS)}, no window, blocks or causal attention, "
            f"and model.max_position_embeddings of at most {WHOLE_ROWS}, not {model.max_position_embeddings}; change "
            "those or set model.score_bias_buckets=0"
        )


def _check_layers(model: ModelConfig) -> None:
    """Check sharing, norms and the convolution."""
    if model.layer_groups > model.num_hidden_layers:
        raise ValueError(
            f"model.layer_groups={model.layer_groups} is above model.num_hidden_layers={model.num_hidden_layers}; "
            "change one of them"
        )
    if model.conv_kernel and (
        model.conv_kernel % 2 == 0 or model.layer_groups or model.num_hidden_layers == 1 or model.generator_layers == 1
    ):
        raise ValueError(
            f"model.conv_kernel={model.conv_kernel} must be odd, and requires model.layer_groups=0 and at least two "
            f"layers in every network; this model has model.layer_groups={model.layer_groups}, "
            f"model.num_hidden_layers={model.num_hidden_layers}, model.generator_layers={model.generator_layers}; "
            "change those or set model.conv_kernel=0"
        )
    if model.residual_depth and model.norm_place != "pre":
        raise ValueError(
            f"model.residual_depth={model.residual_depth} requires model.norm_place='pre', not {model.norm_place!r}; "
            "set it, or leave model.residual_depth at 0"
        )
    if model.qk_norm and (
        model.position_embedding == "relative"
        or model.global_projections
        or model.num_key_value_heads
        or model.rope_interleaved
    ):
        raise ValueError(
            "model.qk_norm=True excludes model.position_embedding='relative', model.global_projections, "
            "model.num_key_value_heads and model.rope_interleaved; this model has "
            f"model.position_embedding={model.position_embedding!r}, "
            f"model.global_projections={model.global_projections}, "
            f"model.num_key_value_heads={model.num_key_value_heads}, model.rope_interleaved={model.rope_interleaved}; "
            "change those or set model.qk_norm=False"
        )
    if model.norm == "rms" and model.norm_bias:
        raise ValueError("model.norm='rms' has no bias; set model.norm_bias=False")
    if not model.first_norm and (model.norm_place != "pre" or model.layer_groups or model.num_hidden_layers == 1):
        raise ValueError(
            "model.first_norm=False requires model.norm_place='pre', model.layer_groups=0 and at least two layers; "
            f"this model has model.norm_place={model.norm_place!r}, model.layer_groups={model.layer_groups}, "
            f"model.num_hidden_layers={model.num_hidden_layers}; change those or set model.first_norm=True"
        )


def _check_heads(model: ModelConfig) -> None:
    """Check the decoder, the generator, and the layers that a task head reads."""
    if model.mlm_decoder == "enhanced" and (
        model.norm_place != "post" or model.layer_groups or model.window or model.attention_block
    ):
        raise ValueError(
            "model.mlm_decoder='enhanced' runs the last layer again, and requires model.norm_place='post', "
            "model.layer_groups=0, model.window=0 and model.attention_block=0; this model has "
            f"model.norm_place={model.norm_place!r}, model.layer_groups={model.layer_groups}, "
            f"model.window={model.window}, model.attention_block={model.attention_block}; change those or set "
            "model.mlm_decoder='plain'"
        )
    if not model.generator_width and (model.generator_layers or model.embedding_sharing != "tied"):
        raise ValueError(
            f"model.generator_layers={model.generator_layers} and "
            f"model.embedding_sharing={model.embedding_sharing!r} require model.generator_width; set it, or leave them "
            "at their defaults"
        )
    if model.mlm_inner_size and (model.mlm_tied or model.mlm_transform != "tied"):
        raise ValueError(
            f"model.mlm_inner_size={model.mlm_inner_size} requires model.mlm_tied=False and "
            f"model.mlm_transform='tied', not {model.mlm_tied} and {model.mlm_transform!r}; set them, or leave "
            "model.mlm_inner_size at 0"
        )
    if not model.mlm_tied and (model.embedding_size or model.generator_width):
        raise ValueError(
            f"model.mlm_tied=False requires model.embedding_size=0 and model.generator_width=0; this model has "
            f"model.embedding_size={model.embedding_size}, model.generator_width={model.generator_width}"
        )
    depth = model.num_hidden_layers
    if missing := [layer for layer in model.features if not -depth - 1 <= layer <= depth]:
        raise ValueError(
            f"model.features={model.features}: the model has no layer {missing[0]}; choose from 1 to {depth}, 0 for "
            "the embeddings, or count from the last with -1"
        )


_OTHER_ORDER = "sums are taken in another order, so the last bits may differ"


@dataclass(frozen=True)
class ExecutionConfig:
    """How a device computes the model. These options change speed and memory, not the result."""

    # Number format of the computation; parameters, moments, norm statistics, softmax and losses stay float32
    dtype: Literal["float32", "bfloat16"] = changes_with_notice(
        "float32", "the steps from here on are computed in another precision"
    )
    # Activations that the backward pass recomputes to save memory: none, all but matrix products, or all. With
    # training.grad_accum_steps=auto a minimum: more is recomputed if a step does not fit otherwise.
    remat: Literal["none", "dots", "full"] = may_change("none")
    # Gathering of the weights that mesh.fsdp splits: once per step, or layer by layer, forward and backward in every
    # microbatch, which takes less memory and more traffic and requires remat dots or full. With
    # training.grad_accum_steps=auto, step becomes layer if a step does not fit otherwise.
    gather: Literal["step", "layer"] = may_change("step")
    # Number of layer periods in one iteration of the scan. auto: all in bfloat16 on a CPU and in runs of a day or more
    # on TPUs, else 1; more is faster and compiles longer
    scan_unroll: int | Literal["auto"] = may_change("auto")
    logits_chunk: int = changes_with_notice(1024, _OTHER_ORDER)  # Number of predictions whose logits exist at once
    # Attention backend; auto chooses by platform, row length and model
    attention: Literal["auto", "xla", "cudnn", "mosaic"] = changes_with_notice("auto", _OTHER_ORDER)

    @property
    def unrolled_periods(self) -> int:
        """The number of layer periods in one iteration of the scan; 1 while `auto` is undecided."""
        return 1 if self.scan_unroll == "auto" else self.scan_unroll


EXECUTION_BOUNDS = {
    "scan_unroll": COUNT,
    "logits_chunk": COUNT,
}


def check_execution(execution: ExecutionConfig) -> None:
    """Raise ValueError for a value outside its bounds."""
    check_bounds(execution, "execution", EXECUTION_BOUNDS)
    if execution.gather == "layer" and execution.remat == "none":
        raise ValueError(
            "execution.gather='layer' with execution.remat='none': the backward pass would keep the gathered weights "
            "of every layer; set execution.remat to dots or full"
        )


DEFAULT_EXECUTION = ExecutionConfig()  # float32, the reference attention on a CPU, nothing recomputed
