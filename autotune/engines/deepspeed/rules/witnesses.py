"""The cases that prove each rule: `witnesses.json` holds what was tried on the real engine.

A row lays `ds_config` over the plain setup of `plain.py`; `fix` and `repaired` lead from there to
the legal neighbour. A test breaks every rule with its rows, and another one asks DeepSpeed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from autotune.base.data import table_beside
from autotune.base.nested import merge
from autotune.space.rule import Consequence


@dataclass(frozen=True, kw_only=True)
class Case:
    """A setup, told as its difference from a plain one that is legal and trains.

    The plain one: world 2, a Llama of two layers, micro_batch 1, two accumulation steps, AdamW,
    fp32, ZeRO stage 0, no recomputation.
    """

    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the plain configuration, section by section; None takes a key away."""
    world: int = 2
    tp: int = 1
    pp: int = 1
    recompute: str = "none"
    attention: str = "default"
    loss_chunk_tokens: int = 0
    mlp_chunk_tokens: int = 0
    offload_activations: str = "none"
    compile: str = "none"
    sp_by_script: int = 1
    script_optimizer: str = ""
    """The optimizer of torch.optim that the script hands to DeepSpeed; empty: none."""
    precision: str = "fp32"
    global_batch: int | None = None
    """None: what the configuration amounts to."""
    seq_len: int = 16
    model: Mapping[str, Any] = field(default_factory=dict)
    """Sizes (as in `ModelShape`) and `architecture` that differ."""
    fp16_supported: bool = True
    """Whether the accelerator does fp16 as far as DeepSpeed knows; many CPUs do not."""
    accelerator: str = "cpu"
    """`cuda`: the case can only be tried there."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A case that breaks one rule alone, its legal neighbour, and what the engine did with it."""

    broken: Case
    repaired: Case | None
    """Its legal neighbour; None: the broken case after the changes of the rule's own finding."""
    consequence: Consequence
    raises: str = ""
    """`raised`: a regular expression that is found in `type: message` of a rank's exception. One
    rank that raises ends them all."""
    reads: Mapping[str, Any] = field(default_factory=dict)
    """`differs`: what the live engine reads back, against what was asked."""
    takes_back: bool = False
    """`differs`: the repair gives up what was asked, and reads back the same."""
    acts_with: Mapping[str, Any] | None = None
    """`ignored`: laid over both cases, it makes them differ: the value does act there."""
    deepspeed: str = ""
    """The release that the case is about, where that is not the newest."""
    beside: str = ""
    """Another rule that both cases break as well, since the release does harm to all of the kind;
    empty: the broken one breaks this rule alone, and the repaired one none."""


_CASE_FIELDS = frozenset(entry.name for entry in fields(Case))


def witnesses_of(rule: str) -> Sequence[Witness]:
    """The witnesses of a rule, by its name; none where it has no row."""
    return tuple(_witness(row) for row in _table().get(rule, ()))


@cache
def _table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    table: Mapping[str, Sequence[Mapping[str, Any]]] = table_beside(__file__, "witnesses.json")
    return table


def _witness(row: Mapping[str, Any]) -> Witness:
    case = {name: row[name] for name in _CASE_FIELDS & row.keys()}
    about = {name: row[name] for name in row.keys() - _CASE_FIELDS - {"fix", "repaired"}}
    broken, repaired = Case(**case), None
    if "fix" in row or "repaired" in row:
        legal = merge(broken.ds_config, row.get("fix", {}))
        repaired = Case(**{**case, "ds_config": legal, **row.get("repaired", {})})
    usual = "raised" if "raises" in row else "differs"
    return Witness(broken=broken, repaired=repaired, **{"consequence": usual, **about})
