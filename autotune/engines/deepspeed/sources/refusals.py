"""What a reader or a launcher refuses, or does not follow, before DeepSpeed sees a file."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

from autotune.base.data import table_beside
from autotune.base.flags import flag
from autotune.base.names import misspelt
from autotune.base.nested import look_up
from autotune.base.terms import filled
from autotune.base.text import named
from autotune.base.user_text import read_text
from autotune.devices.hardware import version_of
from autotune.engines.deepspeed.ds_config_text import no_json
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO, shown
from autotune.engines.deepspeed.sources import openrlhf
from autotune.engines.deepspeed.sources.accelerate import ACCELERATE_ALONE
from autotune.engines.deepspeed.sources.consumers import Consumer, is_known_value
from autotune.engines.deepspeed.sources.file_rules import violation_of, violations_of
from autotune.engines.deepspeed.sources.launch import MEGATRON, LaunchLine
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.deepspeed.sources.reading import (
    COMMANDS,
    SYNONYMS,
    Source,
    parsed,
    placeholders,
    trainer_of,
)
from autotune.engines.deepspeed.sources.script import (
    brings_cpu_optimizer,
    clips_to,
    device_map,
    hands_optimizer,
    loads_first,
    prepares_no_loader,
    reads_name,
    taken_names,
)
from autotune.engines.deepspeed.sources.training import defaults_of
from autotune.engines.launches.devices import Misfit, misfit, misfits
from autotune.engines.launches.line import TRL, Ranks, VisibleDevices, typed
from autotune.engines.releases import is_at_least
from autotune.space.rule import Consequence, NotJudged, UnknownFactError, Violation, holds

_STAGE = "zero_optimization.stage"
_REFUSED: Mapping[str, Sequence[Mapping[str, str]]] = PROGRAMS["trainer"]["refused"]
"""Program -> arguments that it refuses: a condition (`holds`), words, and since when alone."""
MADE: Mapping[str, Sequence[str]] = PROGRAMS["trainer"]["made"]
"""Program with defaults of its own -> arguments of Trainer's that it makes of others."""
_OWN_DEFAULTS: Mapping[str, Mapping[str, Any]] = PROGRAMS["trainer"]["readers_defaults"]
_NAMES: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "argument_names.json")
"""Program -> names of its arguments, in all releases, and what it does with another one."""
_PARSED = {"transformers": "Trainer", "trl": "TRL"}
"""Package of classes that a script's parser takes -> whose names these have."""
_SAME_MEANING: Sequence[Sequence[str]] = PROGRAMS["trainer"]["same_meaning"]
"""Names of one setting in the programs that hand arguments to Trainer."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps that spread a model over all devices that a rank sees."""
_SAMPLERS, _SAMPLING = "TRL's GRPO or RLOO", ("GRPOConfig", "RLOOConfig")
_PIPELINES = ("pretrain_gpt.py", "finetune_llama.py")
"""Scripts of Megatron-DeepSpeed that make a PipelineModule also of one stage."""
_OF_FILES: Mapping[str, str] = PROGRAMS["trainer"]["files_that_train"]
"""Program -> a condition (`holds`) of the files with which it trains."""
ASK_TO_TRAIN = frozenset(PROGRAMS["trainer"]["ask_for_do_train"])
"""Programs, and what nobody names, that train only where `do_train` is given."""


