from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.trial.guest.intake import Intake, first_tensor
from autotune.trial.guest.watch import loss_in


class Takes(torch.nn.Module):
    """Takes anything."""

    def forward(self, *args: Any, **kwargs: Any) -> None: ...


def tokens(samples: int, length: int) -> torch.Tensor:
    return torch.ones(samples, length, dtype=torch.long)


def test_samples_and_tokens_of_each_pass_are_counted() -> None:
    module = Takes()
    intake = Intake(module)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    module(input_ids=tokens(2, 3), attention_mask=mask)
    module(tokens(4, 5))
    assert (intake.micro_batches, intake.lengths) == ([2, 4], [3, 5])
    intake.add()
    assert intake.since(0) == (4 + 20, 6 + 20)


def test_steps_are_kept_apart_and_what_was_seen_is_not_forgotten() -> None:
    module = Takes()
    intake = Intake(module)
    for length in (3, 7):
        intake.restart()
        module(tokens(2, length))
        intake.add()
    assert intake.since(1) == (14, 14)
    assert intake.micro_batches == [2]
    assert intake.all_lengths == {3, 7}


class Doubles(torch.nn.Module):
    """Learns one number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.number * x, "beside": self.number * 2}


def test_one_backward_pass_is_one_micro_batch() -> None:
    module = Doubles()
    intake = Intake(module)
    for _ in range(2):
        chosen, rejected = module(torch.ones(3, 2)), module(torch.ones(3, 2))
        (chosen["out"].mean() - rejected["out"].mean()).backward()
    assert intake.micro_batches == [6, 6]


def test_a_pass_that_nothing_learns_from_is_not_counted() -> None:
    """A discriminator learns from what the generator made, and the generator does not."""
    module = Doubles()
    intake = Intake(module)
    module(torch.ones(4, 2))["out"].detach()
    assert not intake.micro_batches
    module(torch.ones(4, 2))["out"].sum().backward()
    assert intake.micro_batches == [4]
    intake.restart()
    assert not intake.micro_batches


@pytest.mark.parametrize("leave", [torch.no_grad, torch.inference_mode])
def test_what_is_only_looked_at_is_not_counted(leave: Callable[[], Any]) -> None:
    module = Takes()
    intake = Intake(module)
    with leave():
        module(tokens(2, 3))
    module.eval()
    module(tokens(2, 3))
    assert not intake.micro_batches


def test_a_pipeline_s_passes_are_its_module_s() -> None:
    class Pipeline(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Takes()

        def train_batch(self) -> None:
            self.module(tokens(2, 3))

    engine = Pipeline()
    intake = Intake(engine)
    engine.train_batch()
    assert intake.micro_batches == [2]


def test_vectors_and_pictures_have_samples_and_no_tokens() -> None:
    module = Takes()
    intake = Intake(module)
    module(torch.randn(3, 8))
    module(pixel_values=torch.randn(5, 3, 4, 4))
    intake.add()
    assert (intake.micro_batches, intake.lengths) == ([3, 5], [0, 0])
    assert intake.since(0) == (0, 0)


PICTURE, SENTENCES = torch.randn(3, 8, 9), tokens(7, 4)


@pytest.mark.parametrize(
    ("sizes", "given", "counted"),
    [
        ([4], (SENTENCES,), (4, 7)),  # as torch's Transformer has them
        ([4], ({"src": SENTENCES},), (4, 7)),
        ([4, 7], (SENTENCES,), (7, 4)),
        ([5], (SENTENCES,), (7, 4)),
        ([], (SENTENCES,), (7, 4)),
        ([2], ([PICTURE, PICTURE],), (2, 0)),  # as detection has them
        ([3], ([PICTURE, PICTURE],), (3, 0)),
        ([2], ((torch.randn(2, 8), torch.randn(2, 9)),), (2, 0)),
    ],
)
def test_samples_are_where_a_loader_s_batches_have_as_many(sizes, given, counted):
    module = Takes()
    intake = Intake(module, sizes=sizes)
    module(*given)
    assert (intake.micro_batches[0], intake.lengths[0]) == counted


def test_samples_stay_where_they_were_found() -> None:
    """Of the last batch of an epoch no dimension may be the loader's, or the wrong one."""
    module = Takes()
    intake = Intake(module, sizes=[4])
    module(tokens(4, 9))
    module(tokens(3, 4))
    assert intake.micro_batches == [4, 3]
    module(input_ids=tokens(9, 4))
    assert intake.lengths == [9, 4, 4], "Hugging Face's have a fixed meaning"


def test_the_tensor_that_counts_is_found_by_its_name_first() -> None:
    ids = tokens(2, 3)
    assert first_tensor((), {"labels": tokens(9, 9), "input_ids": ids}) is ids
    assert first_tensor(({"a": [torch.tensor(1.0), ids]},), {}) is ids
    assert first_tensor((1, "x"), {"y": None}) is None


def test_a_loss_is_found_in_what_models_give_back() -> None:
    loss = torch.ones((), requires_grad=True)

    class Output:
        pass

    output = Output()
    output.loss = loss  # type: ignore[attr-defined]
    assert loss_in(output) is loss
    assert loss_in((loss, torch.ones(3))) is loss
    assert loss_in(loss) is loss
    assert loss_in(torch.ones(3, requires_grad=True)) is None
    assert loss_in(torch.ones(())) is None
    assert loss_in(None) is None
