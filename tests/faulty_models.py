"""Models that go wrong in one way each, for trials that must end with the right outcome."""

import os
import signal
import time

import torch

VOCAB = 64


class _Tiny(torch.nn.Module):
    """A bigram language model; `_act` goes wrong at a step of the subclass' choice."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, 16)
        self.head = torch.nn.Linear(16, VOCAB)
        self.n_forwards = 0

    def forward(self, input_ids, labels):
        self.n_forwards += 1
        logits = self.head(self.embed(input_ids))
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        )
        return self._act(loss)

    def _act(self, loss):
        return loss


def _on_rank_1():
    return int(os.environ["RANK"]) == 1


class _Hangs(_Tiny):
    def _act(self, loss):
        if _on_rank_1() and self.n_forwards > 3:
            time.sleep(3600)
        return loss


class _IsKilled(_Tiny):
    def _act(self, loss):
        if _on_rank_1() and self.n_forwards > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss


class _TurnsNan(_Tiny):
    def _act(self, loss):
        return loss * float("nan") if _on_rank_1() and self.n_forwards > 3 else loss


class _Raises(_Tiny):
    def _act(self, loss):
        if _on_rank_1():
            raise ValueError("this model cannot be trained so")
        return loss


class _RaisesWhenWatched(_Tiny):
    def _act(self, loss):
        if _on_rank_1() and torch.autograd._profiler_enabled():
            raise ValueError("this model does not like to be watched")
        return loss


class _IsKilledWhenWatched(_Tiny):
    def _act(self, loss):
        if _on_rank_1() and torch.autograd._profiler_enabled():
            os.kill(os.getpid(), signal.SIGKILL)
        return loss


class _Hoards(_Tiny):
    def _act(self, loss):
        self.hoard = getattr(self, "hoard", [])
        self.hoard.append(torch.ones(8 * 2**20))
        return loss


class _HoardsOnDevice(_Tiny):
    def _act(self, loss):
        self.hoard = getattr(self, "hoard", [])
        self.hoard.append(torch.ones(64 * 2**20, device=loss.device))
        return loss


class _LeaksAndForgets(_Tiny):
    """Keeps a little more of every step, and its loss hangs on what no checkpoint holds."""

    def _act(self, loss):
        self.kept = getattr(self, "kept", [])
        self.kept.append(torch.ones(2**18))
        return loss * (1 + 0.001 * self.n_forwards)


def tells_environment():
    """Answers by its error what a rank finds in its environment."""
    raise ValueError(f"MALLOC_TRIM_THRESHOLD_ is {os.environ.get('MALLOC_TRIM_THRESHOLD_')}")


leaks_and_forgets = _LeaksAndForgets
tiny, hangs, is_killed, turns_nan, raises, hoards, hoards_on_device = (
    _Tiny,
    _Hangs,
    _IsKilled,
    _TurnsNan,
    _Raises,
    _Hoards,
    _HoardsOnDevice,
)
raises_when_watched, is_killed_when_watched = _RaisesWhenWatched, _IsKilledWhenWatched
