"""The dialects of trainers that start their ranks by themselves: settings for a run of theirs.

`consumers.json` says where each of them has an argument of a layout, what it cannot be told, and
which of its defaults differ; `consumer_fields.json` which fields it knows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from autotune.base.nested import nested
from autotune.base.templates import Templates
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Handout, Launch
from autotune.export.dialects.megatron_bridge import bridge_fields, fields_of
from autotune.export.megatron import (
    MegatronDialect,
    at_places,
    megatron_readme,
    no_setting,
    run_of,
)

_FOLDER = Path(__file__).parents[1]
FIELDS_FILE = _FOLDER / "consumer_fields.json"
"""Consumer -> kind of its settings -> fields, by `python -m tests.record_consumer_fields`."""
CONSUMERS: dict[str, Any] = json.loads((_FOLDER / "consumers.json").read_text("utf-8"))
_FIELDS: dict[str, dict[str, list[str]]] = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))


class SettingsDialect(MegatronDialect):
    """For one of `consumers.json`."""

    launcher = ""
    name: ClassVar[str]
    """Its name there, and of the dialect."""

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        return settings_files(self.name, handout, launch, templates)


class Verl(SettingsDialect):
    """For verl: an SFT run of its Megatron engine, and the actor of its PPO trainer."""

    name = "verl"
    script = "verl_sft.yaml"
    only_launcher = "verl starts its ranks by itself"


class NemoRl(SettingsDialect):
    """For NeMo-RL: the policy of any of its recipes."""

    name = "nemo-rl"
    script = "nemo_rl.yaml"
    only_launcher = "NeMo-RL starts its ranks by itself"


def settings_files(
    name: str, handout: Handout, launch: Launch, templates: Templates
) -> dict[str, str]:
    """The files of a layout for a consumer of `consumers.json`.

    Raises:
        RenderError: It cannot be told an argument.
    """
    consumer, to = CONSUMERS[name], f"--to {name}"
    run = run_of(handout, consumer.get("release", ""))
    found = dict(consumer["defaults"])
    arguments: dict[str, Any] = {
        "accelerator": handout.environment.accelerator,
        "precision": handout.job.precision,
        **run.layout,
        # Consumers take 1 where nobody says it, and no chunks from a layout of stages.
        "expert_tensor_parallel_size": run.row["etp"] or run.row["tp"],
        **({"num_virtual_stages_per_pipeline_rank": run.row["vp"]} if run.row["vp"] > 1 else {}),
        **{"per_node": handout.per_node, "n_nodes": handout.n_nodes},
    }
    if handout.variables:
        arguments["environment_variables"] = dict(handout.variables)
    for argument, value in arguments.items():
        found |= settings_of(to, consumer, _FIELDS[name], argument, value)
    files = {
        file: dump_yaml({**about["head"], **_placed(found, about["places"])})
        for file, about in consumer["files"].items()
    }
    values = {
        "consumer": consumer["name"],
        "recorded": _FIELDS[name]["source"],
        "about": f"megatron/{name}.md.j2",
        "settings": consumer["files"],
        "left_out": {a: why for a, why in consumer["left_out"].items() if a in arguments},
    }
    page = megatron_readme(handout, run, launch, templates, "megatron/settings.md.j2", values)
    return {**handout.exported, **files, **page}


def settings_of(
    to: str, consumer: Mapping[str, Any], known: Mapping[str, Any], argument: str, value: Any
) -> dict[str, Any]:
    """One argument as settings of a consumer, by their places.

    Raises:
        RenderError: It has none for it.
    """
    for refused in (argument, f"{argument}={value}"):
        if refused in consumer["cannot"]:
            raise no_setting(to, argument, consumer["cannot"][refused])
    if argument in consumer["left_out"]:
        return {}
    if argument in consumer["rows"]:
        return at_places(consumer["rows"][argument], value)
    found = {}
    for name, inner in bridge_fields({argument: value}).items():
        section, _, field = name.partition(".")
        kinds = consumer["sections"].get(section, {}).items()
        fits = (place for place, kind in kinds if field in (known.get(kind) or fields_of(kind)))
        found[f"{next(fits, '')}.{field}"] = inner
    if not found or any(place.startswith(".") for place in found):
        raise no_setting(to, argument, "it has no field for that")
    return found


def _placed(settings: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    return nested(
        (list(filter(None, (*places[head].split("."), *rest))), value)
        for (head, *rest), value in ((name.split("."), value) for name, value in settings.items())
        if head in places
    )
