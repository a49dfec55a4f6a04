"""A launch line of whichever engine: where its parts are, its flags, the ranks it starts."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, pairwise
from pathlib import Path, PurePath
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.secrecy import is_secret
from autotune.engines.launches import PROGRAMS, slurm
from autotune.engines.launches.files import text_near
from autotune.engines.launches.shell_words import UNKNOWN
from autotune.job.command import PLACEHOLDER, words_in

GPUS_OF_CONTAINER = "GPUS_OF_CONTAINER"
"""A variable of ours, which a job in YAML gives to the commands of a container."""

TRL = "trl"
"""Its command, which reads YAML with a parser of its own."""

AXOLOTL = "axolotl"
"""Its command, which hands what stands after `--` to the launcher that it starts."""

RANKS_VARIABLE = "NPROC_PER_NODE"
"""Environment variable by which LLaMA-Factory and ms-swift are told the ranks of a node."""

_SCRIPT_COMMANDS = ("llamafactory-cli", AXOLOTL, "swift", TRL)

_TELL_NODES = ("NNODES", "NODE_RANK", "MASTER_ADDR")
"""Variables by which they are told nodes, and which they hand to torchrun."""
OWN_LAUNCHERS = ("llamafactory-cli", "swift")
"""Those that start their ranks themselves, and are told how many by variables."""
_OF_MPI = ("mpirun", "mpiexec")
_COUNTS_OF_MPI = ("-n", "-np", "--n", "--np")
"""Flags of MPI's launchers for the number of ranks."""

_OF_PACKAGES = frozenset(("install", "activate", "--with", "--extra", "--group", "-n", "--name"))
"""Words before the name of a package or an environment: of pip, conda and uv."""

_NEEDS_SETTINGS = re.compile(r"\bcli\b|(?:^|/)(?:axolotl|llamafactory|swift|trl)\b")
"""Programs, and modules of theirs, that say less than the file of settings behind them."""

_GPUS_OF_NODE = ("SKYPILOT_NUM_GPUS_PER_NODE", GPUS_OF_CONTAINER)
"""Variables that hold the GPUs of a node, where a job asks for some."""

_TELLS_NO_RANKS = re.compile(r"(?:\S*/)?python[\d.]*|[\d:]+|-(?!-container-|-task-prolog)\S*")
"""Words before a script that do not tell it its rank: Python, flags and counts."""

_LAUNCHERS: Mapping[str, str] = PROGRAMS["launchers"]
"""Command or module -> the launcher that it is."""

_VALUES_OF_SRUN = frozenset((*PROGRAMS["srun_values"], *PROGRAMS["slurm"]))
_COUNTS = frozenset(PROGRAMS["flags_that_count"])
"""Flags of launchers by which their ranks are counted."""
_HOST = re.compile(r"^[ \t]*([^\s#]+)\s+slots=(\d+)", re.MULTILINE)
"""A line of DeepSpeed's hostfile (launcher/runner.py: _parse_hostfile)."""

_DEVICE_KINDS = ("auto", "gpu", "cpu", "xpu", "npu", "hpu")
"""All devices of a kind, for torchrun (torch/distributed/run.py: determine_local_world_size)."""

_ALL = (-1,)
"""DeepSpeed's launcher's word for all that there are (launcher/runner.py)."""

_COUNT = "a whole number above 0"

_SHOWN = re.compile(
    r"--[A-Za-z][\w.-]*|-[A-Za-z]|[\w./~-]+\.(?:py|sh)|(?:[\w./~-]*/)?python[\d.]*|run"
)
"""Names of flags and of scripts, Python, and `run` of what starts it, such as uv."""

_LONGEST_NUMBER = 8
"""Digits of a number that is shown; a longer one may be a secret."""

_NODES = re.compile(r"(\d+:)?(\d+)")
"""Nodes, or a range of them, for torchrun."""

_REACHING = frozenset(PROGRAMS["flags_that_reach_nodes"])
_STARTS_HERE = re.compile(PROGRAMS["starts_here"])
"""Words before a launcher that start it on no other node."""
_NO_HOST = re.compile(r"^[ \t]*(?!\S+\s+slots=\d)[^#\s].*$", re.MULTILINE)
_LOCAL = re.compile(
    r"(?:localhost|127\.[\d.]+|\$\(hostname[^)]*\)|\$\{?(?:HOSTNAME|SLURMD_NODENAME)\}?)(?::[^@]*)?"
)
"""An address that is another one on each node."""

