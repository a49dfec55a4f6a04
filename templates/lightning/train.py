"""Train the built-in workload with Lightning, by the arguments in `trainer.yaml`."""

import argparse
import os
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DeepSpeedStrategy
from material import HERE, Samples, leave, make_model, read_settings
from torch.utils.data import DataLoader
from workload import Inputs, Settings, apply_recompute, read


class CpuStrategy(DeepSpeedStrategy):
    """DeepSpeed on CPU ranks, which Lightning's own strategy refuses."""

    @property
    def root_device(self) -> torch.device:
        """The rank's device; DeepSpeed is told its number."""
        return torch.device("cpu", 0)

    def setup_environment(self) -> None:
        """What the strategy does where there are GPUs."""
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """As on GPUs; a processor has no number to be checked."""
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Training(LightningModule):
    """The model; the optimizer stands in ds_config.json."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self.model: Any = None

    def configure_model(self) -> None:
        """Build the model: at stage 3 Lightning shards it as it is made."""
        if self.model is None:
            self.model = make_model(self._settings)
            apply_recompute(self.model, self._settings.recompute)

    def configure_optimizers(self) -> None:
        """Nothing: the optimizer stands in ds_config.json, but Lightning wants the method."""

    def on_fit_start(self) -> None:
        """Compile where the configuration asks for it; the engine stands by now."""
        self.model.train()
        if self._settings.compile != "none":
            self.trainer.strategy.deepspeed_engine.compile()

    def training_step(self, batch: Inputs, batch_index: int) -> torch.Tensor:
        """The loss of a micro-batch; that of an optimizer step's last one is printed."""
        loss: torch.Tensor = self.model(**batch).loss
        if (batch_index + 1) % self._settings.grad_accum == 0 and self.trainer.is_global_zero:
            step = batch_index // self._settings.grad_accum
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
        return loss


def main() -> None:
    """Train, and print the loss of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    n_steps = parser.parse_args().steps
    settings = read_settings()
    os.chdir(HERE)  # the paths in trainer.yaml start here
    with open("trainer.yaml", encoding="utf-8") as file:
        arguments = yaml.safe_load(file)["trainer"]
    kind = CpuStrategy if settings.accelerator == "cpu" else DeepSpeedStrategy
    strategy = kind(**arguments.pop("strategy")["init_args"])
    trainer = Trainer(
        **arguments,
        strategy=strategy,
        # Every launcher sets what torchrun does: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR.
        plugins=[TorchElasticEnvironment()],
        max_steps=n_steps,
        gradient_clip_val=read("settings.json")["gradient_clip_val"],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    samples = Samples(settings, n_steps)
    loader = DataLoader(
        samples, batch_size=settings.micro_batch, shuffle=True, collate_fn=samples.collate
    )
    trainer.fit(Training(settings), loader)
    leave()


if __name__ == "__main__":
    main()
