"""Is it a ds_config at all: types, ranges, spelling, keys that DeepSpeed would not read.

Numbers written as text, booleans written as numbers and `zero_optimization: true` are refused
although DeepSpeed converts them: whatever else reads the file may not.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from autotune.rules.base import Finding, Rule, Setup, ignored, raised
from autotune.rules.keys import DEPRECATED, SECTIONS, SPELLINGS, Section, plain_keys

_ALL_KEYS: Mapping[str, tuple[str, ...]] = {
    path: tuple(name for name, key in section.keys.items() if not key.removed_in)
    for path, section in SECTIONS.items()
}


_SCALARS = frozenset({bool, int, float, str, type(None), list})


def is_plain(setup: Setup) -> bool:
    """Whether no rule about keys and their values has anything to say; the fast way to know.

    Almost every setup that is judged is one that a template rendered, so this is the hot path.
    """
    tables = plain_keys(setup.environment.deepspeed_version)
    return _is_plain(setup.ds_config, "", tables)


def _is_plain(content: Mapping[str, Any], path: str, tables: Mapping[str, Any]) -> bool:
    checks = tables[path]
    for name, value in content.items():
        check = checks.get(name)
        if check is None or not check(value):
            return False
        kind = type(value)
        if kind is dict or (kind not in _SCALARS and isinstance(value, Mapping)):
            inner = f"{path}.{name}" if path else name
            if inner in tables:
                if not _is_plain(value, inner, tables):
                    return False
            elif inner == "optimizer.params" and "auto" in map(str, value.values()):
                return False
    return True


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Section]]:
    """Every section of a configuration that the table describes: path, content, description."""
    for path, section in SECTIONS.items():
        content: Any = config
        for part in path.split(".") if path else ():
            content = content.get(part) if isinstance(content, Mapping) else None
        if content and isinstance(content, Mapping):
            yield path, content, section


def _dotted(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _wrong_values(setup: Setup, *, top_level: bool) -> Finding | None:
    wrong = []
    fix = ""
    for path, content, section in sections(setup.ds_config):
        if top_level == bool(path):
            continue
        keys = section.keys
        for name, value in content.items():
            key = keys.get(name)
            if key is None or key.accepts(value) or _is_auto(value):
                continue
            wrong.append(f"{_dotted(path, name)}: {value!r} is not {key.wants}")
            fix = fix or f"set {_dotted(path, name)} to {key.wants}, or leave it out"
    return ("; ".join(wrong), fix) if wrong else None


def _section_value(setup: Setup) -> Finding | None:
    return _wrong_values(setup, top_level=False)


def _top_level_value(setup: Setup) -> Finding | None:
    return _wrong_values(setup, top_level=True)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _means_auto(section: Section, name: str) -> bool:
    """Whether DeepSpeed gives the word a meaning at a key, or does not know the key anyway."""
    key = section.keys.get(name)
    return key is None or key.accepts("auto")


def _auto_unresolved(setup: Setup) -> Finding | None:
    found = [
        _dotted(path, name)
        for path, content, section in sections(setup.ds_config)
        if not section.is_strict(setup.environment.deepspeed_version)
        for name, value in content.items()
        if _is_auto(value) and not _means_auto(section, name)
    ]
    found += [
        f"optimizer.params.{name}"
        for name, value in setup.optimizer_params.items()
        if str(value) == "auto"
    ]
    if not found:
        return None
    return (
        f'"auto" at {", ".join(found)}: DeepSpeed takes it for a value; only Hugging Face '
        "Trainer and accelerate fill it in",
        f"write the value of {found[0]}",
    )


def _auto_dropped(setup: Setup) -> Finding | None:
    found = [
        _dotted(path, name)
        for path, content, section in sections(setup.ds_config)
        if section.is_strict(setup.environment.deepspeed_version)
        for name, value in content.items()
        if _is_auto(value) and not _means_auto(section, name)
    ]
    if not found:
        return None
    return (
        f'"auto" at {", ".join(found)}: DeepSpeed drops it and uses its own default',
        f"write the value of {found[0]}, or leave it out",
    )


def _unknown(setup: Setup, *, strict: bool, top_level: bool) -> Finding | None:
    wrong = []
    fix = ""
    version = setup.environment.deepspeed_version
    for path, content, section in sections(setup.ds_config):
        if section.is_strict(version) != strict or top_level == bool(path):
            continue
        for name in content:
            if name in section.keys:
                continue
            near = get_close_matches(str(name), _ALL_KEYS[path], n=1)
            guess = f"did you mean {near[0]}?" if near else "nothing that is known is like it"
            wrong.append(f"{_dotted(path, name)} is not a key of DeepSpeed's: {guess}")
            other = f"rename {_dotted(path, name)} to {near[0]}" if near else ""
            fix = fix or other or f"remove {_dotted(path, name)}"
    return ("; ".join(wrong), fix) if wrong else None


def _unknown_strict(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=True, top_level=False)


def _unknown_top_level(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=False, top_level=True)


def _unknown_plain(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=False, top_level=False)


def _deprecated_pair(setup: Setup) -> Finding | None:
    zero = setup.zero
    for old, new in DEPRECATED.items():
        if old in zero and new in zero:
            return (
                f"zero_optimization.{old} and zero_optimization.{new} are both there: the first "
                "is the deprecated name of the second",
                f"remove zero_optimization.{old}",
            )
    return None


def _spelled_twice(setup: Setup) -> Finding | None:
    zero = setup.zero
    for second, first in SPELLINGS.items():
        if second in zero and first in zero:
            return (
                f"zero_optimization.{first}={zero[first]!r} and {second}={zero[second]!r} are "
                "the same key",
                f"remove zero_optimization.{second}",
            )
    return None


def _zero(stage: Any, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


BLOCKING = (
    Rule(
        name="schema.section_value",
        check=_section_value,
        source="runtime/zero/config.py, offload_config.py, precision_config.py: pydantic fields",
        witnesses=(
            raised("stage\n.*Input should be 0, 1, 2", _zero("two"), _zero(2)),
            raised("stage\n.*Input should be 0, 1, 2", _zero(4), _zero(3)),
            raised(
                "reduce_bucket_size\n.*greater than 0",
                _zero(2, reduce_bucket_size=0),
                _zero(2, reduce_bucket_size=1),
            ),
            raised(
                "reduce_bucket_size\n.*fractional part",
                _zero(2, reduce_bucket_size=1.5),
                _zero(2, reduce_bucket_size=2e3),
            ),
            raised(
                "stage3_prefetch_bucket_size\n.*greater than or equal to 0",
                _zero(3, stage3_prefetch_bucket_size=-1),
                _zero(3, stage3_prefetch_bucket_size=0),
            ),
            raised(
                "overlap_comm\n.*valid boolean",
                _zero(2, overlap_comm="maybe"),
                _zero(2, overlap_comm=True),
            ),
            raised(
                "offload_optimizer.device\n.*'none', 'cpu' or 'nvme'",
                _zero(2, offload_optimizer={"device": "gpu"}),
                _zero(2, offload_optimizer={"device": "cpu"}),
            ),
            raised(
                "ValidationError: .*DeepSpeedFP16Config\nloss_scale",
                {"fp16": {"loss_scale": -1}},
                {"fp16": {"loss_scale": 0}},
            ),
            raised(
                "ValueError: 'fp8' is not a valid DtypeEnum",
                {"data_types": {"grad_accum_dtype": "fp8"}},
                {"data_types": {"grad_accum_dtype": "fp32"}},
            ),
        ),
    ),
    Rule(
        name="schema.top_level_value",
        check=_top_level_value,
        source="runtime/config.py: read without a check, used where it hurts",
        witnesses=(
            raised(
                "TypeError: '>' not supported",
                {"train_micro_batch_size_per_gpu": "1"},
                {"train_micro_batch_size_per_gpu": 1},
            ),
            raised(
                "TypeError: '>' not supported",
                {"gradient_clipping": "1.0"},
                {"gradient_clipping": 1.0},
            ),
            raised(
                "ValueError: Invalid communication_data_type",
                {"communication_data_type": "fp8"},
                {"communication_data_type": "fp32"},
            ),
            raised(
                "ValueError: Invalid gradient_allreduce_op",
                {"gradient_allreduce_op": "max"},
                {"gradient_allreduce_op": "mean"},
            ),
            raised("TypeError: .* must be a mapping", {"zero_optimization": "stage 2"}, _zero(2)),
        ),
    ),
    Rule(
        name="schema.auto_unresolved",
        check=_auto_unresolved,
        source="runtime/config.py:596: compares the text with 0",
        witnesses=(
            raised(
                "TypeError: '>' not supported",
                {"train_micro_batch_size_per_gpu": "auto"},
                {"train_micro_batch_size_per_gpu": 1},
            ),
            raised(
                "TypeError",
                {"optimizer": {"params": {"lr": "auto"}}},
                {"optimizer": {"params": {"lr": 1e-3}}},
            ),
        ),
    ),
    Rule(
        name="schema.auto_dropped",
        check=_auto_dropped,
        source="runtime/config_utils.py:54-57",
        witnesses=(
            ignored(_zero(2, reduce_bucket_size="auto"), _zero(2, reduce_bucket_size=None)),
        ),
    ),
)
"""Rules after which the others would read nonsense: where one of these refuses, only these do."""

KEY_RULES = (
    Rule(
        name="schema.unknown_key",
        check=_unknown_strict,
        source="runtime/config_utils.py: extra=forbid in DeepSpeed's pydantic sections",
        witnesses=(
            raised(
                "overlap_com\n.*Extra inputs are not permitted",
                _zero(2, overlap_com=True),
                _zero(2, overlap_com=None, overlap_comm=True),
            ),
            raised(
                "offload_optimizer.pin_mem\n.*Extra inputs are not permitted",
                _zero(2, offload_optimizer={"device": "cpu", "pin_mem": True}),
                _zero(2, offload_optimizer={"pin_mem": None, "pin_memory": True}),
            ),
        ),
    ),
    Rule(
        name="schema.unknown_top_level_key",
        check=_unknown_top_level,
        source="runtime/config.py: reads the keys that it knows",
        witnesses=(
            ignored(
                {"gradient_cliping": 0.01},
                {"gradient_cliping": None},
            ),
        ),
    ),
    Rule(
        name="schema.unknown_plain_key",
        check=_unknown_plain,
        source="runtime/config.py: reads the keys that it knows",
        witnesses=(ignored({"data_types": {"grad_acum_dtype": "bf16"}}, {"data_types": None}),),
    ),
    Rule(
        name="schema.deprecated_with_new",
        check=_deprecated_pair,
        source="runtime/config_utils.py:90",
        witnesses=tuple(
            raised(
                f"AssertionError: Cannot provide deprecated parameter '{old}'",
                _zero(3, **{old: True}, **new),
                _zero(3, **{old: None}),
            )
            for old, new in (
                ("cpu_offload", {"offload_optimizer": {"device": "cpu"}}),
                ("cpu_offload_param", {"offload_param": {"device": "cpu"}}),
                (
                    "stage3_gather_fp16_weights_on_model_save",
                    {"stage3_gather_16bit_weights_on_model_save": True},
                ),
            )
        ),
    ),
    Rule(
        name="schema.spelled_twice",
        check=_spelled_twice,
        source="runtime/zero/config.py: field name and alias",
        witnesses=(
            raised(
                "prefetch_bucket_size\n.*Extra inputs are not permitted",
                _zero(3, prefetch_bucket_size=10, stage3_prefetch_bucket_size=20),
                _zero(3, prefetch_bucket_size=None),
            ),
        ),
    ),
)
