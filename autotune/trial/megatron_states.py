"""Bytes of weights, gradients and optimizer states that a rank of Megatron holds."""

from typing import Any

import torch


def states(training: Any) -> dict[str, int]:
    """Bytes that this rank holds of weights, gradients and what its optimizer keeps."""
    weights = [p for chunk in training.chunks for p in chunk.parameters()]
    buffers = [
        buffer
        for chunk in training.chunks
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]
    optimizers = getattr(training.optimizer, "chained_optimizers", [training.optimizer])
    tensors: list[torch.Tensor] = []
    for optimizer in optimizers:
        adam = optimizer.optimizer
        for group in adam.param_groups:
            tensors += [p for p in group["params"] if not _is_weight(p, weights)]
        for state in adam.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value)]
    return {
        "params_bytes": _bytes(weights),
        "grads_bytes": _bytes([buffer.grad_data for buffer in buffers]),
        "optimizer_bytes": _bytes(tensors),
    }


def _is_weight(tensor: torch.Tensor, weights: list[Any]) -> bool:
    """True for a tensor in the memory of a weight, which is no copy of it."""
    storage = tensor.untyped_storage().data_ptr()
    return any(weight.untyped_storage().data_ptr() == storage for weight in weights)


def _bytes(tensors: list[Any]) -> int:
    """Bytes of tensors, each once."""
    unique = {(tensor.data_ptr(), tensor.numel()): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())
