"""The architecture (what function of its input a network computes), and how a device computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.resume import changes_with_notice, may_change


@dataclass(frozen=True)
class ModelConfig:
    """The network, in the field names of Hugging Face's BertConfig; defaults are BERT-Base (paper, section 3).

    A member of the family is a preset of these options (bertjax/families/).
    """

    family: str = "bert"  # Model family: parameter and class names in exports, pretraining heads, special tokens
    vocab_size: int = 30_522  # Number of rows in the word table; set from the vocabulary when a run starts
    hidden_size: int = 768  # Width of the vector that each layer computes for a token
    embedding_size: int = 0  # Width of the embedding tables, projected to hidden_size (ALBERT); 0: hidden_size
    num_hidden_layers: int = 12  # Number of transformer layers
    layer_groups: int = 0  # Number of layer groups that share parameters (ALBERT: 1); 0: every layer has its own
    num_attention_heads: int = 12  # Number of attention heads in a layer; divides hidden_size
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
    # Order of LayerNorm and dropout after the embedding tables (BigBird: dropout_norm); none: no norm (NeoBERT)
    embedding_norm: Literal["norm_dropout", "dropout_norm", "none"] = "norm_dropout"
    norm: Literal["layer", "rms"] = "layer"  # Kind of norm: LayerNorm, or RMSNorm, which does not centre (NeoBERT)
    norm_bias: bool = True  # Bias in every norm
    # Place of the norms. post: after each residual sum. pre: before attention and MLP, with a final norm.
    norm_place: Literal["post", "pre"] = "post"
    first_norm: bool = True  # Attention norm in layer 0; False where its input is already normed (ModernBERT)
    # Biases of the attention projections; query_value: all but the key projection (DeBERTa v1)
    attention_bias: Literal["all", "query_value", "none"] = "all"
    # Biases of the MLPs. output: of the second matrix only (MosaicBERT). none: also none in the dense layers of heads,
    # except the last one.
    mlp_bias: Literal["all", "output", "none"] = "all"
    # Kind of MLP. glu: the activated half of a matrix of twice the width is multiplied with the other half.
    mlp: Literal["dense", "glu"] = "dense"
    # Word embeddings as output matrix of the MLM head; False: a matrix of its own with a bias, no transform (NeoBERT)
    mlm_tied: bool = True
    # Decoder of the MLM head. enhanced: the last layer runs twice, with absolute positions added to its queries
    # (DeBERTa).
    mlm_decoder: Literal["plain", "enhanced"] = "plain"
    conv_kernel: int = 0  # Width in tokens of a convolution added after layer 0 (DeBERTa v2); 0: no convolution
    window: int = 0  # Number of tokens that a token sees on either side; 0: the whole sequence
    global_every: int = 1  # Period of the layers without a window, from layer 0 on; 0: every layer has the window
    # Tokens that see, and are seen by, the whole sequence in layers with a window (Longformer). first: the first token
    # of each sequence. marked: tokens that the fine-tuning task names, none in pretraining.
    global_tokens: Literal["none", "first", "marked"] = "none"
    global_projections: bool = False  # Separate query, key and value projections for global tokens (Longformer)
    # Block size in tokens for block-sparse attention: a token sees its block, both neighbours, the first, the last and
    # random blocks (BigBird). 0: no blocks.
    attention_block: int = 0
    random_blocks: int = 0  # Number of random blocks that each block sees, drawn for each layer and head (BigBird)
    random_blocks_seed: int = 0  # Seed of the random blocks (-1: always block 0, as in transformers)
    # Layer on the [CLS] vector. tanh: dense and tanh. In task heads only: none, dense and tanh (RoBERTa); gelu
    # (ELECTRA); relu (DistilBERT); gelu_norm, GELU and norm, also on every token (ModernBERT).
    pooler: Literal["tanh", "none", "gelu", "relu", "gelu_norm"] = "tanh"
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
        """The dropout of what the heads of tasks read."""
        return self.hidden_dropout_prob if self.classifier_dropout_prob < 0 else self.classifier_dropout_prob

    @property
    def first_layer_apart(self) -> bool:
        """Whether layer 0 has other arrays than the rest, so that it is not in their stack."""
        return not self.first_norm or self.conv_kernel > 0


_OTHER_ORDER = "sums are taken in another order, so the last bits may differ"


@dataclass(frozen=True)
class ExecutionConfig:
    """How a device computes the model. These options change speed and memory, not the result."""

    # Number format of the computation; parameters, moments, norm statistics, softmax and losses stay float32
    dtype: Literal["float32", "bfloat16"] = changes_with_notice(
        "float32", "the steps from here on are computed in another precision"
    )
    # Activations that the backward pass recomputes to save memory: none, all but matrix products, or all
    remat: Literal["none", "dots", "full"] = may_change("none")
    scan_unroll: int = may_change(1)  # Number of layer periods in one iteration of the scan; all is fastest on a CPU
    logits_chunk: int = changes_with_notice(1024, _OTHER_ORDER)  # Number of predictions whose logits exist at a time
    # Attention backend; auto chooses by platform, row length and model
    attention: Literal["auto", "xla", "cudnn", "splash"] = changes_with_notice("auto", _OTHER_ORDER)


DEFAULT_EXECUTION = ExecutionConfig()  # float32, the reference attention on a CPU, nothing recomputed