def refusals(source: Source) -> Iterator[Violation]:
    """What a reader does with a configuration that DeepSpeed does not see."""
    consumer, reader, arguments = source.consumer, source.reader, source.arguments
    is_deepspeeds = consumer is Consumer.DEEPSPEED and not reader
    is_named_yaml = source.syntax == "yaml" and source.is_named
    is_hjson = source.syntax == "hjson" and not _is_json_filled_in(source)
    if not is_deepspeeds and (is_hjson or is_named_yaml):
        rule = f"file.{source.syntax}"
        line, why = no_json(source.text)
        at = (f"@{line}",) * is_hjson
        yield violation_of(rule, *at, path=source.path, reader=reader or consumer, why=why)
    yield from _misspelt(source)
    yield from (one for one in program_refusals(source) if isinstance(one, Violation))
    is_trainers = consumer is Consumer.TRAINER
    is_both = arguments.get("fp16") is True and arguments.get("bf16") is True
    if is_both and (is_trainers or (consumer is Consumer.ACCELERATE and source.script is None)):
        yield violation_of("huggingface.two_precisions", consequence=_surely(is_trainers))
    if consumer is Consumer.TRAINER:
        if not reader:
            yield from _texts(source)
        for name in ACCELERATE_ALONE:
            if name in source.arguments and name not in source.line.arguments:
                yield violation_of("huggingface.accelerates_field", name=name)
    norm = clips_to(source.script) if consumer is Consumer.ACCELERATE and source.script else None
    given = source.config.get("gradient_clipping") or 0
    clipping = 1.0 if given == AUTO else given  # _prepare_deepspeed fills it in
    if norm is not None and norm != clipping:
        script = source.line.script
        yield violation_of("accelerate.clips_by_file", script=script, norm=norm, clipping=clipping)
    yield from _of_scripts(source)
    if reader == MEGATRON:
        yield from violations_of(reader, partial(_of_megatron, source))


def _of_scripts(source: Source) -> Iterator[Violation]:
    """What a script that goes through accelerate does at the wrong time."""
    script, config = source.script, source.config
    if script is None or source.consumer is Consumer.DEEPSPEED:
        return
    if look_up(config, _STAGE) == 3 and (kind := loads_first(script)):
        yield violation_of("huggingface.loaded_first", script=script.name, kind=kind)
    known = None if source.line.open_words else source.arguments
    loaded = device_map(script, known) if (source.world or 1) > 1 else None
    is_trainers = source.consumer is Consumer.TRAINER
    if loaded and loaded[0] in _SPREAD and not (is_trainers and look_up(config, _STAGE) == 3):
        yield violation_of("accelerate.device_map", script=script.name, value=loaded[0])
    if is_trainers:
        return
    is_open = config.get(BATCH_KEYS[0]) == AUTO and not reads_name(script, BATCH_KEYS[0])
    if is_open and prepares_no_loader(script):
        yield violation_of("accelerate.no_loader", script=script.name)
    if "optimizer" in config and hands_optimizer(script, "prepare"):
        yield violation_of("accelerate.two_optimizers", script=script.name)


def _of_megatron(source: Source, name: str) -> Any:
    """A flag of Megatron-DeepSpeed's line, or what its configuration and its ranks say."""
    value = {
        **source.config,
        "stage": look_up(source.config, _STAGE),
        "offload": look_up(source.config, "zero_optimization.offload_optimizer.device"),
        "moe_expert_parallel_size": 1,
        "ranks": source.line.ranks.world,
        "stages": source.layout.pp,
        "file": source.path.name,
        "builds_pipeline": PurePath(source.line.script).name in _PIPELINES,
        **source.arguments,
    }.get(name)
    if (name == "ranks" and value is None) or (isinstance(value, str) and "$" in value):
        raise UnknownFactError(name)
    return value


def of_stage(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """What Trainer and transformers refuse at a stage, and a section that neither hands on."""
    stage, given, script = look_up(config, _STAGE) or 0, source.arguments, source.script
    program = PurePath(source.line.script).name
    reader = source.reader or trainer_of(given) or ("" if program.endswith(".py") else program)
    evaluates = next((name for name in ("do_eval", "do_predict") if given.get(name) is True), "")
    asks = reader in ASK_TO_TRAIN if reader or script is None else reads_name(script, "do_train")
    is_sure = script or source.reader or reader == program != ""
    if evaluates and stage in (0, 1, 2) and not given.get("do_train") and asks:
        rule, surely = "huggingface.evaluation_alone", _surely(bool(is_sure))
        yield violation_of(rule, consequence=surely, name=evaluates, stage=stage)
    known = None if source.line.open_words else given
    loaded = device_map(script, known) if script is not None and stage == 3 else None
    if script is not None and loaded is not None:
        value, is_refused = loaded
        rule, surely = "huggingface.device_map", _surely(is_refused)
        yield violation_of(rule, consequence=surely, script=script.name, value=value)
    section = config.get("activation_checkpointing")
    on = [name for name, value in section.items() if value] if isinstance(section, Mapping) else []
    if on:
        yield violation_of("huggingface.checkpointing_unread", names=named(on))


def _surely(is_sure: bool) -> Consequence:
    return "raised" if is_sure else "may_raise"


def brings_for_cpu(source: Source) -> bool | None:
    """Whether the script's own optimizer is one for the CPU; None: nobody here knows."""
    if source.consumer is not Consumer.DEEPSPEED or source.reader == MEGATRON:
        return True  # `huggingface` and the reader's own rule tell of theirs
    return None if source.script is None else brings_cpu_optimizer(source.script)


def _is_json_filled_in(source: Source) -> bool:
    """Whether the text is plain JSON once somebody fills its placeholders in."""
    words = [str(look_up(source.config, ".".join(at))) for at in placeholders(source.config)]
    text = source.text
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word.rstrip(" ,"), "0")
    with contextlib.suppress(ValueError, RecursionError):
        return bool(words and json.loads(text))
    return False


