"""A launcher that starts the ranks one after the other, in a loop of the shell."""

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launcher


class Loop(Launcher):
    """`loop.sh`."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        """The one script."""
        exports = [f"export {name}={value}" for name, value in sorted(handout.variables.items())]
        world = handout.candidate.world
        loop = f"for rank in $(seq {world}); do RANK=$rank python {script}; done"
        return {"loop.sh": "\n".join(["#!/bin/sh", *exports, loop, ""])}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        """Its command."""
        return "    sh loop.sh\n"
