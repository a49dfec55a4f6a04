"""Train the built-in workload with Hugging Face Trainer, by the arguments in `train.args`.

`run.args` has those that the configuration does not decide. Arguments after the script's name come
on top: any field of TrainingArguments.
"""

import os
import sys

from material import HERE, Samples, leave, make_model, read_settings
from transformers import HfArgumentParser, Trainer, TrainingArguments


def main() -> None:
    """Train, and print the loss of each step."""
    settings = read_settings()
    os.chdir(HERE)  # the paths in train.args start here
    parser = HfArgumentParser(TrainingArguments)
    given = [*(HERE / "run.args").read_text().split(), *sys.argv[1:]]
    (arguments,) = parser.parse_args_into_dataclasses(given, args_filename="train.args")
    samples = Samples(settings, n_steps=max(1, arguments.max_steps))
    # After the arguments: by them transformers knows how the model is sharded.
    trainer = Trainer(
        model=make_model(settings),
        args=arguments,
        train_dataset=samples,
        data_collator=samples.collate,
    )
    trainer.train()
    leave()


if __name__ == "__main__":
    main()