def program_refusals(source: Source) -> Iterator[Violation | NotJudged]:
    """Arguments that Trainer or the program around it refuses, and what of them is not known."""
    if source.consumer is not Consumer.TRAINER and source.reader != openrlhf.READER:
        return
    reader = source.reader or trainer_of(source.arguments, source.line.started)
    samples = _compares_samples(source)  # those of `MADE` check TRL's arguments themselves
    trls = ("TRL", *[_SAMPLERS] * (samples is not False)) * (reader not in MADE)
    others = (*trls, "Trainer") if source.consumer is Consumer.TRAINER else ()
    programs = [name for name in (reader, *others) if name in _REFUSED]
    for program, row in ((one, row) for one in dict.fromkeys(programs) for row in _REFUSED[one]):
        value_of = partial(_argument, source, reader, program)
        name = filled(row.get("name") or row["when"].split()[0].partition("=")[0], value_of)
        is_deepspeeds = "" if "beside" in row else " deepspeed"
        try:
            if not holds(row["when"] + is_deepspeeds, value_of):
                continue
        except UnknownFactError as error:
            if source.arguments.get(name) and str(error) not in ("deepspeed", _STAGE, name):
                counts = {"world": ("the number of ranks", f"give it with {flag('world')}")}
                other, why = counts.get(str(error), (error, source.arguments_unread))
                yield NotJudged(what=f"{name} beside {other}", why=why)
            continue
        since = f" since {row['since']}" if "since" in row else ""
        is_sure = bool(row.get("surely", not since))
        yield violation_of(
            "file.program_refuses",
            name,
            consequence=_surely(is_sure and _is_surely(program, source, samples)),
            name=name,
            value=shown(name, value_of(name)),
            reader=program + since,
            beside=filled(row.get("beside", "DeepSpeed"), value_of),
            way=filled(row.get("way", "DeepSpeed"), value_of),
        )


def _is_surely(program: str, source: Source, samples: bool | None) -> bool:
    """Whether a program is certain to be who takes the arguments.

    A script may have some of the same names, unless its code speaks of the program.
    """
    if program not in MADE:
        return program != _SAMPLERS or bool(samples)
    line, word = source.line, program.lower().removeprefix("ms-").replace("-", "")
    is_named = source.script is not None and word in read_text(source.script).lower()
    return line.started in COMMANDS or not line.script or line.reader == program or is_named


def is_programs(data: Mapping[str, Any], reader: str) -> bool:
    """Whether a file of arguments, which nothing starts, is surely a training by a program.

    It says what is trained, and has no name that is unlike all of the program's.
    """
    names = _NAMES.get(reader, {"names": data})["names"]
    is_meant = reader in _OF_FILES and holds(_OF_FILES[reader], data.get)
    return is_meant and all(name in names or misspelt(name, names) for name in data)


def _compares_samples(source: Source) -> bool | None:
    """Whether TRL's GRPO or RLOO trains; None: nothing tells."""
    line, script = source.line, source.script
    if PurePath(line.script).name == TRL:
        return f"{line.command.upper()}Config" in _SAMPLING
    return None if script is None else any(reads_name(script, one) for one in _SAMPLING)


