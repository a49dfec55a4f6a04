"""A dialect that writes the knobs as an INI file, with a script that prints it."""

from autotune.base.templates import Templates
from autotune.export.base import Dialect, Handout, Launch


class Ini(Dialect):
    """`knobs.ini`."""

    engines = ("deepspeed",)
    script = "show.py"
    launcher = "toy-loop"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        """The knobs, a script that prints them, and how to start it."""
        lines = [f"{name} = {value}" for name, value in handout.candidate.knobs]
        return {
            "knobs.ini": "\n".join(["[knobs]", *lines, ""]),
            self.script: "print(open('knobs.ini').read())\n",
            "README.md": launch.usage,
        }
