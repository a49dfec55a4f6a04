"""The command line: reads flags, calls `autotune.app`, prints; no logic.

What a command needs is imported inside it: Optuna and pandas are heavy, and `--help` must not wait
for them.
"""

import atexit
import gc
import sys

from autotune.base.errors import AutotuneError, ExitCode
from autotune.cli import catalogue, find, predict, results, verify  # noqa: F401  they add their commands
from autotune.cli.base import PROGRESS, cli, explain
from autotune.search.interrupt import end_as_by_ctrl_c


def main() -> None:
    """Run the command line; exit codes are those of `autotune.base.errors.ExitCode`."""
    # Imports make many objects and no garbage: looking for some takes a tenth of a short command.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)  # and a tenth more at its end, where Python looks twice
    end_as_by_ctrl_c()
    try:
        cli(prog_name="autotune")
    except SystemExit as end:
        # Typer makes this of Ctrl-C as well, wherever it comes.
        if end.code == ExitCode.INTERRUPTED:
            PROGRESS.print("interrupted: nothing that ended is lost", highlight=False)
        raise
    except (AutotuneError, OSError) as error:
        # OSError: such as a full disk under the table; what has ended is in the record already.
        explain(error)
        sys.exit(getattr(error, "exit_code", ExitCode.INVALID_INPUT))