_BY_SHELL = re.compile(r"[\"']?[$`]")


_OF_DEVICES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "ASCEND_RT_VISIBLE_DEVICES",
)
_DEVICE_NAMES = re.compile(r"(?:\d+|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d+|(?:GPU|MIG)-[\w/-]+))*")


@dataclass(frozen=True, kw_only=True)
class VisibleDevices:
    """The devices of a node that the ranks of a launch see."""

    source: str
    """The variable, the flag or the field."""
    names: str

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names.split(","))


def visible_devices(*places: Mapping[str, Any]) -> VisibleDevices | None:
    """The devices that flags of accelerate, variables or its YAML leave; the first place counts.

    None: all, or only the shell knows. None at all, as `""`, is meant for CPUs.
    """
    for place in places:
        for name in ("gpu_ids", *_OF_DEVICES):
            names = str(place.get(name, "")).replace(" ", "").strip(",")
            if _DEVICE_NAMES.fullmatch(names):
                return VisibleDevices(source=name, names=names)
    return None


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How the ranks of a line come about; None: it does not say."""

    launcher: str = ""
    """As of `LineParts.kind`, or a program that starts its ranks itself; empty: none of these."""
    world: int | None = None
    """All ranks."""
    per_node: int | None = None
    tasks: int | None = None
    """Tasks that `srun` starts, each with the launcher or the script."""
    tasks_per_node: int | None = None
    nodes: int | None = None
    """Nodes on which `srun` starts them."""
    gpus: int | None = None
    """GPUs of a node that the job asks for, or of a task that takes its device by LOCAL_RANK."""
    reaches_nodes: bool = False
    """Whether the launcher starts the ranks of other nodes itself, as DeepSpeed's over ssh."""
    starter: str = ""
    """Command that starts the tasks: `srun`, or `mpirun` for those of MPI."""
    left_nodes: int = 0
    """Nodes of a job of Slurm's on which nothing starts the launcher."""
    idle_nodes: int = 0
    """Nodes of a job of Slurm's that the hostfile of DeepSpeed's launcher leaves out."""
    unmet: str = ""
    """Why the nodes of torchrun do not find one another; empty: nothing is seen to stop them."""
    port: int = 0
    """Port of this machine at which its ranks meet, all of them on it; 0: none, or not known."""
    is_taken: bool = False
    """Whether those of a launch in the background meet there."""
    unlisted: str = ""
    """What a filter of DeepSpeed's launcher names and its hostfile lacks; empty: nothing."""
    lacks_ranks: bool | None = False
    """Whether nothing tells several tasks their ranks in `RANK`, as a launcher would; None: what
    stands before Python may do so, as a wrapper, or a container by enroot's hook for PyTorch."""

    default: str = ""
    """Defaults of variables of which the count is made, in words; empty: it is of none."""

    @property
    def n_nodes(self) -> int:
        """Nodes of its ranks, as far as it says."""
        counted = self.world and self.per_node and self.world // self.per_node
        return max(counted or 1, self.nodes or 1)

    @property
    def by_default(self) -> str:
        """Says which defaults the count is made of; empty: none."""
        return f", with {self.default}: another with {flag('world')}" if self.default else ""

    def of(self, world: int | None, per_node: int | None = None) -> "Ranks":
        """The same with so many ranks."""
        return replace(self, world=world, per_node=per_node)


NO_RANKS = Ranks()
"""Ranks of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class LineParts:
    """Where the parts of a launch line are, as numbers of its words."""

    kind: str
    """The launcher: deepspeed, torchrun or accelerate; empty: none."""
    launcher_at: int
    """The last word of the launcher's own name; -1: there is none."""
    script_at: int
    """The script, or the command that stands for one; the number of words: there is none."""
    launcher_flags: range
    """The words among which the launcher's flags are."""
    script_flags: range
    """The words among which the script's are."""


