"""A checkout of Megatron-LM inside the ranks of a trial: its own script trains, and is watched.

What its `megatron.training` builds is wrapped to look as the `Training` of the built-in workload's
script does (`autotune.trial.scripts.train_megatron`): the same stopwatch, diagnostic pass and
read-back see both.
"""

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from megatron.core.utils import get_model_config

from autotune.contract import OwnLog, RankReport
from autotune.trial.engines.megatron_live import LiveMegatron
from autotune.trial.guest.hooks import call_after_imports
from autotune.trial.megatron_log import read_log
from autotune.trial.scripts import megatron_cpu, train_megatron

_LOOP = "megatron.training.training"
"""The module with the functions that set up and train."""


def watch_imports(before: Callable[[], None], after: Callable[[Any], None]) -> None:
    """Watch the loop of a checkout, once a script imports it; both as of `on_initialize`."""
    if megatron_cpu.is_installed() and importlib.util.find_spec("megatron.training"):
        megatron_cpu.prepare_checkout()
    call_after_imports([(_LOOP, "", lambda loop: _watch(loop, before, after))])


def _watch(loop: Any, before: Callable[[], None], after: Callable[[Any], None]) -> None:
    if megatron_cpu.is_installed():
        megatron_cpu.mend_checkout()
    log: list[str] = []
    print_line = loop.print_rank_last

    def printed(line: str) -> None:
        log.append(line)
        print_line(line)

    loop.print_rank_last = printed
    set_up, train_step = loop.setup_model_and_optimizer, loop.train_step

    def watched_set_up(*args: Any, **kwargs: Any) -> Any:
        before()
        _keep_in_vocabulary(loop.get_args().padded_vocab_size)
        chunks, optimizer, scheduler = set_up(*args, **kwargs)
        training = CheckoutTraining(loop, chunks, optimizer, train_step, log)
        training.draw_weights()
        loop.train_step = training.train_step
        after(training)
        return chunks, optimizer, scheduler

    loop.setup_model_and_optimizer = watched_set_up


def _keep_in_vocabulary(vocab: int) -> None:
    """Keep mock data in the model's vocabulary: those of 0.14 and 0.15 count to 4096 in any."""
    mock = importlib.import_module("megatron.core.datasets.gpt_dataset").MockGPTLowLevelDataset
    item = mock.__getitem__
    mock.__getitem__ = lambda self, index: item(self, index) % vocab


class CheckoutTraining:
    """One rank's part of what a checkout trains, with the attributes of `Training`."""

    captures_graphs = True
    """Its loop captures Transformer Engine's CUDA graphs where its arguments ask for them."""

    def __init__(
        self,
        loop: ModuleType,
        chunks: Sequence[Any],
        optimizer: Any,
        train_step: Callable[..., Any],
        log: Sequence[str],
    ) -> None:
        """Take what `setup_model_and_optimizer` built, and the loop's own optimizer step.

        `log` gets the lines that the loop prints.
        """
        self.chunks = chunks
        self.optimizer = optimizer
        self.config = get_model_config(chunks[0])
        self.was_applied = False
        self.micro_batches: list[int] = []
        """Samples of each forward pass of the last optimizer step, of the first chunk."""
        self.log = log
        self._loop = loop
        self._step = train_step
        self._returned: Any = None
        chunks[0].register_forward_pre_hook(self._see, with_kwargs=True)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """What the loop calls in place of its own step; takes and returns what that does."""
        self.step(*args, **kwargs)  # looked up here: whoever watches has replaced it
        return self._returned

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One optimizer step.

        Returns:
            The loss of all samples, the same on every rank.
        """
        self.micro_batches.clear()
        self._returned = self._step(*args, **kwargs)
        losses, skipped = self._returned[:2]
        self.was_applied = not skipped
        return train_megatron.shared_loss([losses[name] for name in list(losses)[:1]])

    @property
    def update(self) -> Callable[[], Any]:
        found: Callable[[], Any] = self.optimizer.step
        return found

    @update.setter
    def update(self, update: Callable[[], Any]) -> None:
        self.optimizer.step = update

    @property
    def steps_applied(self) -> int:
        return int(self._arguments.curr_iteration) + 1

    @steps_applied.setter
    def steps_applied(self, steps: int) -> None:
        """Begin after so many steps: the data that were seen by then are not seen again."""
        self._arguments.iteration = steps
        self._arguments.consumed_train_samples = steps * self._arguments.global_batch_size

    @property
    def _arguments(self) -> Any:
        return self._loop.get_args()

    def draw_weights(self) -> None:
        """Draw the initial weights as the built-in workload does, alike in every layout.

        Not those of a checkpoint: whoever names one wants its weights.
        """
        if self._arguments.load or self._arguments.pretrained_checkpoint:
            return
        train_megatron.draw_weights(self._loop.unwrap_model(self.chunks), vars(self._arguments))
        self.optimizer.reload_model_params()

    def _see(self, chunk: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Count the samples of a forward pass, by whichever tensor this stage has."""
        for tensor in (*inputs[:1], named.get("labels")):
            if tensor is not None:
                self.micro_batches.append(len(tensor))
                return
        decoder = self._loop.unwrap_model(chunk).decoder
        self.micro_batches.append(decoder.input_tensor.shape[1])  # sequence, samples, hidden


class LiveCheckout(LiveMegatron):
    """Hooks into what a checkout trains; its own log is a second witness."""

    def own_log(self, report: RankReport) -> OwnLog | None:
        """The line of the last step is still to come."""
        logged = read_log(self.engine.log)[1 - len(report.step_times_s) :]
        are_single = [entry.iteration - 1 for entry in logged[1:]] == [
            entry.iteration for entry in logged[:-1]
        ]
        if len(logged) != len(report.step_times_s) - 1 or not are_single or report.steps_skipped:
            return None  # not a line for each step
        return OwnLog(
            n_steps=len(logged),
            step_time_s=statistics.median(entry.time_s for entry in logged),
            measured_step_time_s=statistics.median(report.step_times_s[:-1]),
            loss=logged[-1].loss,
            measured_loss=report.losses[-2],
        )
