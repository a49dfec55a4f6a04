"""One process without a launcher, as in a notebook; it trains two engines, a GAN."""

import os

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")

import deepspeed
import torch
from torch import nn

config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}


def engine_of(model: nn.Module) -> deepspeed.DeepSpeedEngine:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main() -> None:
    generator, critic = engine_of(nn.Linear(8, 16)), engine_of(nn.Linear(16, 1))
    bce = nn.functional.binary_cross_entropy_with_logits
    for _ in range(1000):
        real, noise = torch.randn(4, 16), torch.randn(4, 8)
        with torch.no_grad():
            made = generator(noise)
        of_real, of_made = critic(torch.cat([real, made])).chunk(2)
        critic.backward(
            bce(of_real, torch.ones_like(of_real)) + bce(of_made, torch.zeros_like(of_made))
        )
        critic.step()
        generator.backward(bce(critic.module(generator(noise)), torch.ones(4, 1)))
        generator.step()


if __name__ == "__main__":
    main()
