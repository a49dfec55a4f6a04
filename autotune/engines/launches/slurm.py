"""What a file says to Slurm: nodes, tasks and GPUs, of its `#SBATCH` lines and of `srun`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from autotune.engines.launches import PROGRAMS

_LINE = re.compile(r"^#SBATCH[ \t]+(.+)$", re.MULTILINE)
_NAMES: Mapping[str, str] = PROGRAMS["slurm"]
"""Option -> its long name."""
_SHORT = re.compile(r"(-[NnC])(\S+)")
_LAST_NUMBER = re.compile(r"(\d+)(?:\(.*\))?$")


def options_of(text: str) -> dict[str, str]:
    """The options of the `#SBATCH` lines of a file, by their long names."""
    found: dict[str, str] = {}
    for line in _LINE.findall(text):
        found |= dict(_options(line.partition(" #")[0].split()))
    return found


def variables_of(options: Mapping[str, str]) -> dict[str, str]:
    """Variables that Slurm sets for a job with such options."""
    counts, gpus = {name: _count(text) for name, text in options.items()}, gpus_per_node(options)
    variables = {
        "SLURM_NNODES": counts.get("nodes"),
        "SLURM_JOB_NUM_NODES": counts.get("nodes"),
        "SLURM_NTASKS_PER_NODE": counts.get("ntasks-per-node"),
        "SLURM_NTASKS": _tasks(options)[0],
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_GPUS_ON_NODE": gpus,
    }
    return {name: str(value) for name, value in variables.items() if value}


def step_of(words: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """The options of a job, with those of `sbatch` and `srun` among some words."""
    return {**options, **dict(_options([*_behind("sbatch", words), *_behind("srun", words)]))}


def tasks_of(words: Sequence[str], step: Mapping[str, str]) -> tuple[int | None, ...]:
    """Tasks that `srun` among some words starts, all and by node, and nodes; None: unsaid."""
    is_srun = any(PurePath(word).name == "srun" for word in words)
    return (*_tasks(step), _count(step.get("nodes", ""))) if is_srun else (None, None, None)


def gpus_per_node(step: Mapping[str, str]) -> int | None:
    """GPUs that are asked for on each node; None: nothing says it."""
    return _count(step.get("gpus-per-node", "")) or _gpus_of(step.get("gres", ""))


def gpus_of_task(step: Mapping[str, str]) -> int | None:
    """GPUs that a task of `srun` sees; None: all of its node, or nothing says it."""
    return None if "gpu-bind" in step else _count(step.get("gpus-per-task", ""))


def _tasks(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    nodes, tasks = _count(options.get("nodes", "")), _count(options.get("ntasks", ""))
    per_node = _count(options.get("ntasks-per-node", ""))
    if tasks:  # the number of each node is then a limit
        return tasks, -(-tasks // nodes) if nodes else per_node
    if "ntasks" in options:  # only the shell knows it
        return None, None
    return (nodes * per_node, per_node) if nodes and per_node else (None, per_node)


def _behind(program: str, words: Sequence[str]) -> Sequence[str]:
    """The words behind a program's name; empty: it is not among them."""
    names = [PurePath(word).name for word in words]
    return words[names.index(program) + 1 :] if program in names else ()


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options among some words, those of other programs included: Slurm's own names tell them."""
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        short = _SHORT.fullmatch(word)
        if short is not None:
            yield _NAMES[short[1]], short[2]
        elif name in _NAMES and equals:
            yield _NAMES[name], value
        elif name in _NAMES and at + 1 < len(words):
            at += 1
            yield _NAMES[name], words[at]
        at += 1


def _gpus_of(gres: str) -> int | None:
    """GPUs among the resources of a node: `gpu:a100:8,nvme:1` asks for 8."""
    for one in gres.strip("\"'").split(","):
        if one.partition(":")[0] == "gpu":
            return _count(one) if ":" in one else 1
    return None


def _count(text: str) -> int | None:
    """`4`, `gpu:a100:8` and `8(x2)` end with a count."""
    found = _LAST_NUMBER.search(text.strip("\"'"))
    return int(found[1]) if found else None
