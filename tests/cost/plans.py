"""Candidates for the tests: a GPT on made-up devices, of which a test changes what it is about."""

from autotune.cost import Plans
from autotune.cost.plans import Column

GIB = 2**30

GPT: dict[str, Column] = {
    # GPT-3 175B, whose activations Korthikanti et al. count by hand.
    "n_layers": 96.0,
    "hidden": 12288.0,
    "ffn_hidden": 49152.0,
    "n_heads": 96.0,
    "n_kv_heads": 96.0,
    "head_dim": 128.0,
    "vocab": 51200.0,
    "seq_len": 2048.0,
    "has_dropout": 1.0,
    "tied_embeddings": 1.0,
}
DEVICE: dict[str, Column] = {
    "matmul_flops": 250e12,
    "half_flops": 250e12,
    "memory_bytes": 80.0 * GIB,
    "memory_bytes_per_s": 2e12,
    "nvlink_bytes_per_s": 300e9,
    "network_bytes_per_s": 25e9,
    "host_bytes_per_s": 32e9,
    "nvlink_domain": 8.0,
    "devices_per_node": 8.0,
}


def plans(**changes: Column) -> Plans:
    """One candidate, or several where a change is an array."""
    chosen: dict[str, Column] = {**GPT, **DEVICE, "micro_batch": 1.0, **changes}
    return Plans(**chosen)