def _misspelt(source: Source) -> Iterator[Violation]:
    """Arguments that a program or the parsers of a script do not have; newer releases may.

    A name of another program's is one that means the same here.
    """
    line, reader = source.line, source.reader or trainer_of(source.arguments, source.line.started)
    taken = None if source.script is None or line.reader else taken_names(source.script)
    # A script of another name may be a fork, with arguments of its own.
    is_whole = line.started in COMMANDS or source.arguments_path is not None
    code = "" if source.script is None else read_text(source.script)
    if taken is not None:
        (names, packages), is_whole, reader = taken, True, PurePath(line.script).name
        of = [_NAMES[_PARSED[one]] for one in sorted(packages)]
        known: Mapping[str, Any] = {"consequence": "raised"}
        given, code = {*line.arguments}, ""
        names = names.union(*(one["names"] for one in of))
        gone = _NAMES["Trainer"]["gone"] if of else {}
    elif reader in _NAMES and (reader != "TRL" or line.started in COMMANDS):
        known, of, gone = _NAMES[reader], [_NAMES[reader]], {}
        names = frozenset([*known["names"], *PROGRAMS["trainer"]["handed_on"].get(reader, ())])
        given = {*line.arguments, *_written(source)}
        given |= source.arguments.keys() - SYNONYMS.values()
    else:
        return
    if known.get("unless") in line.set:
        return
    for name in sorted(given - (names - gone.keys())):
        meant = next((one for one in _SAME_MEANING if name in one), ())
        near = next((one for one in meant if one in names and one != name), "")
        near = near or misspelt(name.removeprefix("--"), names - {name} - gone.keys()) or ""
        # argparse takes the beginning of one name, and transformers' parser a `no_` before it
        begun = [one for one in names - gone.keys() if one.startswith(name)]
        is_short = name in line.arguments and len(begun) == 1 and name not in gone
        is_word = name.removeprefix("--").isidentifier()
        if is_short or not is_word or name in code or name.removeprefix("no_") in names - {name}:
            continue
        near, others = ("", near * bool(meant)) if near in given else (near, "")
        facts: dict[str, Any] = {"name": name, "reader": reader, "fix": f"leave {name} out"}
        guess = f": did you mean {near}?" * bool(near) + f": {others} is given" * bool(others)
        facts |= {"consequence": known["consequence"] if guess or not of else "may_raise"}
        facts["guess"] = guess or " in any release that is known" * bool(of)
        if name in gone:
            there = version_of("transformers") or "0"
            facts["consequence"] = _surely(is_at_least(there, gone[name]))
            facts["guess"] = f" with transformers {gone[name]} and later{guess}"
        if name in PROGRAMS["trainer"]["of_forks"].get(reader, ()):
            facts |= {"consequence": "may_raise", "guess": ", but of a fork that has its command"}
        elif near:
            facts["fix"] = f"write {near}=..." if name.startswith("-") else f"rename it to {near}"
        if guess or name in gone or (is_whole and known["consequence"] == "raised"):
            yield violation_of("file.misspelt_argument", **facts)


def _written(source: Source) -> frozenset[str]:
    path = source.arguments_path
    data: Any = {} if path is None else parsed(read_text(path), path).data
    data = look_up(data, ".".join(source.arguments_at)) if source.arguments_at else data
    return frozenset(map(str, data)) - {"deepspeed"} if isinstance(data, Mapping) else frozenset()


