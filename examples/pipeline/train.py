"""A PipelineModule: its engine loads the data, splits the batch and trains it as a pipeline."""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn
from torch.utils.data import TensorDataset

VOCAB, WIDTH = 512, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = PipelineModule(
        layers=[
            LayerSpec(nn.Embedding, VOCAB, WIDTH),
            *[LayerSpec(Block) for _ in range(6)],
            LayerSpec(nn.Linear, WIDTH, VOCAB),
        ],
        num_stages=args.stages,
        loss_fn=loss_of,
        partition_method="uniform",
    )
    tokens = torch.randint(0, VOCAB, (2048, 32))
    engine, *_ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        training_data=TensorDataset(tokens, tokens),
    )
    for _ in range(args.steps):
        engine.train_batch()
    engine.save_checkpoint("checkpoints")


if __name__ == "__main__":
    main()
