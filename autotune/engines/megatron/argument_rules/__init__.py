"""Rules of arguments of Megatron-LM beside one another: its own checks, before any layout."""

from autotune.engines.megatron.argument_rules import computed, rows
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Rule

ARGUMENT_RULES: tuple[Rule[MegatronLaunch], ...] = (*computed.RULES, *rows.RULES)
"""Rules of arguments, in the order in which they are asked. Where the first one refuses, no other
can be: they divide by what it asks about."""
