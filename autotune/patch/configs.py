"""The changes of a ds_config with which it means a candidate; nothing besides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.ds_config_file import SECTIONS, usable
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.offload import ZENFLOW
from autotune.engines.deepspeed.knobs.situation import optimizer_implementation
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.keys import SPELLINGS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.filled import with_hidden_sizes
from autotune.patch.wanted import REMOVED, Wanted

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS
_OFF: Mapping[str, Any] = {
    "tensor_parallel.autotp_size": 0,
    "sequence_parallel_size": 1,
    "expert_parallel.enabled": False,
}
"""Keys that say of a degree that there is none; a rendered configuration leaves them out."""
_OLD_NAMES = {
    "offload.optimizer": "zero_optimization.cpu_offload",
    "offload.param": "zero_optimization.cpu_offload_param",
}
_WITH_LAYOUT = ("micro_batch", "compile", "optimizer.implementation", "zenflow", *SECTIONS)
"""Knobs whose keys are worked out one by one."""


@dataclass(frozen=True, kw_only=True)
class ConfigChanges:
    """What has to change in a ds_config."""

    keys: Mapping[str, Any]
    """Dotted key -> value; None: the key goes."""
    left_to_arguments: tuple[str, ...]
    """Knobs whose value the consumer's arguments bring: `micro_batch`, `grad_accum`."""
    has_optimizer: bool


def config_changes(
    theirs: Mapping[str, Any], wanted: Wanted, consumer: Consumer, path: Path
) -> ConfigChanges:
    """What makes a ds_config mean the candidate.

    Args:
        theirs: The configuration as it is written, with its "auto".
        wanted: The candidate.
        consumer: Who reads it.
        path: The file, for errors.

    Raises:
        RenderError: A section of it is none.
    """
    reader = _Changes(theirs, wanted, consumer, path)
    return ConfigChanges(
        keys=dict(reader.keys()),
        left_to_arguments=tuple(reader.left_to_arguments()),
        has_optimizer=isinstance(theirs.get("optimizer"), Mapping),
    )


