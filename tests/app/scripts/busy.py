"""Fine, whatever it looks like: much goes on beside the training of one engine."""

import argparse
import os
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import autotune  # a package of the user's own, beside this file


class Texts(Dataset):
    """Samples of many lengths."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        assert os.environ["SITE_OF_THE_USER"] == "ran"
        return torch.randint(1, 64, (8 + index % 5,))


def together(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": tokens, "attention_mask": tokens != 0}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embedding(input_ids))
        found = nn.functional.cross_entropy(logits.flatten(0, 1), input_ids.flatten())
        return found + 0 * attention_mask.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000000},
    }
    print("ERROR: this is no error", file=sys.stderr)
    torch.manual_seed(0)
    reference, *_ = deepspeed.initialize(model=Model(), config=config)  # in training mode, too
    sizes = {"reduce_bucket_size": 1000000, "stage3_prefetch_bucket_size": 100000}
    config = {**config, "zero_optimization": {"stage": 3, **sizes}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Model()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    os.makedirs(args.out, exist_ok=True)
    data = DataLoader(
        Texts(4000), batch_size=4, collate_fn=together, num_workers=1, persistent_workers=True
    )
    spawned = DataLoader(
        Texts(8), batch_size=4, collate_fn=together, num_workers=1,
        multiprocessing_context="spawn",
    )  # fmt: skip
    assert autotune.MINE == "the user's"
    for step, batch in enumerate(data):
        with torch.no_grad():
            reference(**batch)
        loss = engine(**batch)
        loss.backward()
        engine.step()
        if step % 5 == 0:
            engine.eval()
            with torch.no_grad():
                for each in spawned if step == 0 else [batch]:
                    engine(**each)
            engine.train()
        if step == 1:
            engine.save_checkpoint(args.out, client_state={"epoch": 3})
        if step == 1 and engine.global_rank == 0:
            torch.save({"step": step}, Path(args.out) / "model.pt.partial")
            os.replace(Path(args.out) / "model.pt.partial", Path(args.out) / "model.pt")
        if step == 3:  # its best one, as after a loss that leapt
            assert torch.load(Path(args.out) / "model.pt") == {"step": 1}
            assert engine.load_checkpoint(args.out)[1]["epoch"] == 3


if __name__ == "__main__":
    main()