def parts_of(words: Sequence[str]) -> LineParts:
    """Where the launcher's flags end and the script's begin."""
    named = (at for at, word in enumerate(words) if _launcher(word))
    launcher_at = next((at for at in named if at == 0 or words[at - 1] not in _OF_PACKAGES), -1)
    kind = _launcher(words[launcher_at]) if launcher_at >= 0 else ""
    if kind == "accelerate" and words[launcher_at + 1 : launcher_at + 2] == ["launch"]:
        launcher_at += 1
    # A program of a cluster's own starts what stands behind its `--`.
    begin = launcher_at if "--" in words[: max(0, launcher_at)] else 0
    script_at = next(
        (at for at in range(begin, len(words)) if _is_script(words, at, words[at])), len(words)
    )
    launcher_flags, script_flags = range(begin, script_at), range(script_at + 1, len(words))
    if script_at < len(words) and PurePath(words[script_at]).name == AXOLOTL:
        stop = next((at for at in script_flags if words[at] == "--"), len(words))
        script_flags = range(script_at + 1, stop)
        named = dict(flags_of([words[at] for at in script_flags])).get("launcher", "accelerate")
        kind, launcher_at = _launcher(str(named)), min(stop, len(words) - 1)
        launcher_flags = range(stop + 1, len(words))
    return LineParts(
        kind=kind,
        launcher_at=launcher_at,
        script_at=script_at,
        launcher_flags=launcher_flags,
        script_flags=script_flags,
    )


def is_launch(words: Sequence[str], parts: LineParts) -> bool:
    """Whether a line begins with a launcher or a Python: `-m` before its script names a module."""
    return bool(parts.kind) or PurePath(words[0]).name.startswith("python")


def name_of(command: Sequence[str]) -> str:
    """A word for a command or a shell's text: its script, module, file of settings or program."""
    words = [part for word in command for part in words_in(word)]
    files = words[parts_of(words).script_at :] or ["", *words]
    script = re.sub(r"(\.(cli|__main__))+$", "", PurePath(files[0]).name)
    if script.endswith(".py"):
        return PurePath(script).stem
    if script and not _NEEDS_SETTINGS.search(files[0]):
        return script.rpartition(".")[2]
    settings = (PurePath(word).stem for word in files if word.endswith((".yaml", ".yml")))
    return next(settings, script.rpartition(".")[2] or PurePath(command[0]).name.lstrip("."))


def in_short(words: Sequence[str], folder: Path = Path()) -> str:
    """A line without what may be a secret in it.

    What starts ranks is shown with its own words, its numbers and the files in `folder` that it
    names. Of all else programs, scripts and names of flags are shown.
    """
    parts, shown = parts_of(words), [words[0]]
    is_known = is_launch(words, parts) or _starts(words[0])
    programs = (parts.launcher_at, parts.script_at + 1)
    for at, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        is_module = is_known and at == parts.script_at and words[at - 1] in ("-m", "--module")
        of_program = at in programs and word.isalpha() and _starts(words[at - 1])
        if is_known and equals and _is_plain(name, value, folder):
            shown.append(word)
        elif is_module or of_program or _launcher(word) or _SHOWN.fullmatch(name):
            shown.append(name)
        elif is_known and _is_plain(words[at - 1], word, folder):
            shown.append(word)
        elif shown[-1] != "...":
            shown.append("...")
    return " ".join(shown)


def _starts(word: str) -> bool:
    """Whether a program has subcommands, as `accelerate launch` and `llamafactory-cli train`."""
    return PurePath(word).name in (*_SCRIPT_COMMANDS, "accelerate")


def _is_plain(name: str, value: str, folder: Path) -> bool:
    """Whether a value is no secret: a long flag's short number, or a file that is there."""
    named = PLACEHOLDER.fullmatch(value)
    number = str(named[2]) if named else value
    is_flag = named is not None and named[3] is not None
    is_short = (is_flag or _is_number(number)) and len(number) <= _LONGEST_NUMBER
    is_short &= named is not None or name.startswith("--")
    return not is_secret(name) and (is_short or os.path.isfile(folder / value))


