"""Train the built-in workload with TRL's SFTTrainer, by the fields in `sft.yaml`.

`run.args` has those that the configuration does not decide. Arguments after the script's name come
on top: any field of SFTConfig.
"""

import os
import sys

from datasets import Dataset
from material import HERE, Samples, leave, make_model, read_settings
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer, TrlParser


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer of as many numbered words: the samples are tokens already."""
    words = {f"<{number}>": number for number in range(vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<0>", pad_token="<0>", unk_token="<0>"
    )


def main() -> None:
    """Train, and print the loss of each step."""
    settings = read_settings()
    os.chdir(HERE)  # the paths in sft.yaml start here
    of_the_run = (HERE / "run.args").read_text().split()
    given = ["--config", "sft.yaml", *of_the_run, *sys.argv[1:]]
    (arguments,) = TrlParser(SFTConfig).parse_args_and_config(given)
    samples = Samples(settings, n_steps=max(1, arguments.max_steps))
    tokens = [samples[index]["input_ids"].tolist() for index in range(len(samples))]
    # After the arguments: by them transformers knows how the model is sharded.
    trainer = SFTTrainer(
        model=make_model(settings),
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": tokens}),
        processing_class=make_tokenizer(int(settings.source["vocab"])),
    )
    trainer.train()
    leave()


if __name__ == "__main__":
    main()
