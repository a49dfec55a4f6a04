"""Judges the rows of a grid in columns: a rule is asked once per combination of what it reads.

What a rule reads are settings of a rendered configuration and fields of a setup. Which knobs a
setting follows from is said here: those whose key it is, and for what the template writes besides
`_FOLLOWS`. It is checked: every setting of every setup that was rendered has to be a function of
these knobs, and some candidates are judged one by one beside.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.communication.base import LIBRARIES, Communication
from autotune.engines.communication.rules import RULES as COMMUNICATION_RULES
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules import VALUE_RULES
from autotune.engines.deepspeed.rules.base import Setup, as_section
from autotune.engines.deepspeed.rules.sections import is_plain_key
from autotune.engines.deepspeed.rules.watched import (
    EVERYTHING,
    WatchedCommunication,
    WatchedSetup,
)
from autotune.space.candidate import Candidate
from autotune.space.judged import Judge, Verdicts, judge_each
from autotune.space.rows import CandidateRows
from autotune.space.rule import Rule
from autotune.space.table import Indices, Table, Watched, WatchedAnswers, answers

A = TypeVar("A")

_DP = ("tp", "pp", "sp")
_OFFLOAD = "zero_optimization.offload_"
_ZENFLOW = "zero_optimization.zenflow"
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "train_batch_size": ("tp", "pp"),
    "tensor_parallel": ("tp", "pp"),
    "tensor_parallel.autotp_size": ("pp",),
    **dict.fromkeys(
        (
            "tensor_parallel.tp_overlap_comm",
            "tensor_parallel.vocab_parallel_lm_head",
            "tensor_parallel.vocab_parallel_ce_backend",
        ),
        ("tp", "pp"),
    ),
    "gradient_accumulation_steps": ("micro_batch", *_DP),
    "tensor_parallel.partition_config": ("ep", "pp"),
    "expert_parallel": ("ep",),
    "expert_parallel.preset_model": ("ep",),
    "expert_parallel.comm_max_tokens_per_rank": ("micro_batch",),
    "pipeline": ("pp", "recompute"),
    "pipeline.activation_checkpoint_interval": ("pp", "recompute"),
    "bf16": ("precision", "master_dtype", "optimizer_states_dtype"),
    "fp16": ("precision", "master_dtype"),
    "bf16.bf16_master_weights_and_grads": ("precision",),
    "fp16.fp16_master_weights_and_grads": ("precision",),
    "bf16.bf16_optimizer_states": ("precision",),
    "compile": ("compile",),
    "data_types": ("grad_accum_dtype",),
    "compression_training": ("compression.weight_bits",),
    "compression_training.weight_quantization": (
        *("compression.weight_bits", "compression.schedule_offset"),
    ),
    "optimizer": (),
    "optimizer.type": ("optimizer.compression",),
    "optimizer.params": ("optimizer.implementation", "optimizer.compression"),
    f"{_OFFLOAD}optimizer": ("offload.optimizer",),
    f"{_OFFLOAD}optimizer.nvme_path": ("offload.optimizer",),
    f"{_OFFLOAD}param": ("offload.param",),
    f"{_OFFLOAD}param.nvme_path": ("offload.param",),
    f"{_OFFLOAD}param.buffer_size": _DP,
    _ZENFLOW: ("zenflow",),
    "zero_optimization.leaf_module": (),
    "zero_optimization.leaf_module.classes": (),
    f"{_ZENFLOW}.overlap_step": ("zenflow",),
    f"{_ZENFLOW}.select_strategy": ("zenflow",),
    f"{_ZENFLOW}.select_interval": ("zenflow", "micro_batch", *_DP),
    f"{_ZENFLOW}.update_interval": ("zenflow", "micro_batch", *_DP),
}
"""Path of a setting -> knobs that it follows from besides those whose key it is. A setting below
a section follows from whatever that does."""
_STAGED = ("zero.stage",)
"""A base configuration loses keys of `zero_optimization` at stages that ignore them."""
_FIELDS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("tp", "pp", "recompute", "precision", "attention", "compile")},
    "loss_chunk_tokens": ("loss_chunk_tokens",),
    "mlp_chunk_tokens": ("mlp_chunk_tokens",),
    "offload_activations": ("offload.activations",),
    "sp_by_script": ("sp",),
}
"""Field of a setup -> knobs that it follows from; the others are alike for all candidates."""
_SECTION = "{}"
N_WITNESSES = 48
"""Candidates that are judged one by one beside."""
FEW = 300
"""Candidates that are as fast to judge one by one."""


def judge_columns(
    rows: CandidateRows, render: Callable[[Candidate], Setup], judge: Judge
) -> Verdicts | None:
    """Judge candidates in columns.

    Args:
        rows: The candidates.
        render: Renders one.
        judge: Judges one; the witness.

    Returns:
        None where a setting follows from other knobs than is said here, as a template of somebody
        else's may write it: they have to be judged one by one.
    """
    columns = _WatchedRules(rows=rows, render=render)
    columns.render_every_value()
    found: dict[str, WatchedAnswers[int]] = {
        rule.name: columns.count(rule) for rule in VALUE_RULES
    }
    found |= columns.counts_of_communication()
    odd = columns.odd_rows()
    if not columns.is_sound():
        return None
    broken = {
        name: answers.of(float).astype(np.int16)
        for name, answers in found.items()
        if any(answers.distinct)
    }
    by_one = judge_each(rows.take(odd), judge)
    for name in {*broken, *by_one.broken}:
        counts = broken.setdefault(name, np.zeros(len(rows), np.int16))
        counts[odd] = by_one.broken.get(name, 0)
    judged = Verdicts(n=len(rows), broken={name: c for name, c in broken.items() if c.any()})
    return judged if _agrees(judged, rows, judge) else None


def _agrees(judged: Verdicts, rows: CandidateRows, judge: Judge) -> bool:
    """Whether some candidates have the same violations where they are judged one by one."""
    n = min(N_WITNESSES, len(rows))
    for row in np.random.default_rng(0).choice(len(rows), n, replace=False).tolist():
        told = Counter(violation.rule for violation in judge(rows[row]))
        if told != {name: int(c[row]) for name, c in judged.broken.items() if c[row]}:
            return False
    return True


@dataclass(kw_only=True, eq=False)
class _WatchedRules:
    """The candidates of a grid, with the setups that were rendered so far."""

    rows: CandidateRows
    render: Callable[[Candidate], Setup]
    setups: dict[int, Setup] = field(default_factory=dict)
    """Row -> its setup."""

    @property
    def table(self) -> Table:
        """The knobs."""
        return self.rows.table

    def render_every_value(self) -> None:
        """Render a candidate for every value of every knob, so that no key is overlooked."""
        for codes in self.table.codes.values():
            for row in np.unique(codes, return_index=True)[1].tolist():
                self.setup(row)

    def setup(self, row: int) -> Setup:
        """The setup of a row."""
        if row not in self.setups:
            self.setups[row] = self.render(self.rows[row])
        return self.setups[row]

    def count(self, rule: Rule[Setup]) -> WatchedAnswers[int]:
        """Violations of a rule, by row."""
        return self.watch(lambda setup: len(rule.findings(setup)))

    def watch(self, function: Callable[[Setup], A]) -> WatchedAnswers[A]:
        """The answer of a function of setups, by row."""

        def ask(row: int) -> tuple[A, set[str]]:
            watched = WatchedSetup.of(self.setup(row))
            answer = function(watched)
            names = {knob for path in watched.read for knob in knobs_of_path(path)}
            names.update(*(_FIELDS.get(name, ()) for name in watched.fields_read))
            return answer, names

        return answers(self.table, ask)

    def counts_of_communication(self) -> dict[str, WatchedAnswers[int]]:
        """Violations of the rules about what ranks talk by, by row."""
        table = self.table
        ours = [name for name in table.levels if name.partition(".")[0] in LIBRARIES]
        if not any(value is not None for name in ours for value in table.levels[name]):
            return {}
        settings = Table(
            n=table.n,
            levels={name: table.levels[name] for name in ours},
            codes={name: codes for name, codes in table.codes.items() if name in ours},
        )

        def counting(rule: Rule[Communication]) -> WatchedAnswers[int]:
            def ask(row: int) -> tuple[int, set[str]]:
                run = self.setup(row).communication
                if run is None:
                    return 0, set(ours)
                values = Watched(settings, row)
                watched = WatchedCommunication.of_run(run, values)
                count = len(rule.findings(watched))
                return count, {*values.read, *watched.fields_read}

            return answers(table, ask)

        return {rule.name: counting(rule) for rule in COMMUNICATION_RULES}

    def odd_rows(self) -> Indices:
        """Rows with a key or a value of which the rules about keys may have something to say."""
        keys = {path for setup in self.setups.values() for path in _paths(setup.ds_config)}
        is_odd = np.zeros(len(self.rows), np.bool_)
        for path in sorted(keys):
            is_odd |= self.watch(partial(_is_odd_at, path)).of(float) > 0
        return np.flatnonzero(is_odd)

    def is_sound(self) -> bool:
        """Whether every setting of every rendered setup follows from the knobs that are said."""
        settings = {row: _settings(setup) for row, setup in self.setups.items()}
        values = {row: self.table.row(row) for row in settings}
        for path in {path for found in settings.values() for path in found}:
            names = _all_knobs_of(path)
            seen: dict[tuple[KnobValue | None, ...], str | None] = {}
            for row, found in settings.items():
                by = tuple(map(values[row].get, names))
                if seen.setdefault(by, found.get(path)) != found.get(path):
                    return False
        return True


@cache
def knobs_of_path(path: str) -> frozenset[str]:
    """Knobs that a setting follows from, its section being there."""
    if path.split(".")[-1] == EVERYTHING:
        section = path.removesuffix(EVERYTHING)
        below = [key for key in (*_FOLLOWS, *_BY_KEY) if key.startswith(section)]
        return frozenset().union(*map(knobs_of_path, below), _STAGED)
    found = {*_FOLLOWS.get(path, ()), *_BY_KEY.get(path, ())}
    return frozenset(found | set(_STAGED) if path.startswith("zero_optimization.") else found)


def _all_knobs_of(path: str) -> tuple[str, ...]:
    """Knobs that a setting follows from, with those of the sections that it stands in."""
    if path.startswith("@"):
        return _FIELDS.get(path.removeprefix("@"), ())
    parts = path.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return tuple(sorted(frozenset().union(*map(knobs_of_path, above))))


def _by_key() -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, knob in KNOBS.items():
        for key in knob.keys:
            found.setdefault(key, set()).add(name)
    return found


_BY_KEY = _by_key()
"""Path of a setting -> the knobs whose key it is."""


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")


def _is_odd_at(path: str, setup: Setup) -> bool:
    """Whether a key is there that is not plain."""
    *above, name = path.split(".")
    section: Mapping[str, Any] = setup.ds_config
    for part in above:
        section = as_section(section.get(part))
    if name not in section:
        return False
    return not is_plain_key(".".join(above), name, section[name], setup.version)


def _settings(setup: Setup) -> dict[str, str]:
    """Every setting of a setup as text: keys, sections, and fields under names with an @."""
    found = {
        path: _SECTION
        if isinstance(value := look_up(setup.ds_config, path), Mapping)
        else json.dumps(value, default=str)
        for path in _paths(setup.ds_config)
    }
    fields_ = {name: getattr(setup, name) for name in _FIELDS}
    return found | {f"@{name}": repr(value) for name, value in fields_.items()}
