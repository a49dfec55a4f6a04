"""Models that one thing happens to at one place: the factory `models:ACTION_in_PLACE`.

Ranks import this, never the suite itself. The last rank is the victim; the others are well.
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autotune.contract import RANKS_DIR, STDERR_FILE, TRIAL_ENV
from tests.chaos.faults import HANGING, LITTER, LOG_BYTES
from tests.faulty_models import VOCAB

PLACES = ("build", "initialize", "first", "forward", "backward", "optimizer")
"""Where: while the model is made, in `deepspeed.initialize`, in the first forward pass, and in the
forward pass, the backward pass and the optimizer step once steps are measured."""
_MEASURED_FROM = 3
"""Forward passes that are surely warm-up."""
_FOREVER_S = 3600
_KEPT = []


class Model(torch.nn.Module):
    """A bigram language model."""

    def __init__(self, act, place):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, 16)
        self.head = torch.nn.Linear(16, VOCAB)
        self.act, self.place, self.n_forwards = act, place, 0
        if place == "optimizer":
            register_optimizer_step_pre_hook(self._before_step)

    def _apply(self, *args, **kwargs):  # DeepSpeed moves the model as soon as it has it
        if self.place == "initialize":
            self.act(None)
        return super()._apply(*args, **kwargs)

    def forward(self, input_ids, labels):
        self.n_forwards += 1
        logits = self.head(self.embed(input_ids))
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        )
        if self.place == "first" or (self.place == "forward" and self._is_measured()):
            return self.act(loss)
        if self.place == "backward" and self._is_measured():
            loss.register_hook(self.act)
        return loss

    def _is_measured(self):
        return self.n_forwards > _MEASURED_FROM

    def _before_step(self, *_):
        if self._is_measured():
            self.act(None)


def _ends_by(number):
    def act(loss):
        if number == signal.SIGSTOP:
            _trial_file(HANGING).touch()
        os.kill(os.getpid(), number)
        return loss

    return act


def raises(loss):
    raise ValueError("this model cannot be trained so")


def turns_nan(loss):
    return loss * float("nan")


def hoards(loss):
    kept = []
    while True:
        kept.append(torch.ones(2**22))


def hangs(loss):
    _trial_file(HANGING).touch()
    time.sleep(_FOREVER_S)


def waits_for_a_collective(loss):
    """One that no other rank takes part in: they are at another one."""
    _trial_file(HANGING).touch()
    alone = torch.zeros(7)
    while True:
        torch.distributed.all_reduce(alone)
        torch.distributed.barrier()


def waits_for_a_lock(loss):
    """Wait for the lock of an extension whose builder was killed: nobody will remove it."""
    from torch.utils.cpp_extension import load  # heavy

    folder = _trial_file("extension")
    folder.mkdir()
    (folder / "lock").touch()
    source = folder / "never.cpp"
    source.touch()
    _trial_file(HANGING).touch()
    load(name="never_built", sources=[str(source)], build_directory=str(folder))


def waits_for_a_compiler(loss):
    """A compiler that waits for its input, in a session of its own as builders start them."""
    command = ["c++", "-x", "c++", "-c", "-", "-o", os.devnull]
    compiler = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    _trial_file(HANGING).touch()
    compiler.wait()


def waits_for_data(loss):
    """After some batches: a data loader whose worker process hangs."""
    from autotune.trial.scripts import train

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            _trial_file(HANGING).touch()
            time.sleep(_FOREVER_S)

    loader = torch.utils.data.DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork")
    batches = train.batches
    train.batches = lambda *told, **asked: itertools.chain(
        itertools.islice(batches(*told, **asked), _MEASURED_FROM), loader
    )
    return loss


def logs(loss):
    """A gigabyte in one line; the file has a hole, which a reader does not notice."""
    sys.stderr.flush()
    os.ftruncate(sys.stderr.fileno(), LOG_BYTES)
    _append(b"RuntimeError: and a last line\n")
    return loss


def logs_really(loss):
    """The same, byte by byte on the disk."""
    chunk = b"error: 0 errors so far; " * 2**16
    for _ in range(LOG_BYTES // len(chunk) + 1):
        _append(chunk)
    return loss


def cuts_its_report(loss):
    """What a rank that is killed while it writes cannot leave, a broken disk can."""
    report = _trial_file(RANKS_DIR) / f"{int(os.environ['RANK']):02d}.json"
    report.write_bytes(report.read_bytes()[:100])
    os.kill(os.getpid(), signal.SIGKILL)


def meets_a_full_disk(loss):
    """Writes a file of its own to where nothing fits."""
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"a cache")


def fills_the_disk(loss):
    """All that is left of the disk that the trial's folder is on."""
    with _trial_file("filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return loss


def litters(loss):
    """Files where Python puts temporary ones."""
    folder = tempfile.mkdtemp(prefix="pymp-")
    Path(folder, "listener").touch()
    _trial_file(LITTER).write_text(folder)
    return loss


def litters_and_is_killed(loss):
    litters(loss)
    os.kill(os.getpid(), signal.SIGKILL)


_ACTIONS = {
    "nothing": lambda loss: loss,
    "sigkill": _ends_by(signal.SIGKILL),
    "sigsegv": _ends_by(signal.SIGSEGV),
    "sigabrt": _ends_by(signal.SIGABRT),
    "sigstop": _ends_by(signal.SIGSTOP),
    "raise": raises,
    "nan": turns_nan,
    "oom": hoards,
    "hang": hangs,
    "collective": waits_for_a_collective,
    "lock": waits_for_a_lock,
    "compiler": waits_for_a_compiler,
    "data": waits_for_data,
    "log": logs,
    "reallog": logs_really,
    "cut": cuts_its_report,
    "fill": fills_the_disk,
    "nospace": meets_a_full_disk,
    "litter": litters,
    "litterandkill": litters_and_is_killed,
}


def make(name):
    """The factory of a name such as `sigkill_in_forward`."""
    action, _, place = name.partition("_in_")
    if action not in _ACTIONS or place not in PLACES:
        raise AttributeError(name)

    def build():
        def act(loss):
            return _ACTIONS[action](loss) if _is_victim() else loss

        if place == "build":
            act(None)
        return Model(act, place)

    return build


__getattr__ = make


def _is_victim():
    """Whether this is the last rank."""
    if "RANK" not in os.environ:  # it is only counted
        return False
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1


def _trial_file(name):
    return Path(os.environ[TRIAL_ENV]) / name


def _append(data):
    with _trial_file(STDERR_FILE).open("ab", buffering=0) as log:
        log.write(data)
