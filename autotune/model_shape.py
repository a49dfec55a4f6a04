"""The sizes of a model, and the arithmetic that training it takes."""

from dataclasses import dataclass


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
    max_seq_len: int | None
    """Longest sequence that position embeddings allow; None where there is no limit (rotary)."""
    tied_embeddings: bool
    gated_mlp: bool
    n_experts: int
    """0 for a dense model."""
    experts_per_token: int
    n_params: int
    """Trainable parameters, tied ones counted once."""
    n_params_active: int
    """Parameters that one token touches; equals `n_params` for a dense model."""
    largest_param: int
    """Elements of the largest parameter tensor."""
    n_params_lookup: int = 0
    """Those of `n_params` that are only looked up, so cost no arithmetic: token embeddings that
    are not tied to the output, and learned position embeddings."""
    head_dim: int | None = None
    """Width of one attention head; None: hidden / n_heads."""

    @property
    def attention_width(self) -> int:
        """Width of all heads together; `hidden` but for models that choose `head_dim` freely."""
        return self.hidden if self.head_dim is None else self.n_heads * self.head_dim


def train_flops_per_token(shape: ModelShape, seq_len: int) -> float:
    """Floating-point operations that training needs per token, forward and backward.

    6 * N + 12 * L * A * T, where N is the active parameters without those that are only looked
    up, L the layers, A the width of all attention heads together (the hidden size in most models)
    and T `seq_len`. MFU is defined over this: the scores of the whole T x T square count, causal
    or not, and recomputation does not.

    Source: Chowdhery et al., PaLM (arXiv:2204.02311), appendix B. Korthikanti et al., Reducing
    Activation Recomputation (arXiv:2205.05198), count the same model FLOPs per batch for GPT:
    72 B L s h^2 (1 + s/6h + V/12hL); here biases and norms are in N as well.

    Args:
        shape: The model.
        seq_len: Tokens per sample.
    """
    n_multiplied = shape.n_params_active - shape.n_params_lookup
    return float(6 * n_multiplied + 12 * shape.n_layers * shape.attention_width * seq_len)
