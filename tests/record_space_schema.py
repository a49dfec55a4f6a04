"""The JSON schema of a search space's YAML, for editors.

python -m tests.record_space_schema [ENGINE] > search_spaces/schema.json
"""

import json
import sys
from typing import Any

from pydantic import BaseModel

from autotune import DEFAULT_ENGINE
from autotune.space.knob import Catalogue, Knob, knobs_of
from autotune.space.space_file import MAX_VALUES_PER_KNOB, Guarded, PowersOfTwo, Range, SpaceFile


def schema(knobs: Catalogue) -> dict[str, Any]:
    """The JSON schema of a space file: the border's models and an engine's knobs."""
    outer = SpaceFile.model_json_schema()
    outer["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    outer["properties"]["knobs"] = {
        "type": "object",
        "description": outer["properties"]["knobs"]["description"],
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {name: _knob_schema(knob) for name, knob in knobs.items()},
    }
    when = {
        "type": "object",
        "description": Guarded.model_json_schema()["properties"]["when"]["description"],
        "additionalProperties": False,
        "properties": {name: _plain_schema(knob) for name, knob in knobs.items()},
    }
    outer["$defs"] = {
        "powers_of_two": _inlined(PowersOfTwo),
        "range": _inlined(Range),
        "when": when,
    }
    return outer


def schema_text(engine: str = DEFAULT_ENGINE) -> str:
    """The text of `search_spaces/schema.json`, or of the schema of another engine's spaces."""
    return json.dumps(schema(knobs_of(engine)), indent=2) + "\n"


def _scalar_schema(knob: Knob) -> dict[str, Any]:
    if knob.kind == "bool":
        return {"type": "boolean"}
    if knob.choices and knob.pattern:
        return {"anyOf": [{"enum": list(knob.choices)}, _text_schema(knob.pattern)]}
    if knob.choices:
        return {"enum": list(knob.choices)}
    if knob.kind == "float":
        return {"type": "number", "minimum": knob.minimum, "maximum": knob.maximum}
    whole = {"type": "integer", "minimum": knob.minimum, "maximum": knob.maximum}
    return {"anyOf": [whole, _text_schema(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]+")]}


def _text_schema(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})$"}


def _plain_schema(knob: Knob) -> dict[str, Any]:
    scalar = _scalar_schema(knob)
    several = {"type": "array", "items": scalar, "minItems": 1, "uniqueItems": True}
    return {"anyOf": [scalar, several | {"maxItems": MAX_VALUES_PER_KNOB}]}


def _knob_schema(knob: Knob) -> dict[str, Any]:
    forms = _plain_schema(knob)["anyOf"]
    if knob.kind == "int":
        forms += [{"$ref": "#/$defs/powers_of_two"}, {"$ref": "#/$defs/range"}]
    guarded = {
        "type": "object",
        "additionalProperties": False,
        "required": ["values"],
        "properties": {"values": {"anyOf": forms}, "when": {"$ref": "#/$defs/when"}},
    }
    return {"description": f"{knob.help}; acts {knob.scope}", "anyOf": [*forms, guarded]}


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    text = model.model_json_schema()
    return {key: value for key, value in text.items() if key != "title"}


if __name__ == "__main__":
    print(schema_text(*sys.argv[1:]), end="")
