"""Live bytes by what they are there for, against torch's own tracker."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from autotune.tracing.moments import Kind, Part, StepPhase
from autotune.tracing.step import Tracker, trace_step
from autotune.trial.scripts.train import from_config

REPEATED = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FIRST = Part(phase=StepPhase.FORWARD, place="layers")
SECOND = Part(phase=StepPhase.FORWARD, place="head")


def test_what_is_freed_does_not_count() -> None:
    tracker = Tracker(FIRST, kind=Kind.ACTIVATIONS)
    with tracker:
        tensor = torch.empty(1000, dtype=torch.uint8)
        passing = torch.empty(500, dtype=torch.uint8)
        del passing
        tracker.enter(SECOND, Kind.LOGITS)
        again = torch.empty(300, dtype=torch.uint8)
    assert tracker.fullest[FIRST][Kind.ACTIVATIONS] == 1500
    assert tracker.fullest[SECOND][Kind.ACTIVATIONS] == 1000
    assert tracker.fullest[SECOND][Kind.LOGITS] == 300
    del tensor, again


def test_views_are_free_and_sizes_are_rounded_up() -> None:
    tracker = Tracker(FIRST, kind=Kind.ACTIVATIONS, granule_bytes=512)
    with tracker:
        base = torch.empty(513, dtype=torch.uint8)
        view = base[:100].reshape(10, 10)
    assert sum(tracker.fullest[FIRST].values()) == 1024
    del base, view


def test_a_tensor_may_turn_out_to_be_something_else() -> None:
    tracker = Tracker(FIRST, kind=Kind.TEMPORARIES)
    with tracker:
        gradient = torch.empty(100, dtype=torch.uint8)
        tracker.hold([gradient, None], Kind.GRADIENTS)
        more = torch.empty(10, dtype=torch.uint8)
    assert tracker.fullest[FIRST][Kind.GRADIENTS] == 100
    assert tracker.fullest[FIRST][Kind.TEMPORARIES] == 10
    del more


def test_torch_counts_the_same() -> None:
    """Up to the backward pass: the two run the optimizer's step differently."""
    config = {**REPEATED, "num_hidden_layers": 3}
    with FakeTensorMode():
        tokens = torch.randint(0, 100, (2, 64))
        batch = {"input_ids": tokens, "labels": tokens}
        ours = trace_step(
            from_config(config, torch.float32, "eager").train(),
            batch,
            n_layers=3,
            gradients="grow",
        )
        model = from_config(config, torch.float32, "eager").train()
        of_torch = MemTracker()
        of_torch.track_external(model, tokens)
        with of_torch:
            output = model(**batch)
            output.loss.backward()
    (snapshot,) = of_torch.get_tracker_snapshot("peak").values()
    before_the_step = [
        sum(held.values()) for part, held in ours.parts.items() if part.phase is not StepPhase.STEP
    ]
    assert max(before_the_step) == snapshot["Total"]
