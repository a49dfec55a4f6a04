"""The sizes of a model, and the arithmetic that training it takes."""

from dataclasses import dataclass

LATENT_KEYS = {
    "latent_q_rank": "q_lora_rank",
    "latent_kv_rank": "kv_lora_rank",
    "latent_nope_dim": "qk_nope_head_dim",
    "latent_rope_dim": "qk_rope_head_dim",
    "latent_value_dim": "v_head_dim",
}
"""Fields of `ModelShape` for latent attention -> keys of Hugging Face's configs."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer that decide legality, memory and speed.

    A factory's module need not say all of them: 0 stands for a size that cannot be seen.
    """

    n_layers: int
    hidden: int
    ffn_hidden: int
    """Width of one MLP, or of one expert."""
    n_heads: int
    n_kv_heads: int
    vocab: int
    max_seq_len: int | None = None
    """Longest sequence that position embeddings allow; None where there is no limit (rotary)."""
    tied_embeddings: bool
    gated_mlp: bool
    n_experts: int
    """0 for a dense model."""
    experts_per_token: int
    n_params: int
    """Trainable parameters, tied ones counted once."""
    n_params_active: int
    """Parameters that one token touches, trainable or frozen; all of them in a dense model."""
    largest_param: int
    """Elements of the largest parameter tensor, trainable or frozen."""
    n_params_lookup: int = 0
    """Parameters that are only looked up, so cost no arithmetic: token embeddings that are not
    tied to the output, and learned position embeddings."""
    head_dim: int | None = None
    """Width of one attention head; None: hidden / n_heads. Of latent attention the mean of what is
    compared and what is summed."""
    n_dense_layers: int = 0
    """Layers of a mixture of experts that have one MLP in place of experts: the first ones, unless
    `dense_layers` says others."""
    dense_layers: tuple[int, ...] = ()
    """Their indices where they are not the first (Llama 4 Maverick has one before each layer of
    experts)."""
    dense_ffn_hidden: int = 0
    """Width of the MLP of those layers; 0: there are none."""
    shared_expert_hidden: int = 0
    """Width of the MLP that every token passes beside its experts; 0: there is none."""
    latent_q_rank: int = 0
    """Rank of the queries of latent attention; 0: they are projected straight."""
    latent_kv_rank: int = 0
    """Rank of its keys and values; 0: attention is not latent."""
    latent_nope_dim: int = 0
    """Width of a query head without its rotary part."""
    latent_rope_dim: int = 0
    """Width of that rotary part."""
    latent_value_dim: int = 0
    """Width of a value head."""
    configured_positions: int = 0
    """Positions that rotary embeddings are configured for, scaled or not; 0: nobody says it."""
    n_mtp_layers: int = 0
    """Layers that predict further tokens. Megatron trains them; transformers builds none, so no
    count of parameters has them."""
    window: int = 0
    """Tokens that attention looks back in layers with a window; 0: no layer has one."""
    n_windowed_layers: int = 0
    """Layers with that window."""
    expert_biases: bool = False
    """Whether experts have biases."""
    unsaid: str = ""
    """What its layers have that the fields here cannot say, so that no prediction is made: `layers
    of linear attention`. Empty: they can."""
    n_params_frozen: int = 0
    """Parameters that are not trained: with LoRA all but the adapters, which are `n_params`. They
    have no gradient and no optimizer state, and stage 3 gathers them like the others."""

    @property
    def attention_width(self) -> int:
        """Width of all heads together; `hidden` but for models that choose `head_dim` freely."""
        return self.hidden if self.head_dim is None else self.n_heads * self.head_dim

    @property
    def n_expert_layers(self) -> int:
        return self.n_layers - self.n_dense_layers if self.n_experts > 1 else 0

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def expert_weights(self) -> int:
        """Elements of the matrices of one expert, or of the MLP of a dense model."""
        return self.mlp_matrices * self.hidden * self.ffn_hidden

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices of all layers, by the sizes; norms and biases are left out."""
        matrices = self.mlp_matrices
        mixture = self.n_experts * (self.expert_weights + self.hidden)
        mixture += matrices * self.hidden * self.shared_expert_hidden
        n_dense = self.n_layers - self.n_expert_layers
        dense_ffn = self.dense_ffn_hidden if self.n_experts > 1 else self.ffn_hidden
        mlps = self.n_expert_layers * mixture + n_dense * matrices * self.hidden * dense_ffn
        return mlps + self.n_layers * self.attention_weights

    @property
    def attention_weights(self) -> int:
        """Elements of the matrices of a layer's attention."""
        if not self.latent_kv_rank:
            kv_width = self.n_kv_heads * self.attention_width // self.n_heads
            return 2 * self.hidden * (self.attention_width + kv_width)
        query = self.latent_nope_dim + self.latent_rope_dim
        down = self.hidden * (self.latent_q_rank + self.latent_kv_rank + self.latent_rope_dim)
        up = (self.latent_q_rank or self.hidden) * self.n_heads * query
        up += self.latent_kv_rank * self.n_heads * (self.latent_nope_dim + self.latent_value_dim)
        return down + up + self.hidden * self.n_heads * self.latent_value_dim

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        is_dense = layer in self.dense_layers if self.dense_layers else layer < self.n_dense_layers
        return self.n_experts > 1 and not is_dense

    @property
    def n_params_total(self) -> int:
        return self.n_params + self.n_params_frozen


def train_flops_per_token(shape: ModelShape, seq_len: float) -> float:
    """Floating-point operations that training needs per token, forward and backward.

    6 * N + 12 * L * A * T, where N is the active parameters without those that are only looked
    up, L the layers, A the width of all attention heads together (the hidden size in most models)
    and T `seq_len`. MFU is defined over this: the scores of the whole T x T square count, causal
    or not, and recomputation does not.

    Source: Chowdhery et al., PaLM (arXiv:2204.02311), appendix B. Korthikanti et al., Reducing
    Activation Recomputation (arXiv:2205.05198), count the same model FLOPs per batch for GPT:
    72 B L s h^2 (1 + s/6h + V/12hL); here biases and norms are in N as well.

    The 6 N are 2 N of the forward pass, 2 N of the inputs' gradient, and 2 N of the weights'.
    A frozen weight has no gradient of its own, so with LoRA it is 4 N + 2 N', where N' are the
    trained parameters: a little above two thirds. The attention term has no weights and stays.
    Source: Schulman et al., LoRA Without Regret (Thinking Machines Lab, 2025), which counts the
    same per weight matrix; here too the gradient of what comes into the first adapted layer is
    counted, which nothing needs: one layer's share, in favour of no candidate.

    Args:
        shape: The model.
        seq_len: Tokens per sample. Where samples differ, the sum of the squared lengths over the
            sum of the lengths: attention is what grows with the square.
    """
    n_multiplied = shape.n_params_active - shape.n_params_lookup
    n_trained = shape.n_params if shape.n_params_frozen else n_multiplied
    attention = 12 * shape.n_layers * shape.attention_width * seq_len
    return float(4 * n_multiplied + 2 * min(n_trained, n_multiplied) + attention)
