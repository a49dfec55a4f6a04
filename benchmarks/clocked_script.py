"""A user's raw DeepSpeed script with a clock of its own, and habits that are hard to measure.

    torchrun --nproc-per-node 2 clocked_script.py --kind evaluates [--steps N]

`script_clocks.py` runs it plainly and as trials. It knows nothing of autotune. At the end of each
optimizer step its first rank writes the seconds of its clock as a line of the file `--clock`.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import torch
from torch import nn

VOCAB = 256
KINDS = ("tiny", "lengths", "accumulates", "evaluates", "decodes", "waits")


class Model(nn.Module):
    """Attention over tokens, or for `tiny` next to nothing."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
                for _ in range(n_layers)
            )
        )
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the tokens themselves."""
        logits = self.head(self.layers(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens: of many lengths, slow to decode, or slow to arrive."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        chance = torch.Generator().manual_seed(index)
        length = 32
        if self.kind == "lengths":
            length = min(256, int(16 * torch.rand(1, generator=chance).reciprocal().item()))
        if self.kind == "decodes":
            for _ in range(60):
                torch.randn(4096, generator=chance).sort()
        if self.kind == "waits":
            time.sleep(0.01)
        return torch.randint(1, VOCAB, (length,), generator=chance)


def together(rows: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--clock", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    kind = options.kind
    deepspeed.init_distributed()
    torch.manual_seed(0)
    is_tiny = kind in ("tiny", "waits")
    model = Model(32, 1) if is_tiny else Model(128, 2)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 1_000_000_000,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    data = batches(kind, engine.global_rank)
    held_out = [next(data) for _ in range(8)]
    clock = (options.clock if engine.global_rank == 0 else Path(os.devnull)).open("w", buffering=1)
    for step in range(options.steps):
        n_passes = 3 if kind == "accumulates" else 1
        for number in range(n_passes):
            engine.set_gradient_accumulation_boundary(number == n_passes - 1)
            engine.backward(engine(next(data)) / n_passes)
            engine.step()
        if kind == "evaluates" and step % 10 == 9:
            engine.eval()
            with torch.no_grad():
                for tokens in held_out:
                    engine(tokens)
            engine.train()
        print(time.perf_counter(), file=clock)


def batches(kind: str, rank: int) -> Iterator[torch.Tensor]:
    rows = Rows(kind)
    sampler = torch.utils.data.DistributedSampler(rows, num_replicas=2, rank=rank)
    return iter(
        torch.utils.data.DataLoader(
            rows,
            batch_size=4,
            sampler=sampler,
            collate_fn=together,
            num_workers=2 if kind == "waits" else 0,
        )
    )


if __name__ == "__main__":
    main()
