"""A plain DeepSpeed loop: the configuration is a file, named by an argument."""

import argparse

import deepspeed
import torch
from torch import nn


class Classifier(nn.Module):
    """A small transformer over random tokens, with no framework around it."""

    def __init__(self, vocab: int = 512, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randint(0, 512, (4096, 32))
    model = Classifier()
    engine, _, loader, _ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        training_data=torch.utils.data.TensorDataset(data, data),
    )
    for epoch in range(args.epochs):
        for step, (tokens, targets) in enumerate(loader):
            tokens, targets = tokens.to(engine.device), targets.to(engine.device)
            logits = engine(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            engine.backward(loss)
            engine.step()
            if step % 20 == 0 and engine.global_rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        engine.save_checkpoint("checkpoints", tag=f"epoch{epoch}")


if __name__ == "__main__":
    main()
