"""Pretrains the GPT model of nemo.yaml from random weights with NeMo 2.

Started on every rank, as launch.sh does. Changes of nemo.yaml are all that it takes.
"""

from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
import yaml
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.gpt.model.llama import Llama31Config
from nemo.collections.nlp.modules.common.tokenizer_utils import get_nmt_tokenizer
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def main(path: Path) -> None:
    """Train what a file of sections describes."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    pl.seed_everything(data["seed"]["seed"])
    precision = data["precision"]
    if dtype := precision.pop("params_dtype", None):
        dtype = getattr(torch, dtype)
        precision |= {"params_dtype": dtype, "pipeline_dtype": dtype, "autocast_enabled": False}
    shape = data["model"]
    shape["activation_func"] = ACTIVATIONS[shape["activation_func"]]
    config = (Llama31Config if "scale_factor" in shape else llm.GPTConfig)(**shape)
    for moment in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if moment in data["optimizer"]:
            data["optimizer"][moment] = getattr(torch, data["optimizer"][moment])
    tokenizer = get_nmt_tokenizer(library="null", model_name="NullTokenizer", **data["tokenizer"])
    ddp = DistributedDataParallelConfig(**data["ddp"])
    dtype = dtype or torch.float32
    strategy = nl.MegatronStrategy(ddp=ddp, pipeline_dtype=dtype, **data["strategy"])
    trainer = nl.Trainer(
        accelerator="gpu",
        strategy=strategy,
        plugins=nl.MegatronMixedPrecision(**precision),
        callbacks=[MegatronCommOverlapCallback(**data["comm_overlap"])],
        use_distributed_sampler=False,
        **data["trainer"],
    )
    llm.train(
        model=llm.GPTModel(config, tokenizer=tokenizer),
        data=llm.MockDataModule(tokenizer=tokenizer, **data["data"]),
        trainer=trainer,
        optim=nl.MegatronOptimizerModule(config=OptimizerConfig(**data["optimizer"])),
    )


if __name__ == "__main__":
    main(Path(__file__).with_name("nemo.yaml"))