def ranks_of(
    words: Sequence[str],
    *,
    within: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    defaults: Mapping[int, str] | None = None,
    text_of: Callable[[str], str] = text_near,
    beside: Iterable[tuple[Sequence[str], Sequence[str], Mapping[str, str]]] = (),
) -> Ranks:
    """How the ranks of a line come about.

    Args:
        words: The line.
        within: The commands that hand it to a shell as a text.
        variables: Its environment.
        options: What its file asks Slurm for.
        defaults: Number of a word -> the default of a variable that it holds, in words.
        text_of: Reads a file that the line names; empty: it is not there.
        beside: Words, `within` and `variables` of commands in the background.

    Raises:
        JobError: A count in it is none.
    """
    parts, variables = parts_of(words), variables or {}
    before = [*within, *words[: parts.script_at]]
    step = slurm.step_of(before, options or {})
    tasks, tasks_per_node, nodes = slurm.tasks_of(before, step)
    gpus = next((_counted(variables[name]) for name in _GPUS_OF_NODE if name in variables), None)
    ranks = Ranks(
        launcher=parts.kind,
        tasks=tasks,
        tasks_per_node=tasks_per_node,
        nodes=nodes,
        gpus=slurm.gpus_per_node(step) or gpus,
    )
    seen = slurm.gpus_of_task(step) if tasks and "SLURM_GPU_BIND" not in variables else None
    if seen and (parts.kind or "SLURM_LOCALID" in variables.get("LOCAL_RANK", "")):
        ranks = replace(ranks, gpus=seen * (tasks_per_node or 1) if parts.kind else seen)
    name = PurePath(next(iter(words[parts.script_at :]), "")).name
    if parts.kind:
        ahead = [*within, *(one for one in words[: parts.launcher_at] if not _launcher(one))]
        is_here = all(map(_STARTS_HERE.fullmatch, _without_values(["", *ahead])))
        behind = [words[number] for number in parts.launcher_flags if number > parts.launcher_at]
        given, is_read = dict(flags_of(behind)), not any(open_words(behind))
        hosts = [str(given[one]) for one in _REACHING & given.keys() if parts.kind != "torchrun"]
        is_here &= all(map(_LOCAL.fullmatch, hosts))
        in_job = int(slurm.variables_of(step).get("SLURM_NNODES", 1))
        left_nodes = in_job - 1 if is_here else 0
        ranks = replace(ranks, starter=_task_starter(ahead), left_nodes=left_nodes)
        if is_here and is_read and "sbatch" not in ahead:
            port = _port_of(parts.kind, given, variables)
            ports = (ranks_of(its, within=by, variables=given).port for its, by, given in beside)
            ranks = replace(ranks, port=port, is_taken=port > 0 and port in ports)
        if parts.kind == "torchrun" and is_read:
            ranks = replace(ranks, unmet=_unmet(_with_variables(given, variables), ranks))
        hostfile = text_of(str(given.get("hostfile", "")))
        if hostfile and parts.kind == "deepspeed":
            why, hosts_there = _unlisted(hostfile, given), len(_hosts_of(hostfile)) or in_job
            ranks = replace(ranks, idle_nodes=max(0, in_job - hosts_there))
            ranks = replace(ranks, unlisted=why, reaches_nodes="no_ssh" not in given)
            ranks = ranks if why else ranks.of(*_on_hosts(_hosts_of(hostfile), given))
        else:
            ranks = ranks.of(*ranks_by(parts.kind, given, variables, 1 if is_read else None))
        return replace(ranks, default=_defaults_in(words, parts, defaults or {}))
    if name == TRL:  # what it does not know itself, it hands to `accelerate launch`
        ranks = ranks.of(*ranks_by("accelerate", dict(flags_of(words[parts.script_at :]))))
    if ranks.world is not None:
        return ranks
    if name in OWN_LAUNCHERS:
        world, per_node = ranks_in(variables, name)
        ranks = replace(ranks, starter=_task_starter(before))
        of_nodes = {one.lower(): variables[one] for one in _TELL_NODES if one in variables}
        why = "" if "RDZV_ID" in variables else _unmet(of_nodes, ranks)
        ranks = replace(ranks, unmet=_in_words(why, PROGRAMS["variables_for_torchrun"]))
        return replace(ranks, launcher="" if world == 1 else name).of(world, per_node)
    behind = [*dropwhile(lambda word: PurePath(word).name not in ("srun", *_OF_MPI), before)]
    if behind and PurePath(behind[0]).name in _OF_MPI:
        given = dict(pairwise(behind))
        tasks = next((_counted(given[name]) for name in _COUNTS_OF_MPI if name in given), None)
        ranks = replace(ranks, starter="mpirun", tasks=tasks).of(tasks)
    else:
        world = tasks or _counted(variables.get("WORLD_SIZE", ""))
        ranks = replace(ranks, starter="srun" if behind else "").of(world, tasks_per_node)
    if (ranks.tasks or tasks_per_node or 1) == 1 or "RANK" in variables:
        return ranks
    others = _without_values(behind)
    return replace(ranks, lacks_ranks=all(map(_TELLS_NO_RANKS.fullmatch, others)) or None)


