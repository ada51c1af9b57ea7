"""The architecture (what function of its input a network computes), and how a device computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertjax.config.resume import changes_with_notice, may_change


@dataclass(frozen=True)
class ModelConfig:
    """The network, in the field names of Hugging Face's BertConfig; defaults are BERT-Base (paper, section 3).

    A member of the family is a preset of these options (bertjax/model/families/).
    """

    family: str = "bert"  # names of parameters and classes elsewhere, heads of pretraining, special tokens
    vocab_size: int = 30_522  # entries the tokenizer has; set from the vocabulary when a run starts
    hidden_size: int = 768
    embedding_size: int = 0  # width of the tables, projected to hidden_size after them (ALBERT); 0: hidden_size
    num_hidden_layers: int = 12
    layer_groups: int = 0  # layers of one group share their parameters (ALBERT: 1); 0: every layer has its own
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    # gelu is the erf form, gelu_tanh the tanh approximation of google-research/bert.
    hidden_act: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    # Of what the heads of tasks read; -1: hidden_dropout_prob.
    classifier_dropout_prob: float = changes_with_notice(-1.0, "heads of tasks are trained with another dropout")
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # 0: no token types
    task_type_vocab_size: int = 0  # rows of a table of tasks, of which every token gets the first (ERNIE 2.0); 0: none
    # Of these learned alone has parameters. sinusoidal: an ablation; none: no positions; rope: queries and keys are
    # rotated (ModernBERT, NeoBERT); alibi: scores fall with the distance (MosaicBERT); relative: scores have terms of
    # learned vectors of distances, which all layers read (DeBERTa).
    position_embedding: Literal["learned", "sinusoidal", "none", "rope", "alibi", "relative"] = "learned"
    rope_theta: float = 10_000.0  # base of the angles; of layers with a window, rope_theta_local
    rope_theta_local: float = 0.0  # 0: rope_theta
    rope_interleaved: bool = False  # neighbours are rotated together (NeoBERT), not dims half a head apart
    relative_max: int = 0  # relative positions: distances from -relative_max to relative_max - 1 have own vectors
    # Vectors to either side: distances beyond half of this number share them, on a logarithmic scale; 0: none does.
    relative_buckets: int = 0
    relative_shared: bool = False  # vectors of distances are projected as tokens are (DeBERTa v2), not by kernels apart
    relative_norm: bool = False  # a LayerNorm on the vectors of distances (DeBERTa v2)
    # Order after the tables; dropout_norm: BigBird. none: no norm there (NeoBERT).
    embedding_norm: Literal["norm_dropout", "dropout_norm", "none"] = "norm_dropout"
    norm: Literal["layer", "rms"] = "layer"  # rms: divided by the root mean square, not centred (NeoBERT)
    norm_bias: bool = True
    # post: after each sum. pre: in front of attention and MLP, with a final norm after the last layer.
    norm_place: Literal["post", "pre"] = "post"
    first_norm: bool = True  # False: no attention norm in layer 0, whose input is normed already (ModernBERT)
    attention_bias: Literal["all", "query_value", "none"] = "all"  # query_value: not of keys (DeBERTa v1)
    # output: of the second matrix alone (MosaicBERT); with none, dense layers of heads but the last have none either.
    mlp_bias: Literal["all", "output", "none"] = "all"
    mlp: Literal["dense", "glu"] = "dense"  # glu: the activated half of a matrix twice as wide times the other half
    mlm_tied: bool = True  # False: the MLM head is a matrix of its own, with a bias and no transform (NeoBERT)
    # enhanced: the last layer runs twice for the MLM head, with absolute positions added to its queries (DeBERTa).
    mlm_decoder: Literal["plain", "enhanced"] = "plain"
    conv_kernel: int = 0  # tokens of a convolution of the embeddings, added after layer 0 (DeBERTa v2); 0: none
    window: int = 0  # a token sees as many tokens on either side; 0: all of its sequence
    global_every: int = 1  # with a window, every n-th layer from the first has none; 0: every layer has it
    # Tokens that see all of their sequence and that all of it sees, next to the windows of every layer (Longformer).
    # first: of each sequence; marked: those that a kind of task names, in pretraining none.
    global_tokens: Literal["none", "first", "marked"] = "none"
    global_projections: bool = False  # global tokens see by queries, keys and values of their own
    # Tokens of a block: one sees its own, both neighbours, the first, the last and random ones (BigBird); 0: no blocks.
    attention_block: int = 0
    random_blocks: int = 0  # that a block sees, drawn for each layer and head
    random_blocks_seed: int = 0  # of that draw; -1: block 0 every time, as transformers' class evaluates
    # tanh: dense and tanh on [CLS]. In heads of tasks alone, none: the same (RoBERTa), gelu: with GELU (ELECTRA), relu:
    # with ReLU (DistilBERT), gelu_norm: with GELU and norm, also on every token (ModernBERT).
    pooler: Literal["tanh", "none", "gelu", "relu", "gelu_norm"] = "tanh"
    # deep: in heads of tasks, classes of a text are read from one more dense layer on [CLS] and answers from one more
    # MLP, and those of a token leave the pooler as it is (BigBird).
    task_heads: Literal["plain", "deep"] = "plain"
    generator_width: float = 0.0  # of the network that makes up tokens (ELECTRA), as a share of this one's; 0: none
    generator_layers: int = 0  # its layers; 0: as many as this network has
    # tied: both have one set of tables. gdes: this network's word table is the generator's, to which it gives no
    # gradient, and a difference that it learns (DeBERTa v3, section 3.3); nothing else is shared.
    embedding_sharing: Literal["tied", "gdes"] = "tied"
    rtd_context: bool = False  # what finds replaced tokens also reads the vector of [CLS] (DeBERTa v3)
    teacher_width: int = 0  # in distillation of layers: the width that their vectors are projected to; 0: not projected
    causal: bool = False  # a token sees no token to its right, as in the left-to-right ablation
    initializer_range: float = 0.02
    # truncated normal at two standard deviations; scaled: the same, of what is added to the residual stream divided by
    # sqrt(2 layers) (ModernBERT); uniform: between -initializer_range and initializer_range (NeoBERT).
    initializer: Literal["truncated", "scaled", "uniform"] = "truncated"
    layer_norm_eps: float = 1e-12
    vocab_pad_multiple: int = 128  # rows of the word table are padded to a multiple of it, whatever the mesh
    head: str = "pretraining"  # on the encoder: a name in bertjax.model.network.HEADS
    num_labels: int = 0  # number of classes of a head that has classes; 1 = regression
    # For the feature-based variant: layers of the frozen encoder that the head reads side by side (0: the embeddings,
    # -1: the last layer); empty trains the whole network.
    features: tuple[int, ...] = ()
    lstm_size: int = 0  # for the feature-based variant: size of each direction of a two-layer BiLSTM; 0 = no BiLSTM

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
    """Two runs that differ here alone train the same model."""

    # Of the computation; parameters, moments, LayerNorm statistics, softmax and losses are float32 in any case.
    dtype: Literal["float32", "bfloat16"] = changes_with_notice(
        "float32", "the steps from here on are computed in another precision"
    )
    remat: Literal["none", "dots", "full"] = may_change("none")  # what the backward pass recomputes
    scan_unroll: int = may_change(1)  # periods of layers per iteration of the scan; all is fastest on a CPU
    logits_chunk: int = changes_with_notice(1024, _OTHER_ORDER)  # predictions whose logits exist at a time
    # The attention back end; auto chooses by platform, row length and model.
    attention: Literal["auto", "xla", "cudnn", "splash"] = changes_with_notice("auto", _OTHER_ORDER)


DEFAULT_EXECUTION = ExecutionConfig()  # float32, the reference attention on a CPU, nothing recomputed
