"""A plug-in of axolotl's that trains without a GPU: its file has no key for that."""

from typing import Any

from accelerate import PartialState
from axolotl.core.trainers.base import AxolotlTrainer
from axolotl.integrations.base import BasePlugin
from transformers import Trainer


class CpuRanks(BasePlugin):
    """What the key `plugins` names."""

    def register(self, cfg: dict[str, Any]) -> None:
        """Count the ranks, which axolotl does not where there is no GPU."""
        PartialState(cpu=True)

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Tell Trainer."""
        return {"use_cpu": True}

    def get_trainer_cls(self, cfg: Any) -> type[Trainer]:
        """The trainer of CPU ranks."""
        return OnCpuRanks


class CountsCpuRanks(Trainer):
    """Counts the ranks once more."""

    def create_accelerator_and_postprocess(self) -> None:
        """AxolotlTrainer has just removed the first count."""
        PartialState(cpu=True)
        super().create_accelerator_and_postprocess()


class OnCpuRanks(AxolotlTrainer, CountsCpuRanks):
    """axolotl's trainer of language models."""
