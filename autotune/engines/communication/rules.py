"""Every rule about NCCL and gloo, for whichever engine."""

from autotune.engines.communication import gloo, nccl
from autotune.engines.communication.base import Communication
from autotune.space.rule import Rule, rules_of

RULES: tuple[Rule[Communication], ...] = rules_of(nccl, gloo)
"""In the order in which they are asked."""
