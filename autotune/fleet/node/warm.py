"""Warm starts: templates that have imported what ranks import, and the trials forked from them.

`autotune.trial.warm` is the other end.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from autotune.contract import TRIAL_ENV, TrialSpec
from autotune.fleet.node.processes import NodePart
from autotune.trial.variables import CAPACITY_ENV, CORES_ENV, SUBMITTED_ENV
from autotune.trial.warm import READY, STARTED

MAX_TEMPLATES = 3
"""Most templates at a time: each holds what it imported. One without trials gives way."""

_OF_ONE_TRIAL = (CAPACITY_ENV, CORES_ENV, SUBMITTED_ENV, "TMPDIR", "CUDA_VISIBLE_DEVICES")
"""Variables besides `TRIAL_ENV` that are read after the fork, by a rank or by CUDA's driver; any
other makes another template."""
_OF_TEMPLATES = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Variables with which imports leave no thread behind and do not initialize CUDA: pyarrow's
allocator has a thread, numpy's products one per core, and torch asks NVML for GPUs instead."""
_READ_WITH_THE_CORES = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}
"""Variables that libraries read once, when they are loaded, together with the cores that they may
use: a cold rank is bound to its own cores by then."""
_PATH_MAX_BYTES = 4096

Logs = tuple[IO[bytes], IO[bytes]]
"""A trial's stdout and stderr."""


class WarmTemplates:
    """This node's templates: one for every environment that its warm trials start in."""

    def __init__(self) -> None:
        self._templates: dict[frozenset[tuple[str, str]], _Template] = {}
        self._refused = False
        """True once a template has ended or hung before it was ready: others would, too."""

    def launch(
        self,
        spec: TrialSpec,
        part: NodePart,
        port: int,
        environment: Mapping[str, str],
        logs: Logs,
    ) -> "WarmProcess | None":
        """Fork the launcher and the ranks of a trial's part on this node.

        They meet at a port that the first node has leased. A template that has to start first
        writes into the trial's logs.

        Returns:
            The launcher; None where templates do not work, and the trial has to start cold.

        Raises:
            OSError: No process can be started.
        """
        for key in [key for key, t in self._templates.items() if not t.is_there() or t.is_hanging]:
            template = self._templates.pop(key)
            self._refused |= not template.was_ready()
            template.end()
        if self._refused or _READ_WITH_THE_CORES & environment.keys():
            return None
        of_all = {name: v for name, v in environment.items() if name not in _OF_ONE_TRIAL}
        shared = {**of_all, **_OF_TEMPLATES}
        # Room for the folder of a trial: see `_show_trial` over there.
        shared[TRIAL_ENV] = " " * _PATH_MAX_BYTES
        shared["TMPDIR"] = os.path.dirname(environment["TMPDIR"])
        key = frozenset(shared.items())
        if "CUDA_VISIBLE_DEVICES" in environment:  # a template tries the GPU of its first trial
            shared["CUDA_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
        if key not in self._templates:
            idle = [other for other, t in self._templates.items() if t.is_idle()]
            for other in idle[: max(0, len(self._templates) - MAX_TEMPLATES + 1)]:
                self._templates.pop(other).end()
            self._templates[key] = _Template(shared, spec, logs)
        template = self._templates[key] = self._templates.pop(key)  # the last used comes last
        request = {
            "folder": part.folder,
            "rendezvous": asdict(part.rendezvous(port)),
            "environment": {n: environment[n] for n in _OF_ONE_TRIAL if n in environment},
        }
        return template.launch(request, logs)

    def close(self) -> None:
        for template in self._templates.values():
            template.end()
        self._templates.clear()


class WarmProcess:
    """The launcher of a trial that was forked from a template; polled as a `Popen` is."""

    def __init__(self, template: "_Template", status: int) -> None:
        self._template = template
        self._status = status
        self._answer = b""
        self._code: int | None = None

    def fileno(self) -> int:
        """File descriptor, readable once it has said something or ended; -1: it has ended."""
        return -1 if self._code is not None else self._status

    @property
    def has_template(self) -> bool:
        """True while the process that it is forked from is there."""
        return self._template.is_there()

    @property
    def was_started(self) -> bool:
        """True once the template has come to this trial; from then on `kill_all` finds it."""
        self.poll()
        return bool(self._answer)

    def poll(self) -> int | None:
        """Its exit code once it has ended; negative: it was killed before it could say one."""
        while self._code is None and select.select([self._status], [], [], 0)[0]:
            received = os.read(self._status, 64)
            self._answer += received
            if not received:
                code = self._answer.removeprefix(STARTED)
                self._close(int(code) if code else -signal.SIGKILL)
        return self._code

    def give_up(self, *, hangs: bool) -> None:
        """Give up a trial that was not started: should its turn come, it ends at once.

        If its time is up (`hangs`), the template is not used again.
        """
        if not self.was_started and self._code is None:
            self._close(-signal.SIGKILL)
            self._template.is_hanging |= hangs

    def _close(self, code: int) -> None:
        os.close(self._status)
        self._code = code


class _Template:
    """One process of `autotune.trial.warm`."""

    def __init__(self, environment: dict[str, str], spec: TrialSpec, logs: Logs) -> None:
        self.is_hanging = False
        self._trials: list[WarmProcess] = []
        self._was_ready = False
        self._channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trained = json.dumps(_imported_for(spec.workload.model))
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "autotune.trial.warm", str(child_end.fileno())),
                    *(spec.engine.name, spec.layout.accelerator, trained),
                ],
                stdin=subprocess.DEVNULL,
                stdout=logs[0],
                stderr=logs[1],
                env=environment,
                pass_fds=(child_end.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            child_end.close()

    def launch(self, request: dict[str, Any], logs: Logs) -> WarmProcess:
        """Ask for a trial; if the process ends before it forks it, the trial was never started."""
        ours, child_end = os.pipe()
        try:
            files = [*(log.fileno() for log in logs), child_end]
            with contextlib.suppress(ConnectionError):
                socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(child_end)
        self._trials = [trial for trial in self._trials if trial.poll() is None]
        self._trials.append(WarmProcess(self, ours))
        return self._trials[-1]

    def is_idle(self) -> bool:
        return all(trial.poll() is not None for trial in self._trials)

    def was_ready(self) -> bool:
        """Whether it has ever imported everything."""
        while not self._was_ready and select.select([self._channel], [], [], 0)[0]:
            try:
                received = self._channel.recv(len(READY))
            except ConnectionError:
                continue  # it left requests unread: told once, then comes what it said
            if not received:
                break
            self._was_ready = received == READY
        return self._was_ready

    def is_there(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()


def _imported_for(model: dict[str, Any]) -> dict[str, Any]:
    """Part of a model that decides which modules are imported; see `prebuilt.preload`."""
    made: dict[str, Any] = {"lora": True} if "lora" in model else {}
    if "config" in model:
        made["config"] = {"model_type": model["config"].get("model_type")}
    return made
