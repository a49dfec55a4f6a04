r"""The training script that DeepSpeed's autotuner is given: an export's own, for any ds_config.

    deepspeed --autotuning tune --num_gpus 2 benchmarks/autotuned_training.py \
        --export DIR --deepspeed --deepspeed_config FILE

What is trained, and each step of it, come from the export's `train.py`, as in
`plain_training.py`. Only the configuration is what the command line says: a file, or its JSON in
base64 as the autotuner hands it on. The autotuner ends a run itself once its timers have read.
"""

import argparse
import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

from plain_training import load

STEPS = 8
"""The autotuner reads its timers at its fifth step, and ends the run there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--export", type=Path, required=True, help="folder of an export")
    parser.add_argument("--deepspeed", action="store_true", help="as DeepSpeed's launcher asks")
    parser.add_argument("--deepspeed_config", required=True, help="a file, or JSON in base64")
    parser.add_argument("--local_rank", type=int, help="of DeepSpeed's launcher; not needed")
    options = parser.parse_args()
    script = load(options.export / "train.py")
    ds_config = read_config(options.deepspeed_config)
    from_export = script.read

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = ds_config if name == "ds_config.json" else from_export(name)
        return found

    script.read = read
    engine, settings, ds_config = script.start()
    # The autotuner varies the global batch.
    settings = dataclasses.replace(settings, global_batch=engine.train_batch_size())
    losses = script.steps(engine, settings, ds_config)
    for _ in range(STEPS):
        next(losses).item()


def read_config(said: str) -> dict[str, Any]:
    """A configuration by its file's name or by its text."""
    if said.endswith(".json"):
        return dict(json.loads(Path(said).read_text(encoding="utf-8")))
    return dict(json.loads(base64.urlsafe_b64decode(said)))


if __name__ == "__main__":
    main()
