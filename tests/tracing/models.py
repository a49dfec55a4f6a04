"""Factories of models for the tests: one that can be traced, and some that cannot."""

import torch
from torch import nn

VOCAB = 64


class Bigram(nn.Module):
    """Its sizes cannot be seen: no config, no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 32)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, input_ids, labels):
        logits = self.head(self.changed(self.words(input_ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def changed(self, hidden):
        return hidden


def tied_and_cast():
    """Whoever casts a module casts what it shares only once."""
    module = Bigram()
    module.head.weight = module.words.weight
    return module.to(torch.bfloat16).to("cpu")


class ReadsValues(Bigram):
    def changed(self, hidden):
        return hidden * 2 if hidden.sum().item() > 0 else hidden


@torch.library.custom_op("autotune_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class HasKernel(Bigram):
    def changed(self, hidden):
        return hidden + twice(hidden.detach())


class NeedsPackage(Bigram):
    def changed(self, hidden):
        import a_package_that_nobody_has  # noqa: F401

        return hidden


class Raises(Bigram):
    def changed(self, hidden):
        raise ValueError("no such thing")
