"""Train the built-in workload with accelerate: a loop of one's own around `Accelerator`.

`accelerate launch --config_file accelerate.yaml` names the `ds_config.json`.
"""

import argparse
import time
from collections.abc import Iterator

from accelerate import Accelerator, PartialState
from accelerate.utils import DummyOptim
from material import Samples, leave, make_model, read_settings
from torch.utils.data import DataLoader
from workload import Inputs, apply_recompute, read


def micro_batches(loader: DataLoader[Inputs]) -> Iterator[Inputs]:
    """What the loader yields, for ever."""
    while True:
        yield from loader


def main() -> None:
    """Train, and print what each step took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    n_steps = parser.parse_args().steps
    settings = read_settings()
    if settings.accelerator == "cpu":
        # CPU ranks find each other by it; `Accelerator(cpu=True)` would leave DeepSpeed out.
        PartialState(cpu=True)
    accelerator = Accelerator()
    # After it: by then transformers knows how the model is sharded.
    model = make_model(settings)
    apply_recompute(model, settings.recompute)
    samples = Samples(settings, n_steps)
    loader = DataLoader(
        samples, batch_size=settings.micro_batch, shuffle=True, collate_fn=samples.collate
    )
    # The optimizer stands in ds_config.json; one of the script's own would be refused beside it.
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = DummyOptim(trained, **read("settings.json")["dummy_optimizer"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if settings.compile != "none":
        # accelerate's launcher hands no `dynamo_config` on to DeepSpeed's ranks.
        model.compile()
    model.train()
    fed = micro_batches(loader)
    began_s = time.perf_counter()
    for step in range(n_steps):
        for _ in range(settings.grad_accum):
            with accelerator.accumulate(model):
                loss = model(**next(fed)).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        loss_value = accelerator.reduce(loss.detach(), reduction="mean").item()
        step_time_s = time.perf_counter() - began_s
        accelerator.print(f"step {step}  loss {loss_value:.4f}  {step_time_s:.4f} s", flush=True)
        began_s = time.perf_counter()
    accelerator.end_training()
    leave()


if __name__ == "__main__":
    main()
