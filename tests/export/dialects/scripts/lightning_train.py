"""A script of Lightning's Trainer, on CPU ranks, with its DeepSpeed file by an argument."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy

ACCUMULATE = 2


class CpuStrategy(DeepSpeedStrategy):
    """Lightning's own refuses CPU ranks."""

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", self.local_rank)

    def setup_environment(self) -> None:
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self.net(batch[0]).pow(2).mean()
        if (index + 1) % ACCUMULATE == 0 and self.trainer.is_global_zero:
            print(f"step {index // ACCUMULATE}  loss {loss.item():.4f}", flush=True)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    config = parser.parse_args().config
    trainer = Trainer(
        strategy=CpuStrategy(config=config),
        accelerator="cpu",
        devices=2,
        accumulate_grad_batches=ACCUMULATE,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=4))


if __name__ == "__main__":
    main()
