import torch

from autotune.trial.engines.base import differences
from autotune.trial.readback import recomputed_layers


def test_differences_are_sentences_and_only_about_what_was_asked():
    expected = {"stage": 2, "offload_param": "cpu", "dtype": "bf16"}
    actual = {"stage": 1, "dtype": "bf16", "n_params": 7}
    assert differences(expected, actual) == [
        "offload_param: asked cpu, the engine has no such thing at its stage",
        "stage: asked 2, the engine runs 1",
    ]
    assert differences(expected, {**expected, "n_params": 7}) == []


def test_layers_that_recompute_are_counted_and_their_parent_is_not():
    class Layer(torch.nn.Module):
        gradient_checkpointing = False

    model = torch.nn.Module()
    model.gradient_checkpointing = True  # Hugging Face sets it on the model, too
    model.layers = torch.nn.ModuleList(Layer() for _ in range(4))
    assert recomputed_layers(model) == 0
    model.layers[0].gradient_checkpointing = model.layers[2].gradient_checkpointing = True
    assert recomputed_layers(model) == 2
