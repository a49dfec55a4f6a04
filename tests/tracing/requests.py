"""Requests for traces, of which a test changes what it is about."""

from typing import Any


def request_for(source: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Two samples of 64 tokens in fp32, on a CPU."""
    return {
        "source": source,
        "seq_len": 64,
        "micro_batch": 2,
        "precision": "fp32",
        "attention": "sdpa",
        "recompute": "none",
        "loss_chunk_tokens": 0,
        "gradients": "grow",
        "granule_bytes": 1,
        "has_fused_dropout": False,
        **changes,
    }
