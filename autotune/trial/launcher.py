"""Start the ranks of one trial on one node, each as a Python of its own, and end with the parent.

`python -m autotune.trial.launcher FOLDER RENDEZVOUS MODULE ARGUMENTS` runs `python -m MODULE
ARGUMENTS` in every rank; RENDEZVOUS is JSON. It does what torchrun would, which imports torch
first: for seconds in which no rank could begin.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from autotune.base.keeper import adopt_orphans, end_all_below, end_with_parent
from autotune.contract import PARENT_ENV
from autotune.trial.forks import run_ranks
from autotune.trial.rendezvous import Rendezvous
from autotune.trial.variables import STORE_ENV


def main() -> None:
    """Run the ranks of this node until all have ended."""
    # The coordinator decides what Ctrl-C means. A handler, as the ranks would inherit `SIG_IGN`.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by `finally`
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ranks are waited for
    end_with_parent(int(os.environ[PARENT_ENV]))
    adopt_orphans()
    folder, rendezvous, *command = sys.argv[1:]
    os.environ[PARENT_ENV] = str(os.getpid())  # as its ranks find it
    try:
        code = run_ranks(Path(folder), Rendezvous(**json.loads(rendezvous)), _become, command)
    except OSError as error:
        print(f"launcher: {type(error).__name__}: {error}", file=sys.stderr)
        code = 2
    finally:
        end_all_below()
    sys.exit(code)


def _become(command: list[str]) -> NoReturn:
    if STORE_ENV in os.environ:
        os.set_inheritable(int(os.environ[STORE_ENV]), True)
    os.execv(sys.executable, [sys.executable, "-u", "-m", *command])


if __name__ == "__main__":
    main()
