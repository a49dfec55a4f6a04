"""Requests for traces, of which a test changes what it is about."""

from typing import Any

REPEATED = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def request_for(source: dict[str, Any], n_params: int = 0, **changes: Any) -> dict[str, Any]:
    """Two samples of 64 tokens in fp32, on a CPU."""
    return {
        "source": source,
        "n_params": n_params,
        "seq_len": 64,
        "micro_batch": 2,
        "precision": "fp32",
        "attention": "sdpa",
        "recompute": "none",
        "loss_chunk_tokens": 0,
        "gradients": "grow",
        "granule_bytes": 1,
        "has_fused_dropout": False,
        "may_extrapolate": True,
        **changes,
    }
