"""Train a small GPT-2 with accelerate's own loop: prepare, accumulate, evaluate, save."""

import argparse
import pydoc_data.topics

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, get_scheduler

LENGTH = 64


def pieces(text: str) -> list[dict[str, torch.Tensor]]:
    tokens = torch.tensor(list(text.encode()), dtype=torch.long)
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--evaluate_every", type=int, default=50)
    parser.add_argument("--output_dir", default="output")
    args = parser.parse_args()

    # Without this line accelerate takes CPU ranks under DeepSpeed for one process.
    PartialState(cpu=not torch.cuda.is_available())
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    data = pieces("\n".join(pydoc_data.topics.topics.values()))
    train = DataLoader(data[64:], shuffle=True, batch_size=args.per_device_train_batch_size)
    evaluation = DataLoader(data[:64], batch_size=args.per_device_train_batch_size)
    scheduler = get_scheduler("cosine", optimizer, 10, len(train) * args.num_train_epochs)
    model, optimizer, train, evaluation, scheduler = accelerator.prepare(
        model, optimizer, train, evaluation, scheduler
    )
    for epoch in range(args.num_train_epochs):
        for number, batch in enumerate(train):
            model.train()
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if number % args.evaluate_every == args.evaluate_every - 1:
                model.eval()
                with torch.no_grad():
                    losses = [model(**each).loss for each in evaluation]
                mean = accelerator.gather(torch.stack(losses)).mean().item()
                accelerator.print(f"epoch {epoch} batch {number} evaluation {mean:.4f}")
    accelerator.wait_for_everyone()
    accelerator.save_state(args.output_dir)


if __name__ == "__main__":
    main()
