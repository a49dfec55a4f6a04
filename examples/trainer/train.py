"""Train a small GPT-2 from scratch on the standard library's help texts with Trainer."""

import pydoc_data.topics

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

LENGTH = 64


class Texts(torch.utils.data.Dataset):
    """Pieces of one long text, a token a byte."""

    def __init__(self) -> None:
        text = "\n".join(pydoc_data.topics.topics.values()).encode()
        tokens = torch.tensor(list(text), dtype=torch.long)
        self.rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
