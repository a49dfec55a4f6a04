"""Flags of Megatron-DeepSpeed's scripts, read off the source of its parser.

python -m tests.record_megatron_deepspeed_flags CHECKOUT

Writes `autotune/export/megatron_deepspeed_flags.json`: the names, and whether each takes a value.
"""

import ast
import json
import sys
from pathlib import Path

from autotune.export.dialects.megatron_deepspeed import FLAGS_FILE

_SWITCHES = ("store_true", "store_false")
_OF_DEEPSPEED = {"--deepspeed": False, "--deepspeed_config": True}
"""Flags that `deepspeed.add_config_arguments` adds (deepspeed/__init__.py)."""


def flags_of(checkout: Path) -> dict[str, bool]:
    """Flag -> whether it takes a value."""
    text = (checkout / "megatron" / "arguments.py").read_text(encoding="utf-8")
    found = dict(_OF_DEEPSPEED)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        name = node.args[0]
        action = next((each.value for each in node.keywords if each.arg == "action"), None)
        if isinstance(name, ast.Constant):
            is_switch = isinstance(action, ast.Constant) and action.value in _SWITCHES
            found[name.value] = not is_switch
    return dict(sorted(found.items()))


def as_text(flags: dict[str, bool]) -> str:
    """The file's text."""
    return json.dumps(flags, indent=1) + "\n"


if __name__ == "__main__":
    FLAGS_FILE.write_text(as_text(flags_of(Path(sys.argv[1]))), encoding="utf-8")
