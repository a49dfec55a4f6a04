"""The model to train: a preset, a Hugging Face config, or a factory; and its shape.

Weights are never read: speed and memory follow from the shape.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer that decide legality, memory and speed."""

    n_layers: int
    hidden: int
    ffn_hidden: int
    """Width of one MLP, or of one expert."""
    n_heads: int
    n_kv_heads: int
    vocab: int
    max_seq_len: int | None
    """Longest sequence that position embeddings allow; None where there is no limit."""
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


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model by name, with what a trial needs to build it."""

    name: str
    shape: ModelShape
    source: dict[str, Any]
    """`TrialSpec.model`: `{"config": {...}}` or `{"factory": "package.module:name", "path": [...]}`."""
    supports_tp: bool
    """Whether DeepSpeed's AutoTP can split it (Hugging Face architectures)."""
    supports_recompute: bool


def load_model(text: str) -> Model:
    """Find a model by preset name, folder, config.json or `package.module:factory`."""
    raise NotImplementedError