def _port_of(kind: str, given: Mapping[str, Any], variables: Mapping[str, str]) -> int:
    """As of `Ranks.port`; torch/distributed/run.py: get_rdzv_endpoint."""
    flags = _with_variables(given, variables) if kind == "torchrun" else given
    known = {"nnodes": 1, "rdzv_backend": "static", "master_port": 29500, **flags}
    is_static = (known["nnodes"], known["rdzv_backend"]) == (1, "static")
    is_one = is_static and {"standalone", "rdzv_endpoint"}.isdisjoint(known)
    port = known["master_port"]
    return port if is_one and type(port) is int and kind in ("torchrun", "deepspeed") else 0


def _task_starter(words: Sequence[str]) -> str:
    """`srun` where it starts what stands behind some words, and none of them sets variables."""
    behind = [*dropwhile(lambda word: PurePath(word).name != "srun", words)]
    others = _without_values(behind)
    is_plain = all(one in ("bash", "sh") or _TELLS_NO_RANKS.fullmatch(one) for one in others)
    return "srun" if behind and is_plain else ""


def _without_values(words: Sequence[str]) -> Iterator[str]:
    """The words behind a first one, without values of Slurm's options and a text for a shell."""
    return (word for before, word in pairwise(words) if before not in _VALUES_OF_SRUN)