def _argument(source: Source, reader: str, program: str, name: str) -> Any:
    """An argument, its default where nobody gives it, a key of the configuration, or the ranks.

    A program's own checks come before what it makes of its arguments for Trainer.

    Raises:
        UnknownFactError: Nobody knows it.
    """
    if source.has_deepspeed is None and name in ("deepspeed", _STAGE):
        raise UnknownFactError(name)
    # DeepSpeed's launcher sets the devices itself.
    visible = None if source.line.kind == "deepspeed" else source.line.visible
    fsdp = source.fsdp
    known = {
        _STAGE: (look_up(source.config, _STAGE) or 0) if source.has_deepspeed else None,
        "deepspeed": source.has_deepspeed,
        "fsdp": source.arguments.get("fsdp") or fsdp,
        "per_node": source.per_node or source.line.ranks.world,
        "script": re.split("[./]", source.line.script.removesuffix(".py"))[-1],
        "visible": visible and visible.source,
        "visible_devices": visible and visible.count,
        **{f"fsdp.{one}": setting for one, setting in fsdp.items()},
    }
    if name in known or name.startswith("fsdp."):
        return known.get(name)
    value = {
        **{one: typed(given) for one, given in source.line.set.items() if one.isupper()},
        "world": source.world,
        "eval_strategy": source.arguments.get("evaluation_strategy"),
        **source.arguments,
    }.get(name, look_up({**source.config, **source.arguments}, name) if "." in name else None)
    is_auto = value == AUTO and not name.endswith("device_map")
    is_open = isinstance(value, str) and (is_auto or "$" in value)
    own_defaults, is_own = source.own_defaults, program == reader in MADE
    is_default = is_own or name not in MADE.get(reader, (name,))
    is_default |= own_defaults is not None and name not in own_defaults
    known = _NAMES.get(reader, {"names": source.line.arguments})["names"]
    is_short = any(map(name.startswith, source.line.arguments.keys() - known))  # argparse takes it
    if is_open or (value is None and (name == "world" or is_short or not is_default)):
        raise UnknownFactError(name)
    defaults = _OWN_DEFAULTS.get(reader, {}) if is_own else defaults_of(reader)
    return defaults.get(name) if value is None else value


def _texts(source: Source) -> Iterator[Violation]:
    """Numbers that stand as text in a file that HfArgumentParser reads."""
    for name, text in source.texts.items():
        number = source.arguments[name]
        meant = int(number) if type(number) is float and number.is_integer() else number
        if not (is_known_value(name, number) or is_known_value(name, meant)):
            continue
        has_exponent = "e" in text.lower()
        why = " (YAML reads an exponent in a number with a point and a sign alone)"
        why, number = why if has_exponent else "", _as_number(meant, has_exponent)
        rule = "huggingface.number_as_text"
        yield violation_of(rule, name=name, text=text, why=why, number=number)


def _as_number(number: float, has_exponent: bool) -> str:
    """A number as YAML 1.1 knows it."""
    if type(number) is int or not has_exponent:
        return repr(number)
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{float(mantissa)!r}e{exponent}"


_FILTERS = ("include", "exclude")
_COUNTS = ("num_gpus", "num_nodes")
"""Flags of DeepSpeed's launcher that name devices, and that count them."""


def device_violations(
    ranks: Ranks, line: LaunchLine, visible: VisibleDevices | None
) -> Iterator[Violation]:
    """What a launcher does with devices and ranks that are named and counted in two places.

    Args:
        ranks: How the ranks come about.
        line: What starts them.
        visible: What variables or accelerate leave visible.
    """
    flags, is_deepspeeds = line.launcher_flags, ranks.launcher == "deepspeed"
    for one in misfits(ranks, visible):
        if not is_deepspeeds or visible is None or one.rule != "visible_devices" or ranks.unlisted:
            yield of_misfit(one)
    if not is_deepspeeds:
        return
    # launcher/runner.py, main: it takes the variable away before it starts ranks.
    filters, counts = ([name for name in names if name in flags] for names in (_FILTERS, _COUNTS))
    if filters and (others := counts + filters[1:]):
        yield of_misfit(misfit("named_and_counted", named=filters[0], counted=others[0]))
    elif visible is not None and (filters or "num_gpus" in flags):
        row, first = "named_twice" if filters else "counted_beside", (filters or counts)[0]
        seen, names = visible.source, visible.names
        yield of_misfit(misfit(row, "ignored", flag=first, source=seen, names=names))


def of_misfit(one: Misfit) -> Violation:
    """What does not fit on a node, or between nodes, as a violation of the file."""
    rule = f"file.{one.rule}"
    return violation_of(rule, consequence=one.consequence, problem=one.problem, fix=one.fix)