class _Changes:
    def __init__(
        self, theirs: Mapping[str, Any], wanted: Wanted, consumer: Consumer, path: Path
    ) -> None:
        self._theirs, self._wanted, self._consumer = theirs, wanted, consumer
        hidden = wanted.context.model.hidden
        self._clean, _ = usable(with_hidden_sizes(theirs, consumer, hidden), path)
        self._values = wanted.candidate.values

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from self._batch()
        for name, knob in KNOBS.items():
            if knob.key and name in self._values and name not in _WITH_LAYOUT:
                yield from self._plain(name, knob)
        for name in SECTIONS:
            yield from self._offload(name, KNOBS[name])
        yield from self._zenflow()
        yield from self._compile()
        yield from self._implementation()

    def left_to_arguments(self) -> Iterator[str]:
        if self._consumer is Consumer.DEEPSPEED:
            return
        is_trainer = self._consumer is Consumer.TRAINER
        for name, key in (("micro_batch", _MICRO), ("grad_accum", _ACCUM)):
            if is_trainer or self._theirs.get(key) == AUTO:
                yield name

    def _have(self, name: str) -> KnobValue | None:
        """The knob's value by the file; None: none that a knob has."""
        try:
            read = KNOBS[name].read(self._clean, where="the file")
        except JobError:
            return None
        return self._wanted.alone(name, read)

    def _plain(self, name: str, knob: DeepSpeedKnob) -> Iterator[tuple[str, Any]]:
        if self._have(name) != self._values[name]:
            for key in knob.keys:
                yield from self._put(key)

    def _put(self, key: str) -> Iterator[tuple[str, Any]]:
        """A key at its rendered value, under the spelling that the file has."""
        value, name = look_up(self._wanted.config, key), self._spelled(key)
        have = look_up(self._theirs, name)
        if value is not None:
            if not _is_same(have, value):
                yield name, value
        elif have is not None:
            off = False if isinstance(have, bool) else _OFF.get(key, REMOVED)
            if have != off:
                yield name, off

    def _spelled(self, key: str) -> str:
        section, _, name = key.rpartition(".")
        for second, first in SPELLINGS.items():
            if first == name and second in (look_up(self._theirs, section) or {}):
                return f"{section}.{second}"
        return key

    def _offload(self, name: str, knob: DeepSpeedKnob) -> Iterator[tuple[str, Any]]:
        want = self._values.get(name)
        if want is None or self._have(name) == want:
            return
        if look_up(self._theirs, _OLD_NAMES[name]) is not None:
            yield _OLD_NAMES[name], REMOVED
        section = look_up(self._wanted.config, knob.key) or {}
        names = section if want == "nvme" else ("device",)
        for one in names:
            value = section.get(one, "none")
            if look_up(self._theirs, f"{knob.key}.{one}") != value:
                yield f"{knob.key}.{one}", value

    def _zenflow(self) -> Iterator[tuple[str, Any]]:
        section = look_up(self._wanted.config, ZENFLOW)
        if "zenflow" not in self._values:
            return
        if section is None:
            if isinstance(look_up(self._theirs, ZENFLOW), Mapping):
                yield ZENFLOW, REMOVED  # it has no switch
            return
        for name, value in section.items():
            if not _is_same(look_up(self._theirs, f"{ZENFLOW}.{name}"), value):
                yield f"{ZENFLOW}.{name}", value

    def _compile(self) -> Iterator[tuple[str, Any]]:
        is_on = look_up(self._theirs, "compile.deepcompile") is True
        want = self._values.get("compile", "none") == "deepcompile"
        if want is not is_on:
            yield "compile.deepcompile", want

    def _implementation(self) -> Iterator[tuple[str, Any]]:
        """Whose Adam, where the file has an optimizer; else the arguments or the script say."""
        name, at = "optimizer.implementation", "optimizer.params"
        theirs = self._theirs.get("optimizer")
        if name not in self._values or not isinstance(theirs, Mapping):
            return
        params = theirs.get("params")
        have = optimizer_implementation(params) or "deepspeed"
        want = self._values[name]
        if self._wanted.alone(name, have) == want:
            return
        wishes = {"torch_adam": want != "deepspeed", "fused": want == "torch_fused"}
        for key, value in wishes.items():
            there = look_up(self._theirs, f"{at}.{key}")
            if value or there not in (None, False):
                yield f"{at}.{key}", value

    def _batch(self) -> Iterator[tuple[str, Any]]:
        candidate = self._wanted.candidate
        sizes = {_MICRO: candidate.micro_batch, _ACCUM: candidate.grad_accum}
        given = {key: self._theirs.get(key) for key in BATCH_KEYS}
        total = candidate.global_batch
        if given[_TOTAL] not in (None, AUTO, total):
            yield _TOTAL, total
        elif self._is_split() and given[_TOTAL] is not None and self._counts_itself():
            yield _TOTAL, REMOVED  # DeepSpeed checks it against the whole world
        for key, value in sizes.items():
            if given[key] not in (None, AUTO, value):
                yield key, value
        if self._consumer is Consumer.TRAINER:
            for key in (_MICRO, _ACCUM):
                if given[key] is None and (key == _MICRO or candidate.grad_accum != 1):
                    yield key, AUTO
        elif self._consumer is Consumer.ACCELERATE:
            if given[_MICRO] is None:
                yield _MICRO, sizes[_MICRO]
            if given[_ACCUM] is None and sizes[_ACCUM] != 1:
                yield _ACCUM, sizes[_ACCUM]
        else:
            yield from self._inferred(given, sizes)

    def _counts_itself(self) -> bool:
        return self._consumer is Consumer.DEEPSPEED

    def _is_split(self) -> bool:
        return self._wanted.candidate.tp > 1 and self._wanted.candidate.pp == 1

    def _inferred(
        self, given: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> Iterator[tuple[str, Any]]:
        """Keys that DeepSpeed would work out otherwise (_set_batch_related_parameters)."""
        has_total = given[_TOTAL] is not None and not self._is_split()
        has = {key: given[key] is not None for key in sizes}
        if given[_MICRO] == AUTO or given[_ACCUM] == AUTO:  # nobody fills them in
            for key in sizes:
                if given[key] == AUTO:
                    yield key, sizes[key]
        if not has[_MICRO]:
            rest = self._wanted.candidate.global_batch // self._wanted.candidate.dp
            steps = sizes[_ACCUM] if has[_ACCUM] else 1
            if not has_total or rest // steps != sizes[_MICRO]:
                yield _MICRO, sizes[_MICRO]
                has[_MICRO] = True
        if not has[_ACCUM] and not has_total and sizes[_ACCUM] != 1:
            yield _ACCUM, sizes[_ACCUM]


def _is_same(have: Any, value: Any) -> bool:
    if isinstance(have, bool) or isinstance(value, bool):
        return have is value
    return bool(have == value)