def _with_variables(flags: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Flags of torchrun, with the variables that stand for others (argparse_util.py: env)."""
    names = [name for name in variables if name.startswith("PET_")]
    return {name[4:].lower(): typed(variables[name]) for name in names} | dict(flags)


def _unmet(flags: Mapping[str, Any], ranks: Ranks) -> str:
    """Why nodes with the same flags wait for one another until torchrun gives up.

    torch/distributed/run.py: config_from_args, get_rdzv_endpoint; it reads no MASTER_ADDR. Nodes
    that have a number each and no starter may be launchers on one machine.
    """
    named = _NODES.fullmatch(str(flags.get("nnodes")))
    if named is None or int(named[2]) < 2 or UNKNOWN.search(str(flags.get("rdzv_backend"))):
        return ""
    is_static = flags.get("rdzv_backend", "static") == "static"
    place = "master_addr" if is_static else "rdzv_endpoint"
    number, met = str(flags.get("node_rank")), str(flags.get("rdzv_endpoint", flags.get(place)))
    is_on_several = ranks.starter == "srun" and ranks.tasks != 1 and (ranks.nodes or 1) > 1
    is_later = number.strip("0").isdecimal()
    if flags.get("standalone"):
        why = "with --standalone: each node waits at an address of its own"
    elif is_static and "node_rank" not in flags:
        why = "without --rdzv_backend or --node_rank: each node waits as the first one"
    elif is_static and is_on_several and number.isdecimal():
        why = f"with --node_rank {number}, the same number on each node"
    elif (is_on_several or is_later) and _LOCAL.fullmatch(met):
        why = f"with --{place} {met}, which each node takes for itself"
    elif (ranks.starter or not is_static or is_later) and not {place, "rdzv_endpoint"} & {*flags}:
        why = f"without --{place}: each node waits at an address of its own"
    else:
        return ""
    return f"torchrun --nnodes {flags['nnodes']} {why}"


def unmet_machines(line: Mapping[str, Any], file: Mapping[str, Any], ranks: Ranks) -> str:
    """The same of machines of accelerate, whose standard launcher is torchrun.

    accelerate/utils/launch.py: prepare_deepspeed_cmd_env. A file's rdzv_backend and same_network
    do not come through: the defaults of the flags stand before them.
    """
    fields = {**file, **line}
    address = fields.get("main_process_ip")
    flags = {
        "nnodes": fields.get("num_machines"),
        "node_rank": fields.get("machine_rank", 0),
        "rdzv_backend": line.get("rdzv_backend", "static"),
        "master_addr" if line.get("same_network") else "rdzv_endpoint": address,
    }
    if not address:
        why = f"torchrun --nnodes {flags['nnodes']} without --rdzv_endpoint: it asks a host 'None'"
    else:
        why = _unmet(flags, ranks)
    return _in_words(why, PROGRAMS["accelerate_for_torchrun"])


def _in_words(why: str, names: Mapping[str, str]) -> str:
    """What is wrong with flags of torchrun, by other names."""
    for name, other in names.items():
        why = why.replace(name, other)
    return why


def open_words(words: Sequence[str]) -> Iterator[str]:
    """Words of a shell's that are no value of the flag before them."""
    for before, word in zip(["", *words], words, strict=False):
        is_value = before.startswith("--") and "=" not in before
        if _BY_SHELL.match(word) and not (is_value and not word.startswith(("$@", "${@", "$*"))):
            yield word


def _defaults_in(words: Sequence[str], parts: LineParts, defaults: Mapping[int, str]) -> str:
    """The defaults in the values of flags by which ranks are counted."""
    found = list[str]()
    for at in parts.launcher_flags:
        name, equals, _ = words[at].lstrip("-").partition("=")
        if words[at].startswith("-") and name.replace("-", "_") in _COUNTS:
            found.append(defaults.get(at if equals else at + 1, ""))
    return " and ".join(dict.fromkeys(filter(None, found)))


def ranks_in(variables: Mapping[str, str], program: str = "") -> tuple[int | None, int | None]:
    """All ranks, and those of one node, of a program that is told them by variables.

    Without them ms-swift starts one (cli/main.py: use_torchrun), and LLaMA-Factory one a device
    (launcher.py); None: they do not say.
    """
    nodes, per_node = variables.get("NNODES"), _counted(variables.get(RANKS_VARIABLE, ""))
    if RANKS_VARIABLE not in variables and program == "llamafactory-cli":
        per_node = _n_visible(variables)
    elif RANKS_VARIABLE not in variables and program and nodes is None:
        per_node = 1
    return product(_counted(nodes or "1"), per_node), per_node


def _n_visible(variables: Mapping[str, str]) -> int | None:
    visible = visible_devices(variables)
    return None if visible is None else visible.count


def product(nodes: Any, per_node: Any) -> int | None:
    """All ranks of so many nodes; None where one of the two is no number above 0."""
    if type(nodes) is int and type(per_node) is int and nodes > 0 and per_node > 0:
        return nodes * per_node
    return None


def _counted(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _launcher(word: str) -> str:
    return _LAUNCHERS.get(word.rpartition("/")[2], "")


def _is_script(words: Sequence[str], at: int, word: str) -> bool:
    if word.endswith(".py") or word.rpartition("/")[2] in _SCRIPT_COMMANDS:
        return True
    if at == 0 or words[at - 1] not in ("-m", "--module") or _launcher(word):
        return False  # `-m` of srun or numactl is none of a module's
    return any(_launcher(one) or re.match(r"(.*/)?(python|uv$)", one) for one in words[:at])


def flags_of(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, `--name=value` and `--name`; what is no flag is left out."""
    for at, word in enumerate(words):
        if not word.startswith("-") or _is_number(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if equals:
            yield name.replace("-", "_"), typed(value)
        elif following.startswith("-") and not _is_number(following):
            yield name.replace("-", "_"), True
        else:
            yield name.replace("-", "_"), typed(following)


def _is_number(word: str) -> bool:
    return type(typed(word)) in (int, float)


def typed(text: str) -> Any:
    """A number or a truth value where the text is one; YAML reads 1e-5 as text."""
    try:
        return float(text) if any(c in text for c in ".eE") else int(text)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def text_or_none(value: Any) -> str | None:
    """The value, where it is a text."""
    return value if isinstance(value, str) else None


def ranks_by(
    kind: str,
    flags: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    default: int | None = 1,
) -> tuple[int | None, int | None]:
    """All ranks, and those of one node, by a launcher's flags; torchrun's may be variables.

    `default`: a count that no flag gives; None where further flags may.
    """
    if kind == "accelerate":
        # Without num_machines the YAML decides, also one that the line does not name.
        world, nodes = count_in(flags, "num_processes"), count_in(flags, "num_machines")
        return world, (world // nodes if world and nodes and world % nodes == 0 else None)
    if kind == "torchrun":
        flags = _with_variables(flags, variables or {})
        given = "nproc_per_node" if "nproc_per_node" in flags else "nproc"
        per_node = count_in(flags, given, default=default, words=_DEVICE_KINDS)
        if flags.get(given) in ("auto", "gpu"):
            per_node = _n_visible(variables or {})
        if (named := _NODES.fullmatch(str(flags.get("nnodes")))) and named[1]:
            return None, per_node
        nodes = count_in(flags, "nnodes", default=default)
        return (per_node and nodes and per_node * nodes), per_node
    if kind == "deepspeed":
        if isinstance(flags.get("include"), str):
            return _on_hosts({}, {"include": flags["include"]})
        per_node = count_in(flags, "num_gpus", words=_ALL)
        if _COUNTS.isdisjoint(flags):  # launcher/runner.py, main: it takes them for --include
            per_node = _n_visible(variables or {})
        remote = "hostfile" in flags and "num_nodes" not in flags
        nodes = None if remote else count_in(flags, "num_nodes", default=default, words=_ALL)
        return (per_node and nodes and per_node * nodes), per_node
    return None, None


def _on_hosts(hosts: Mapping[str, int], flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """All ranks, and the most of one node, on hosts with so many slots; none: of any hosts.

    launcher/runner.py: parse_resource_filter, apply_num_nodes_and_gpus.
    """
    names = ("include", "exclude", "num_nodes", "num_gpus")
    if any(UNKNOWN.search(str(flags.get(name))) for name in names):
        return None, None
    slots = dict(hosts)
    for name in names[:2]:
        if isinstance(given := flags.get(name), str):
            named = dict(one.partition(":")[::2] for one in given.split("@"))
            counts = {
                host: len({*ids.split(",")}) if ids else hosts.get(host, 0)
                for host, ids in named.items()
            }
            if not all(counts.values()) or (hosts and not named.keys() <= hosts.keys()):
                return None, None  # it refuses them, or knows how many they have
            left = {host: n - counts.get(host, 0) for host, n in slots.items()}
            slots = counts if name == "include" else left
    nodes, per_node = (count_in(flags, name, words=_ALL) for name in names[2:])
    used = [per_node or n for n in slots.values() if n > 0][:nodes]
    return (sum(used), max(used)) if used else (None, None)


def _hosts_of(hostfile: str) -> dict[str, int]:
    """Host -> slots."""
    return {host: int(n) for host, n in _HOST.findall(hostfile)}


def _unlisted(hostfile: str, flags: Mapping[str, Any]) -> str:
    """What `--include` or `--exclude` names and a hostfile lacks, or a line of it that is none.

    Empty: nothing, or the shell fills the hostfile in.
    launcher/runner.py: parse_resource_filter.
    """
    if "$" in hostfile or "`" in hostfile:
        return ""
    if bad := _NO_HOST.search(hostfile):
        return f"{bad[0].strip()!r} in the hostfile is no HOST slots=N"
    hosts, lines = _hosts_of(hostfile), [host for host, _ in _HOST.findall(hostfile)]
    if twice := [host for host in hosts if lines.count(host) > 1]:
        return f"{twice[0]} stands twice in the hostfile"
    for name in ("include", "exclude"):
        given = flags.get(name, "")
        for one in given.split("@") if given and not UNKNOWN.search(given) else ():
            host, _, ids = one.partition(":")
            lacking = [n for n in ids.split(",") if n.isdecimal() and int(n) >= hosts.get(host, 0)]
            if host not in hosts:
                return f"--{name} {given} names {host}, which the hostfile has not"
            if lacking:
                left = f"the hostfile has slots={hosts[host]} for it, from 0 on"
                return f"--{name} {given} names slot {lacking[0]} of {host}: {left}"
    return ""


def count_in(
    flags: Mapping[str, Any], name: str, *, default: int | None = None, words: Sequence[Any] = ()
) -> int | None:
    """A count that the line gives; None where it gives one of the words that stand for one."""
    return count(flags.get(name, default), name=f"{flag('launch')}: --{name}", words=words)


def count(value: Any, *, name: str, words: Sequence[Any] = ()) -> int | None:
    """A number of processes or machines that somebody states.

    Args:
        value: As it stands there; None where it does not.
        name: Where it stands, for the error.
        words: What stands for a number that only the machine knows.

    Returns:
        None where the number is not known: also where the shell fills it in (`$GPUS`).

    Raises:
        JobError: It is no number above 0, and nothing that stands for one.
    """
    if type(value) is int and value > 0:
        return value
    if value is None or (isinstance(value, str) and UNKNOWN.search(value)):
        return None
    if type(value) is not bool and value in words:
        return None
    allowed = ", or ".join(filter(None, (_COUNT, ", ".join(map(str, words)))))
    raise JobError(f"{name}: {value!r} is not {_COUNT}", f"write {allowed}")
