"""Every knob as `docs/knobs.md` has it: `python -m autotune.report.knobs_page > docs/knobs.md`."""

import sys
from collections.abc import Sequence

from autotune import DEFAULT_ENGINE
from autotune.contract import KnobValue
from autotune.engines.base import installed_engines
from autotune.record.tried import RecordedRun, is_tried, never_run, recorded
from autotune.space.candidate import format_value
from autotune.space.knob import Knob, knobs_of, never


def documentation() -> str:
    """The whole page."""
    lines = [_INTRODUCTION, *map(_row, recorded()), ""]
    lines += _entries(DEFAULT_ENGINE)
    for plugin in installed_engines():
        if plugin.is_driven and plugin.name != DEFAULT_ENGINE:
            lines.append(_OF_ANOTHER.replace("ENGINE", plugin.name.capitalize()))
            lines += [*map(_row, recorded(plugin.name)), ""]
            lines += _entries(plugin.name)
    return "\n".join(lines)


def _entries(engine: str) -> list[str]:
    """Sections of an engine's knobs."""
    knobs, runs, found = knobs_of(engine).values(), recorded(engine), []
    for group, title in _GROUPS.items():
        entries = [_entry(knob, runs) for knob in knobs if knob.group == group]
        found += [f"## {title}\n", *entries] if entries else []
    return found


def tried_on(knob: Knob, runs: Sequence[RecordedRun]) -> str:
    """The honest limit of a knob, in a line: `2 CPU ranks (none, cpu); **never on a GPU**`."""
    if knob.acts is never:
        return "nothing: there is nothing to see"
    values: dict[str, list[KnobValue]] = {}
    for run in runs:
        known = values.setdefault(run.hardware, [])
        known += [value for value in run.trained.get(knob.name, ()) if value not in known]
    told = [f"{hardware} ({_listed(found)})" for hardware, found in values.items() if found]
    if not told:
        return "**nothing yet**"
    missing = [value for value in never_run(knob, runs) if value != knob.default]
    if missing:
        told.append(f"**never: {_listed(missing)}**")
    if not _is_on_gpu(knob, runs):
        told.append("**never on a GPU**")
    return "; ".join(told)


def _is_on_gpu(knob: Knob, runs: Sequence[RecordedRun]) -> bool:
    values = (value for run in runs for value in run.trained.get(knob.name, ()))
    return any(v != knob.default and is_tried(knob, v, "cuda", runs) for v in values)


def _row(run: RecordedRun) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return f"| {run.date} | {run.hardware} | {run.device_name} | {versions} |"


def _entry(knob: Knob, runs: Sequence[RecordedRun]) -> str:
    default = format_value(knob.default)
    for (other, where), value in knob.default_when.items():
        default += f"; {format_value(value)} at {other.rpartition('.')[2]} {format_value(where)}"
    facts = {
        "values": knob.values_in_words,
        "default": default,
        "acts": knob.scope,
        "changes training": knob.changes_training,
        "needs CUDA": _listed(knob.needs_cuda),
        "releases": f"before {knob.gone_since}" if knob.gone_since else "",
        "tried on": tried_on(knob, runs),
        "decided in": f"`{knob.source}`",
    }
    told = "\n".join(f"- {name}: {text}" for name, text in facts.items() if text)
    return f"### `{knob.name}`\n\n{knob.help[0].upper()}{knob.help[1:]}.\n\n{told}\n"


def _listed(values: Sequence[KnobValue]) -> str:
    return ", ".join(map(format_value, values))


_GROUPS = {
    "layout": "Layout",
    "zero": "ZeRO",
    "offload": "Offload",
    "zeropp": "ZeRO++",
    "precision": "Number formats",
    "sharding": "Sharding",
    "memory": "Recomputation and offload",
    "overlap": "Overlap",
    "compute": "Computation",
    "compression": "Compression in older releases",
    "process": "Processes",
    "communication": "Communication",
}

_INTRODUCTION = """# Knobs

Every knob: what it does, its values, where it acts, and on what it was really tried. To search
some of them, write a [space](spaces.md):

```yaml
name: mine
description: Two knobs.
knobs:
  zero.stage: [1, 2, 3]
  micro_batch: {powers_of_two: [1, 16]}
```

How to read an entry:

- **values**: what a space may list.
- **default**: what runs if nobody sets the knob.
- **acts**: when the knob changes anything. Elsewhere it is left out of a candidate, and values
  that mean the same run become one. So a bucket or group that is larger than all elements of a
  rank becomes that number: `reduce_bucket_size=5e8` stands as 385229056 in the tables of a rank
  with 385 million parameters. If 5e8 was the default there, no list of changes names it.
- **tried on**: the honest limit, which values trained real steps and were read back from the live
  engine.
- **releases**: DeepSpeed has removed the knob. With a newer release the rules refuse all of its
  values but the one that is off ([compression](compression.md)).
- **decided in**: the file of the engine's source.

The plan, the report and the export also say what was never run on such a device; `search --help`
counts what ran nowhere.

**Variables of the environment** that change speed (`NCCL_*`, `TORCH_NCCL_*`, `GLOO_*`, `OMP_*`,
`KMP_*`, `MALLOC_*`, `LD_PRELOAD`, allocator settings) are no knobs. They reach the ranks as you
set them. Each trial's `result.json` records those that were set.

"Tried on" rests on these runs, under `results/recorded/`:

| date | hardware | device | versions |
|---|---|---|---|"""

_OF_ANOTHER = """# Knobs of ENGINE

These are other knobs than the ones above, even if a name is the same.

| date | hardware | device | versions |
|---|---|---|---|"""

if __name__ == "__main__":
    sys.stdout.write(documentation())
