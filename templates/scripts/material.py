"""The model and the samples of the trials, for the training script beside this file.

`settings.json` says what they are, `model/config.json` is the Hugging Face config of the model.
Replace `make_model` and `Samples` to train your own. `workload.py` is the script of the trials.
"""

from collections.abc import Sequence
from typing import Any

import torch
import workload
from torch.utils.data import Dataset

HERE = workload.HERE


def read_settings() -> workload.Settings:
    """What is trained; a CPU rank, and one that asks for it, is bound to its cores."""
    data = workload.read("settings.json")
    config = {} if "factory" in data else workload.read("model/config.json")
    settings = workload.Settings.of(
        data, config, micro_batch=data["micro_batch"], grad_accum=data["grad_accum"]
    )
    if data["binds_cores"]:
        workload.bind_to_cores(settings)
    return settings


def make_model(settings: workload.Settings) -> torch.nn.Module:
    """The model with random weights, its adapters, and what is to be computed in chunks.

    At stage 3 transformers shards it as it is made, if it knows the configuration by now.
    """
    torch.manual_seed(settings.seed)
    source = settings.source
    if "factory" in source:
        model = workload.from_factory(source)
    else:
        dtype = workload.DTYPES[settings.precision]
        model = workload.from_config(source["config"], dtype, settings.attention)
    if "lora" in source:
        workload.add_adapters(model, source["lora"])
    workload.chunk_loss(model, settings.loss_chunk_tokens)
    workload.chunk_mlps(
        model, settings.mlp_chunk_tokens, most_tokens=workload.most_tokens(settings)
    )
    return model


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Random tokens: those of `n_steps` optimizer steps."""

    def __init__(self, settings: workload.Settings, n_steps: int) -> None:
        self._settings = settings
        self._n_steps = n_steps

    def __len__(self) -> int:
        return self._n_steps * self._settings.global_batch

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """A sample: `input_ids` and `labels`, each (tokens,)."""
        settings = self._settings
        seed = (settings.seed * 100_003 + 1) * len(self) + index
        generator = torch.Generator().manual_seed(seed % 2**63)
        vocab = int(settings.source["vocab"])
        tokens = torch.randint(0, vocab, (self._length_of(index),), generator=generator)
        return {"input_ids": tokens, "labels": tokens}

    def _length_of(self, index: int) -> int:
        settings = self._settings
        if settings.lengths.get("kind") != "histogram":
            return settings.seq_len
        step, number = divmod(index, settings.global_batch)
        lengths = workload.beside("lengths")
        found = lengths.step_lengths(settings.lengths, settings.global_batch, settings.seed, step)
        return int(found[number])

    def collate(self, samples: Sequence[dict[str, Any]]) -> workload.Inputs:
        """A micro-batch, padded to its longest sample where lengths differ."""
        tokens = [torch.as_tensor(sample["input_ids"]) for sample in samples]
        return workload.collate(tokens, self._settings.lengths.get("pad_to_multiple", 1))


def leave() -> None:
    """End this rank, and remove what it would leave behind."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    workload.leave()
